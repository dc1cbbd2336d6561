"""Layers of experts of which each row takes some: ops of graphc's own, since their shapes in PyTorch depend on data.

Rows come in groups. They go to places ``[1, groups, choices, width]``, where behind the rows of each expert come those of the next, and a
product with the matrices of all experts takes of each as many rows as chose it.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("graphc::dispatch", mutates_args=())  # type: ignore[misc]
def dispatch(x: Tensor, chosen: Tensor, experts: int) -> Tensor:
    """Rows ``[g, t, d]`` at the places of the experts ``[g, t, k]`` that they chose, ``[1, g, t * k, d]``."""
    tokens, _ = _order(chosen)
    return x.gather(1, tokens.unsqueeze(-1).expand(-1, -1, x.shape[2])).unsqueeze(0)


@dispatch.register_fake  # type: ignore[misc]
def _(x: Tensor, chosen: Tensor, experts: int) -> Tensor:
    groups, tokens, choices = chosen.shape
    return x.new_empty(1, groups, tokens * choices, x.shape[2])


@torch.library.custom_op("graphc::grouped_matmul", mutates_args=())  # type: ignore[misc]
def grouped_matmul(x: Tensor, matrices: Tensor, chosen: Tensor, transposed: bool) -> Tensor:
    """Places ``[1, g, s, i]`` times the matrices of their experts, ``[experts, i, j]``, or ``transposed`` ``[experts, j, i]``."""
    groups, experts = chosen.shape[0], matrices.shape[0]
    counts = torch.nn.functional.one_hot(chosen.reshape(groups, -1), experts).sum(1).tolist()
    weights = matrices.transpose(1, 2) if transposed else matrices
    found = [torch.cat([rows @ weights[expert] for expert, rows in enumerate(x[0, group].split(counts[group]))]) for group in range(groups)]
    return torch.stack(found).unsqueeze(0)


@grouped_matmul.register_fake  # type: ignore[misc]
def _(x: Tensor, matrices: Tensor, chosen: Tensor, transposed: bool) -> Tensor:
    return x.new_empty(*x.shape[:3], matrices.shape[1 if transposed else 2])


@torch.library.custom_op("graphc::combine", mutates_args=())  # type: ignore[misc]
def combine(y: Tensor, chosen: Tensor, weights: Tensor, experts: int) -> Tensor:
    """The sum over a row's places, ``[1, g, t * k, d]``, times the weights ``[g, t, k]`` of its choices: ``[g, t, d]``."""
    groups, count, choices = chosen.shape
    tokens, places = _order(chosen)
    shares = weights.transpose(1, 2).reshape(groups, count * choices).gather(1, places)
    found = y.new_zeros(groups, count, y.shape[3])
    return found.scatter_add(1, tokens.unsqueeze(-1).expand(-1, -1, y.shape[3]), y[0] * shares.unsqueeze(-1))


@combine.register_fake  # type: ignore[misc]
def _(y: Tensor, chosen: Tensor, weights: Tensor, experts: int) -> Tensor:
    return y.new_empty(*chosen.shape[:2], y.shape[3])


def _order(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of the places of each group, and the numbers of their choices: all first choices, then all second ones."""
    groups, tokens, choices = chosen.shape
    order = chosen.transpose(1, 2).reshape(groups, tokens * choices).argsort(dim=1, stable=True)
    return order % tokens, order
