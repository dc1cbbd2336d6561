"""Sums, means and greatest elements of bags of rows of a table, as models of recommendations look features up.

PyTorch's own way has a list of where each bag begins, and asks for what it holds.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..command import Error


def embedding_bag(
    x: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Rows of a table, joined in bags: each row of indices ``[b, n]`` is one, or each begins at an offset of indices ``[n]``.

    Raises:
        Error: where the table is to be changed by being read, or its gradient is to be another.
    """
    if max_norm is not None or scale_grad_by_freq:
        name = "max_norm" if max_norm is not None else "scale_grad_by_freq"
        raise Error(f"embedding_bag with {name} changes the table or its gradient while it is read, which a plan does not: leave it out")
    rows = functional.embedding(x, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    counts = torch.ones_like(x, dtype=torch.bool) if padding_idx is None else x != padding_idx % weight.shape[0]
    if x.dim() == 2:
        return _of_rows(rows, counts.unsqueeze(-1), mode)
    assert offsets is not None, "PyTorch has checked it"
    begins = offsets[:-1] if include_last_offset else offsets
    bags = torch.searchsorted(begins, torch.arange(len(x), dtype=begins.dtype, device=x.device), right=True) - 1
    return _of_offsets(rows, counts.unsqueeze(-1), bags, len(begins), mode)


def _of_rows(rows: Tensor, counts: Tensor, mode: str) -> Tensor:
    number = counts.sum(1)
    if mode == "max":
        return torch.where(number > 0, rows.masked_fill(~counts, -math.inf).max(1).values, 0.0)
    total = (rows * counts).sum(1)
    return total if mode == "sum" else total / number.clamp(min=1)


def _of_offsets(rows: Tensor, counts: Tensor, bags: Tensor, size: int, mode: str) -> Tensor:
    number = rows.new_zeros(size, 1).index_add(0, bags, counts.to(rows.dtype))
    if mode == "max":
        least = rows.new_full((size, rows.shape[1]), -math.inf)
        found = least.scatter_reduce(0, bags.unsqueeze(1).expand(rows.shape), rows.masked_fill(~counts, -math.inf), "amax")
        return torch.where(number > 0, found, 0.0)
    total = rows.new_zeros(size, rows.shape[1]).index_add(0, bags, rows * counts)
    return total if mode == "sum" else total / number.clamp(min=1)


def embedding(
    x: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None, *given: Any, **options: Any
) -> Tensor:
    """Rows of a table.

    Raises:
        Error: where they are to be scaled down in the table itself.
    """
    if max_norm is not None:
        raise Error("embedding with max_norm changes the table while it is read, which a plan does not: scale the rows that it gives")
    return functional.embedding(x, weight, padding_idx, None, *given, **options)


OTHERWISE: dict[Any, Any] = {functional.embedding_bag: embedding_bag, functional.embedding: embedding}
"""What stands for functions of PyTorch."""
