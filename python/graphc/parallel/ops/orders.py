"""What stands where when elements are in their order: the greatest, the least, the middle, and places among boundaries."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ATEN: Any = torch.ops.aten


def greatest(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The greatest of a dim, and where it is."""
    return _extreme(x, torch.argmax(x, dim, keepdim=True), dim, keepdim)


def least(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The least of a dim, and where it is."""
    return _extreme(x, torch.argmax(_negated(x), dim, keepdim=True), dim, keepdim)


def _extreme(x: Tensor, places: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    values = torch.gather(x, dim, places)
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def place_of_least(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the least of a dim, or of all."""
    return torch.argmax(_negated(x), dim, keepdim)


def _negated(x: Tensor) -> Tensor:
    """What is greatest where x is least: numbers without a sign have no other."""
    return -x if x.dtype.is_floating_point or x.dtype.is_signed else -x.to(torch.int64)


def place_of_greatest(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The index of the greatest of all; that of a dim is left as it is."""
    if dim is not None:
        return NotImplemented
    found = torch.argmax(x.reshape(-1), 0)
    return found.reshape([1] * x.dim()) if keepdim else found


def in_order(x: Tensor, place: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The element that stands at a place when those of a dim are sorted, the least first, and where it was."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, places = torch.sort(x, stable=True, dim=dim)
    found, at = values.narrow(dim, place, 1), places.narrow(dim, place, 1)
    return (found, at) if keepdim else (found.squeeze(dim), at.squeeze(dim))


def median(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The element in the middle, of two the lesser one."""
    return in_order(x, (x.shape[dim] - 1) // 2 if x.dim() > 0 else 0, dim, keepdim)


def median_of_all(x: Tensor) -> Tensor:
    """The element in the middle, of two the lesser one; those that are equal to it share its gradient."""
    middle = median(x.reshape(-1))[0]
    if not x.dtype.is_floating_point:
        return middle
    equal = torch.where(x == middle, x, -math.inf)
    return torch.where(middle == middle, torch.amax(equal, list(range(x.dim()))), middle)


def bucketize(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """How many boundaries lie below each element, which stand in their order; ``right`` counts equal ones too."""
    below = boundaries <= x.unsqueeze(-1) if right else boundaries < x.unsqueeze(-1)
    return below.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def searched(boundaries: Tensor, x: Tensor, *, out_int32: bool = False, right: bool = False, side: Any = None, sorter: Any = None) -> Any:
    """How many boundaries lie below each element: one row of them for all, or for each row its own."""
    if sorter is not None:
        return NotImplemented
    return bucketize(
        x, boundaries.unsqueeze(-2) if boundaries.dim() > 1 else boundaries, out_int32=out_int32, right=right or side == "right"
    )


TABLE: dict[Any, Callable[..., Any]] = {
    ATEN.max.dim: greatest,
    ATEN.min.dim: least,
    ATEN.argmin.default: place_of_least,
    ATEN.argmax.default: place_of_greatest,
    ATEN.median.dim: median,
    ATEN.median.default: median_of_all,
    ATEN.kthvalue.default: lambda x, k, dim=-1, keepdim=False: in_order(x, k - 1, dim, keepdim),
    ATEN.bucketize.Tensor: bucketize,
    ATEN.searchsorted.Tensor: searched,
}
