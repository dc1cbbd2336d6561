"""Products of experts with the places of the tokens that chose them.

Experts share blocks of places: behind the run of places of each expert comes that of the next, and free places are at the end. Which
places an expert has follows from the choices alone. All places of an expert, of whatever group, make one product.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .base import EIGHTS, Call, Run, op, wide
from .elementwise import float8_scale
from .experts import shares
from .places import checked

Sorted = Callable[[], tuple[Tensor, list[int]]]
"""The numbers of this rank's places that tokens have, expert by expert, and how many each expert has."""


def _by_experts(call: Call, experts: int) -> Sorted:
    x, chosen = call.operands[0], call.operand(2)
    share = shares(experts, x.shape[0])
    held, groups, room = x.tensor.shape[:3]
    device = chosen.device
    numbers = torch.arange(room, device=device) + x.origin[2]
    first = torch.arange(held, device=device).reshape(held, 1, 1) * share

    def found() -> tuple[Tensor, list[int]]:
        counts = torch.zeros((groups, experts), dtype=torch.int64, device=device)
        flat = chosen.reshape(groups, chosen.shape[1] * chosen.shape[2])
        counts.scatter_add_(1, flat, torch.ones_like(flat))
        ends = counts.reshape(groups, x.shape[0], share).cumsum(-1)
        ends = ends[:, x.origin[0] : x.origin[0] + held].transpose(0, 1).contiguous()
        within = torch.searchsorted(ends, numbers.expand(held, groups, room).contiguous(), right=True)
        expert = torch.where(within < share, within + first, held * share).flatten()
        taken = torch.bincount(expert, minlength=held * share + 1)[:-1].tolist()
        return expert.argsort(stable=True)[: sum(taken)], taken

    return found


def _rows(places: Tensor) -> Tensor:
    return places.reshape(places.shape[0] * places.shape[1] * places.shape[2], places.shape[3])


@op("grouped_matmul")
def grouped_matmul(call: Call) -> Run:
    """(x [blocks, g, capacity, i], w [experts, i, j], chosen [g, t, k]) -> [blocks, g, capacity, j]: places times matrices."""
    x, matrices, y = call.operand(0), call.operand(1), call.results[0].tensor
    experts = call.operands[1].shape[0]
    check, by_experts = checked("expert", call.operand(2), experts), _by_experts(call, experts)
    transposed, scales = bool(call.op.get("transpose_b", False)), _scales(call)

    def run() -> None:
        check()
        places, counts = by_experts()
        weights = _numbers(matrices.transpose(1, 2) if transposed else matrices)
        parts = _rows(_numbers(x))[places].split(counts)
        taken = [expert for expert, count in enumerate(counts) if count > 0]
        found = [_product(parts[expert], weights[expert]) for expert in taken]
        if scales is not None:
            of_places, of_matrices = scales()
            of_rows = _rows(of_places.expand(*x.shape[:3], 1))[places].split(counts)
            of_columns = (of_matrices.transpose(1, 2) if transposed else of_matrices).expand(len(counts), 1, y.shape[3])
            found = [product / of_rows[expert] / of_columns[expert] for product, expert in zip(found, taken, strict=True)]
        y.zero_()
        if found:
            y.copy_(_rows(y).index_copy(0, places, torch.cat(found).to(y.dtype)).reshape(y.shape))

    return run


@op("grouped_matmul_grad")
def grouped_matmul_grad(call: Call) -> Run:
    """(x [blocks, g, capacity, i], y [blocks, g, capacity, j], chosen [g, t, k]) -> [experts, i, j]: sums of outer products over runs."""
    x, y, out = call.operand(0), call.operand(1), call.results[0].tensor
    experts = call.op["experts"]
    check, by_experts = checked("expert", call.operand(2), experts), _by_experts(call, experts)
    scales, each = _scales(call), shares(experts, call.operands[0].shape[0])

    def run() -> None:
        check()
        places, counts = by_experts()
        parts = zip(*(_rows(_numbers(factor))[places].split(counts) for factor in (x, y)), strict=True)
        given = None if scales is None else [sizes.expand(x.shape[0], 1, 1, sizes.shape[3]) for sizes in scales()]
        for expert, (a, b) in enumerate(parts):
            product = _product(a.t(), b)
            if given is not None:
                of_rows, of_columns = (sizes[expert // each, 0] for sizes in given)
                product = product / of_rows.t() / of_columns
            out[expert].copy_(product)

    return run


def _numbers(factor: Tensor) -> Tensor:
    """The elements, those of 8 bits as bf16, which has them all."""
    return factor.to(torch.bfloat16) if factor.dtype in EIGHTS else factor


def _scales(call: Call) -> Callable[[], list[Tensor]] | None:
    """The scales of both factors, if these are of 8 bits and bring the sizes by which they were rounded."""
    if len(call.operands) < 5:
        return None
    pairs = [(call.operand(3 + place), call.operand(place).dtype) for place in range(2)]
    return lambda: [float8_scale(sizes.float(), dtype) for sizes, dtype in pairs]


def _product(a: Tensor, b: Tensor) -> Tensor:
    """A product whose sums are of 32 bits: on a GPU by the kernels for its type, on a CPU of widened numbers."""
    return a @ b if a.is_cuda else wide(a) @ wide(b)
