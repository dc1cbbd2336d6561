"""What stands where PyTorch would have gradients: a plan has used them by then, and nobody may reckon with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..command import Error

ZEROED = (torch.ops.aten.zero_.default, torch.ops.aten._foreach_zero_.default, torch.ops.aten.detach.default)
"""Ops of ``zero_grad(set_to_none=False)``, and of ``grad.data``."""


class UsedGradient(Tensor):
    """A gradient without content: whoever looks at it, or changes it, is told that this comes too late."""

    @staticmethod
    def __new__(cls, shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> UsedGradient:
        """One of this form."""
        make: Any = getattr(Tensor, "_make_wrapper_subclass")  # noqa: B009
        found: UsedGradient = make(cls, shape, strides=strides, dtype=dtype, device=device)
        return found

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Sequence[Any], given: tuple[Any, ...] = (), more: dict[str, Any] | None = None
    ) -> Any:
        """What an op makes of it.

        Raises:
            Error: where it is one that needs content.
        """
        if op in ZEROED:
            return given[0] if op is torch.ops.aten.detach.default else None
        if op is torch.ops.aten._to_copy.default:
            # The parameter goes to another device or type, and its gradient with it.
            own, to = given[0], more or {}
            return cls(own.shape, own.stride(), to.get("dtype") or own.dtype, to.get("device") or own.device)
        clipped = "parallelize(.., max_norm=) scales gradients down"
        others = "what else is to be learned belongs into the loss, and weights of other optimizers into groups of this one"
        raise Error(f"the plan has used the gradients by the time that there is a loss, and keeps none: {clipped}, {others}")


class Gradients:
    """The gradients of a model's parameters, between ``loss.backward()`` and ``optimizer.step()``."""

    def __init__(self, model: nn.Module) -> None:
        """Those of a model."""
        self.model = model

    def put(self) -> None:
        """Says of each gradient that it was used."""
        for parameter in self._parameters():
            if parameter.grad is None:
                parameter.grad = UsedGradient(parameter.shape, parameter.stride(), parameter.dtype, parameter.device)

    def take(self) -> None:
        """Takes them away again, before the optimizer makes a step of its own.

        Raises:
            Error: where there are others, which would change what the plan trains.
        """
        for name, parameter in self.model.named_parameters():
            if parameter.grad is None:
                continue
            if not isinstance(parameter.grad, UsedGradient):
                said = f"`{name}` has a gradient that is not the plan's, of another loss or of an earlier step"
                raise Error(f"{said}: make one loss of all, and call optimizer.zero_grad() before it")
            parameter.grad = None

    def _parameters(self) -> Iterable[nn.Parameter]:
        return (parameter for parameter in self.model.parameters() if parameter.requires_grad)
