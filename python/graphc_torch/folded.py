"""Weights that PyTorch's exporter has computed with before it wrote them: a plan's variable of the tensors that the file has.

The file says of which others the exporter has computed a tensor. Plans name the parameter where the tensor is that one turned, or its
exponential, and hold the rows that differ where rows were looked up several times; graphc's importer says which.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def unfolded(name: str, shape: Sequence[int], tensors: Mapping[str, Tensor], parts: Mapping[str, list[str]]) -> Tensor | None:
    """The first content of a variable; none where the file has nothing of it."""
    own = tensors.get(name)
    if own is not None:
        return own if list(own.shape) == list(shape) else _different_rows(own, shape)
    for made, sources in parts.items():
        found = tensors.get(made)
        if found is None or name not in sources:
            continue
        functions = {_function_of(part) for part in (*sources, made) if part != name}
        if functions in ({"exp"}, {"exp", "neg"}) and list(found.shape) == list(shape):
            return (-found if "neg" in functions else found).double().log().to(found.dtype)
        if sources == [name] and found.dim() == 2 and list(found.shape) == list(reversed(shape)):
            return found.t().contiguous()
    return None


def _function_of(name: str) -> str:
    return re.sub(r"_\d+$", "", name.removeprefix("_"))


def _different_rows(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The rows that differ, in the order in which they come, along the last dim that gives a matrix of this shape; else of samples."""
    if len(shape) != 2:
        return tensor
    count, width = shape
    ways = [tensor.movedim(dim, -1).reshape(-1, width) for dim in range(tensor.dim()) if tensor.shape[dim] == width]
    samples = [tensor.reshape(-1, width)] if tensor.numel() % max(width, 1) == 0 else []
    for rows in (*reversed(ways), *samples):
        first: dict[bytes, Tensor] = {}
        for row in rows:
            first.setdefault(row.contiguous().view(torch.uint8).numpy().tobytes(), row)
        if len(first) == count:
            return torch.stack(list(first.values()))
    return tensor
