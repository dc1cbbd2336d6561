"""Products of experts with the places of the tokens that chose them.

Experts share blocks of places: behind the run of places of each expert comes that of the next, and free places are at the end. Which
places an expert has follows from the choices alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .base import Call, Run, op, wide
from .experts import shares
from .places import checked


def _runs(call: Call, experts: int) -> Callable[[], Iterator[tuple[int, int, int, int, int]]]:
    """Yields block, group, expert, start and end of each run that this rank has places of, all counted from its first ones."""
    x, chosen = call.operands[0], call.operand(2)
    share = shares(experts, x.shape[0])
    room, first_place = x.tensor.shape[2], x.origin[2]

    def runs() -> Iterator[tuple[int, int, int, int, int]]:
        groups = chosen.shape[0]
        counts = torch.zeros((groups, experts), dtype=torch.int64, device=chosen.device)
        flat = chosen.reshape(groups, chosen.shape[1] * chosen.shape[2])
        counts.scatter_add_(1, flat, torch.ones_like(flat))
        ends = counts.reshape(groups, x.shape[0], share).cumsum(-1).tolist()
        for block in range(x.tensor.shape[0]):
            for group in range(groups):
                start = 0
                for expert, end in enumerate(ends[group][x.origin[0] + block]):
                    edges = (min(max(place - first_place, 0), room) for place in (start, end))
                    low, high = edges
                    if low < high:
                        yield block, group, block * share + expert, low, high
                    start = end

    return runs


@op("grouped_matmul")
def grouped_matmul(call: Call) -> Run:
    """(x [blocks, g, capacity, i], w [experts, i, j], chosen [g, t, k]) -> [blocks, g, capacity, j]: places times matrices."""
    x, matrices, y = call.operand(0), call.operand(1), call.results[0].tensor
    experts = call.operands[1].shape[0]
    check, runs = checked("expert", call.operand(2), experts), _runs(call, experts)
    transposed = bool(call.op.get("transpose_b", False))

    def run() -> None:
        check()
        y.zero_()
        for block, group, expert, start, end in runs():
            matrix = matrices[expert].t() if transposed else matrices[expert]
            y[block, group, start:end] = _product(x[block, group, start:end], matrix).to(y.dtype)

    return run


@op("grouped_matmul_grad")
def grouped_matmul_grad(call: Call) -> Run:
    """(x [blocks, g, capacity, i], y [blocks, g, capacity, j], chosen [g, t, k]) -> [experts, i, j]: sums of outer products over runs."""
    x, y, out = call.operand(0), call.operand(1), call.results[0].tensor
    experts = call.op["experts"]
    check, runs = checked("expert", call.operand(2), experts), _runs(call, experts)

    def run() -> None:
        check()
        sums = torch.zeros(out.shape, dtype=torch.float32, device=out.device)
        for block, group, expert, start, end in runs():
            places = x[block, group, start:end].t(), y[block, group, start:end]
            sums[expert] += _product(*places).float()
        out.copy_(sums)

    return run


def _product(a: Tensor, b: Tensor) -> Tensor:
    """A product whose sums are of 32 bits: on a GPU by the kernels for its type, on a CPU of widened numbers."""
    return a @ b if a.is_cuda else wide(a) @ wide(b)
