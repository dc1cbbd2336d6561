"""Decompositions of matrices, and what is made of them, column by column: PyTorch's own have no translation.

Matrices are small where models have them: covariances, orthogonal weights, invertible 1x1 convolutions. There are as many steps as a matrix
has columns, and gradients are those of the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .detach import detached

ATEN: Any = torch.ops.aten

MOST_COLUMNS = 128
"""Columns of a matrix that is taken apart: each is a step of the graph."""

TERMS, HALVES = 18, 4
"""Terms of the series of a matrix's exponential, and how often it is halved before: exact up to a norm of 64."""


def cholesky(x: Tensor, upper: bool = False, check_errors: bool = False) -> Any:
    """The lower triangle of which a symmetric matrix is the product with itself, turned; only its lower half is read."""
    size = x.shape[-1]
    if size > MOST_COLUMNS:
        return NotImplemented
    x = _symmetric(x)
    places, columns = torch.arange(size, device=x.device), []
    for at in range(size):
        column = x[..., :, at]
        root = torch.sqrt(column[..., at : at + 1])
        column = torch.where(places >= at, column / root, 0.0)
        columns.append(column)
        x = x - column.unsqueeze(-1) * column.unsqueeze(-2)
    found = torch.stack(columns, -1)
    return (found.transpose(-1, -2) if upper else found), _no_errors(x)


def _symmetric(x: Tensor) -> Tensor:
    """The lower half and its reflection, whose gradient both halves share, as PyTorch has it."""
    lower, both = detached(x.tril()), 0.5 * (x + x.mT)
    return lower + detached(x.tril(-1)).mT + (both - detached(both))


