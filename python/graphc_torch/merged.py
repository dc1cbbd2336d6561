"""Weights that PyTorch's exporter has written once because they began alike, or left out because they began as zeros.

Plans hold each of them. The nodes of the file say of which function of PyTorch they are, with the names of its operands, so the weight that
a node reads under the name of another is known; graphc's importer says the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .onnx import Calls


def unmerged(name: str, shape: Sequence[int], tensors: Mapping[str, Tensor], parts: Mapping[str, list[str]], calls: Calls) -> Tensor | None:
    """The first content of a variable that the file has under another name, or not, as it is zeros; none where no function reads it."""
    called = calls.placeholders.get(name, name)
    nodes = [(inputs, operands) for inputs, operands in calls.nodes if called in operands]
    for inputs, operands in nodes:
        fits = []
        for other in inputs:
            found = tensors.get(other)
            if found is None or other in operands or _is_called(other, operands, parts, calls):
                continue
            # Plans name the parameter where the exporter has turned it, and else the tensor that it has made.
            own = found.t().contiguous() if name in calls.placeholders and len(parts.get(other, [])) == 1 and found.dim() == 2 else found
            if list(own.shape) == list(shape):
                fits.append((other, own))
        alike = [tensor for other, tensor in fits if _kind(other) == _kind(name)]
        if len(alike) == 1 or len(fits) == 1:
            return alike[0] if len(alike) == 1 else fits[0][1]
    return torch.zeros(list(shape)) if nodes and len(shape) == 1 else None


def _is_called(name: str, operands: Sequence[str], parts: Mapping[str, list[str]], calls: Calls) -> bool:
    """Whether a function calls a tensor by the name of a parameter that it is, or is computed of."""
    return any(calls.placeholders.get(part) in operands for part in [name, *parts.get(name, [])] if part in calls.placeholders)


def _kind(name: str) -> str | None:
    leaf = name.rsplit(".", 1)[-1]
    return next((kind for kind in ("weight", "bias") if kind in leaf), None)
