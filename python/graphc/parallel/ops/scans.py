"""What takes all elements of a dim up to each, by doubling: of windows of 1, 2, 4 and more elements that end there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ATEN: Any = torch.ops.aten

Join = Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], tuple[Tensor, ...]]
"""What joins the results of windows with those of the windows before them."""


def product(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Products of all elements up to each."""
    x = x if dtype is None else x.to(dtype)
    return _scanned((x,), dim, lambda own, before: (before[0] * own[0],))[0]


def log_of_sums(x: Tensor, dim: int) -> Tensor:
    """Logarithms of the sums of the exponentials of all elements up to each."""
    return _scanned((x,), dim, lambda own, before: (_joined(before[0], own[0]),))[0]


def _joined(x: Tensor, y: Tensor) -> Tensor:
    greatest = torch.maximum(x, y).detach()
    greatest = torch.where(greatest.abs() == math.inf, 0.0, greatest)
    return torch.log(torch.exp(x - greatest) + torch.exp(y - greatest)) + greatest


def greatest(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The greatest up to each, and where it is: of equal ones the last."""
    return _extreme(x, dim, lambda x, y: x > y)


def least(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The least up to each, and where it is: of equal ones the last."""
    return _extreme(x, dim, lambda x, y: x < y)


def _extreme(x: Tensor, dim: int, is_before: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    def join(own: tuple[Tensor, ...], before: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        taken = is_before(before[0], own[0])
        return tuple(torch.where(taken, there, here) for here, there in zip(own, before, strict=True))

    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    places = torch.arange(x.shape[dim], device=x.device).reshape([-1 if at == dim % x.dim() else 1 for at in range(x.dim())])
    values, found = _scanned((x, places.expand(x.shape)), dim, join)
    return values, found


def _scanned(parts: tuple[Tensor, ...], dim: int, join: Join) -> tuple[Tensor, ...]:
    extent = parts[0].shape[dim] if parts[0].dim() else 1
    size = 1
    while size < extent:
        first = [part.narrow(dim, 0, size) for part in parts]
        own, before = (tuple(part.narrow(dim, at, extent - size) for part in parts) for at in (size, 0))
        parts = tuple(torch.cat(pair, dim) for pair in zip(first, join(own, before), strict=True))
        size *= 2
    return tuple(part.clone() for part in parts)


TABLE: dict[Any, Callable[..., Any]] = {
    ATEN.cumprod.default: product,
    ATEN.logcumsumexp.default: log_of_sums,
    ATEN.cummax.default: greatest,
    ATEN.cummin.default: least,
}
