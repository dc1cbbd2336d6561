"""Norms, deviations, and distances of rows: where they are 0 nothing is learned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .detach import detached

ATEN: Any = torch.ops.aten


def norm(x: Tensor, order: float = 2.0, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    """The norm over dims; where it is 0 nothing is learned."""
    x = x if dtype is None else x.to(dtype)
    dims = list(range(x.dim())) if dim is None else dim
    if order == math.inf:
        return torch.amax(x.abs(), dims, keepdim)
    if order == -math.inf:
        return torch.amin(x.abs(), dims, keepdim)
    if order == 1:
        return torch.sum(x.abs(), dims, keepdim)
    if order == 0:
        return torch.sum((x != 0).to(x.dtype), dims, keepdim)
    powers = x * x if order == 2 else _power_of_size(x, order)
    total = torch.sum(powers, dims, keepdim)
    is_zero = total == 0.0
    guarded = torch.where(is_zero, torch.ones_like(total), total)
    root = torch.sqrt(guarded) if order == 2 else guarded.pow(1.0 / order)
    return torch.where(is_zero, torch.zeros_like(total), root)


def _power_of_size(x: Tensor, order: float) -> Tensor:
    """A power of sizes; where it is below 1 its slope at 0 would be infinite, and nothing is learned there."""
    if order >= 1:
        return x.abs().pow(order)
    is_zero = x == 0.0
    return torch.where(is_zero, 0.0, torch.where(is_zero, 1.0, x.abs()).pow(order))


def distances(x: Tensor, y: Tensor, order: float, mode: int | None) -> Tensor:
    """The distance of each row to each other."""
    return _size(x.unsqueeze(-2) - y.unsqueeze(-3), order)


def _size(apart: Tensor, order: float) -> Tensor:
    """The norm of the last dim; all elements that are as great as the greatest have its gradient, which those of a norm share."""
    if order != math.inf:
        return norm(apart, order, [-1])
    sizes = apart.abs()
    greatest = detached(torch.amax(sizes, [-1]))
    return greatest + torch.where(sizes == greatest.unsqueeze(-1), sizes - detached(sizes), 0.0).sum(-1)


def pair_distances(x: Tensor, order: float = 2.0) -> Tensor:
    """The distance of each row to each that is behind it."""
    pairs = [(row, column) for row in range(x.shape[0]) for column in range(row + 1, x.shape[0])]
    first, second = (torch.cat([torch.arange(pair[at], pair[at] + 1, device=x.device) for pair in pairs]) for at in (0, 1))
    return _size(torch.index_select(x, 0, first) - torch.index_select(x, 0, second), order)


def deviation(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    """The standard deviation over dims; where it is 0 nothing is learned."""
    variance = torch.var(x, dim, correction=correction, keepdim=keepdim)
    is_zero = variance == 0.0
    return torch.where(is_zero, 0.0, torch.sqrt(torch.where(is_zero, 1.0, variance)))


def deviation_and_mean(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The standard deviation over dims, and the mean."""
    dims = list(range(x.dim())) if dim is None else dim
    return deviation(x, dim, correction=correction, keepdim=keepdim), torch.mean(x, dims, keepdim)


TABLE: dict[Any, Callable[..., Any]] = {
    ATEN.linalg_vector_norm.default: norm,
    ATEN.std.correction: deviation,
    ATEN.std_mean.correction: deviation_and_mean,
    ATEN._cdist_forward.default: distances,
    ATEN._pdist_forward.default: pair_distances,
}