def solve_triangular(x: Tensor, right: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    """What a triangular matrix takes to others."""
    size = x.shape[-1]
    if size > MOST_COLUMNS:
        return NotImplemented
    if not left:
        turned = solve_triangular(x.mT, right.mT, upper=not upper, unitriangular=unitriangular)
        return turned.mT.contiguous()
    batch = torch.broadcast_shapes(x.shape[:-2], right.shape[:-2])
    x, right = x.expand(*batch, *x.shape[-2:]), right.expand(*batch, *right.shape[-2:])
    rows: list[Tensor] = []
    for at in range(size - 1, -1, -1) if upper else range(size):
        row = right[..., at : at + 1, :]
        if rows:
            done = torch.cat(rows, -2)
            row = row - (x[..., at : at + 1, at + 1 :] if upper else x[..., at : at + 1, :at]) @ done
        row = row if unitriangular else row / x[..., at : at + 1, at : at + 1]
        rows = [row, *rows] if upper else [*rows, row]
    return torch.cat(rows, -2)


def cholesky_solve(right: Tensor, x: Tensor, upper: bool = False) -> Any:
    """What a matrix takes to others of which this is the triangle."""
    if x.shape[-1] > MOST_COLUMNS:
        return NotImplemented
    lower = x.mT if upper else x
    return solve_triangular(lower.mT, solve_triangular(lower, right, upper=False), upper=True)


def eliminated(x: Tensor, right: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """A matrix whose rows are exchanged and taken off each other until it is an upper triangle, and others of which the same is done.

    Gives the triangle's diagonal, the sign of the exchanges, and what solves the others.
    """
    size = x.shape[-1]
    whole = x if right is None else torch.cat([x, right], -1)
    places = torch.arange(size, device=x.device)
    sign, pivots = torch.ones(x.shape[:-2], dtype=x.dtype, device=x.device), []
    for at in range(size):
        sizes = torch.where(places >= at, whole[..., :, at].abs(), -1.0)
        best = torch.argmax(sizes, -1, keepdim=True)
        order = torch.where(places == at, best, torch.where(places == best, at, places))
        whole = torch.gather(whole, -2, order.unsqueeze(-1).expand(whole.shape))
        sign = torch.where(best.squeeze(-1) == at, sign, -sign)
        row = whole[..., at : at + 1, :]
        pivots.append(row[..., 0, at])
        factors = whole[..., :, at : at + 1] / row[..., at : at + 1]
        whole = torch.where((places > at).unsqueeze(-1), whole - factors * row, whole)
    solved = None if right is None else solve_triangular(whole[..., :size], whole[..., size:], upper=True)
    return torch.stack(pivots, -1), sign, solved


def determinant(x: Tensor) -> Any:
    """The determinant; what else it is computed of nothing may use."""
    if x.shape[-1] > MOST_COLUMNS:
        return NotImplemented
    pivots, sign, _ = eliminated(x, None)
    return sign * torch.prod(pivots, -1), *_factors(x)


def log_determinant(x: Tensor) -> Any:
    """The sign of the determinant, and the logarithm of its size."""
    if x.shape[-1] > MOST_COLUMNS:
        return NotImplemented
    pivots, sign, _ = eliminated(x, None)
    return sign * torch.prod(torch.sign(pivots), -1), torch.log(pivots.abs()).sum(-1), *_factors(x)


def inverse(x: Tensor, *, check_errors: bool = False) -> Any:
    """The inverse."""
    if x.shape[-1] > MOST_COLUMNS:
        return NotImplemented
    unit = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand(x.shape)
    return eliminated(x, unit)[2], _no_errors(x)


def solve(x: Tensor, right: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    """What a matrix takes to others, or to one vector."""
    if x.shape[-1] > MOST_COLUMNS:
        return NotImplemented
    if not left:
        return solve(x.mT, right.mT)[0].mT.contiguous(), *_factors(x), _no_errors(x)
    is_vector = right.dim() == 1 or (right.dim() == x.dim() - 1 and right.shape == x.shape[:-1])
    columns = right.unsqueeze(-1) if is_vector else right
    batch = torch.broadcast_shapes(x.shape[:-2], columns.shape[:-2])
    found = eliminated(x.expand(*batch, *x.shape[-2:]), columns.expand(*batch, *columns.shape[-2:]))[2]
    assert found is not None, "it has something to solve"
    return (found.squeeze(-1) if is_vector else found), *_factors(x), _no_errors(x)


def exponential(x: Tensor) -> Any:
    """The exponential of a matrix: by its series, of a matrix that is halved until it is small, and squared as often."""
    small = x * 0.5**HALVES
    found = unit = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand(x.shape)
    for term in range(TERMS, 0, -1):
        found = unit + small @ found / float(term)
    for _ in range(HALVES):
        found = found @ found
    return found


def reflections(x: Tensor, factors: Tensor) -> Any:
    """The first columns of the product of reflections, each of which has a column below the diagonal."""
    rows, columns = x.shape[-2:]
    if columns > MOST_COLUMNS:
        return NotImplemented
    places = torch.arange(rows, device=x.device)
    found = torch.eye(rows, columns, dtype=x.dtype, device=x.device).expand(x.shape)
    for at in range(factors.shape[-1] - 1, -1, -1):
        normal = torch.where(places > at, x[..., :, at], torch.where(places == at, 1.0, 0.0)).unsqueeze(-1)
        found = found - factors[..., at : at + 1].unsqueeze(-1) * normal @ (normal.mT @ found)
    return found


def _factors(x: Tensor) -> tuple[Tensor, Tensor]:
    """What stands for a matrix's factors and the order of its rows, which nothing uses but gradients of PyTorch's own."""
    return torch.zeros_like(x), torch.zeros(x.shape[:-1], dtype=torch.int32, device=x.device)


def _no_errors(x: Tensor) -> Tensor:
    """The number of the column that has no pivot: none."""
    return torch.zeros(x.shape[:-2], dtype=torch.int32, device=x.device)


TABLE: dict[Any, Callable[..., Any]] = {
    ATEN.linalg_cholesky_ex.default: cholesky,
    ATEN.linalg_solve_triangular.default: solve_triangular,
    ATEN.cholesky_solve.default: cholesky_solve,
    ATEN._linalg_det.default: determinant,
    ATEN._linalg_slogdet.default: log_determinant,
    ATEN.linalg_inv_ex.default: inverse,
    ATEN._linalg_solve_ex.default: solve,
    ATEN.linalg_matrix_exp.default: exponential,
    ATEN.linalg_householder_product.default: reflections,
}
