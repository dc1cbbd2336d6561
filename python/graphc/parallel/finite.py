"""Branches on whether all numbers are finite, as of models that clamp them where some are not: they go the way of finite numbers.

A plan computes what a model does with finite numbers. Others go on to the loss as they are, and are seen there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

ASKED = {"isfinite": True, "isinf": False, "isnan": False, "isposinf": False, "isneginf": False}
"""What finite numbers answer."""

JOINED = {
    "all", "any", "logical_not", "logical_or", "logical_and", "bitwise_not", "bitwise_or", "bitwise_and", "__invert__", "__or__", "__and__",
    "__ror__", "__rand__",
}  # fmt: skip
"""What makes of answers that are the same everywhere one that is."""


class Finite:
    """What is true of tensors whose elements hold as numbers are finite, or do not."""

    def __init__(self) -> None:
        """Nothing."""
        self._answers: Any = WeakIdKeyDictionary()

    def note(self, found: Any, function: Any, arguments: Any, options: Mapping[str, Any]) -> None:
        """Keeps the answer that a function gives for finite numbers."""
        if not isinstance(found, Tensor):
            return
        name = str(getattr(function, "__name__", ""))
        operands = [leaf for leaf in pytree.tree_leaves((arguments, dict(options))) if isinstance(leaf, Tensor)]
        if name in ASKED:
            self._answers[found] = ASKED[name]
        elif name in JOINED and operands and all(operand in self._answers for operand in operands):
            self._answers[found] = _apart(lambda *own: bool(function(*own)), [self._answers[operand] for operand in operands])

    def answers(self, operands: list[Tensor]) -> bool:
        """Whether these tensors have answers."""
        return bool(operands) and all(operand in self._answers for operand in operands)

    def read(self, function: Any, operands: list[Tensor]) -> Any:
        """What whoever reads an answer is given."""
        return _apart(function, [self._answers[operand] for operand in operands])


def _apart(function: Any, answers: list[bool]) -> Any:
    """What a function gives outside of the capture."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        return function(*(torch.tensor(answer) for answer in answers))
