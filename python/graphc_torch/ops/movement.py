"""Ops that move elements: reshape, transpose, expand, slice, pad, concat, split, triangle, zigzag."""

from __future__ import annotations

import torch

from ..errors import PlanError
from .base import Call, Run, dim_of, into, op, zigzag_positions


@op("reshape")
@op("to_global")
@op("regather")
@op("accumulate")
def same_elements(call: Call) -> Run:
    """The same elements, row-major; nothing where the result is the operand's memory."""
    x, y = call.operand(0), call.result()
    if x.data_ptr() == y.data_ptr():
        return lambda: None
    return into(y, lambda: x.view(y.shape))


@op("transpose")
def transpose(call: Call) -> Run:
    """Result dim i is operand dim ``permutation[i]``."""
    view = call.operand(0).permute(call.op["permutation"])
    return into(call.result(), lambda: view)


@op("expand")
def expand(call: Call) -> Run:
    """Dims of extent 1, and missing leading dims, repeated."""
    view = call.operand(0).expand(call.result().shape)
    return into(call.result(), lambda: view)


@op("slice")
def slice_(call: Call) -> Run:
    """Elements start, start + step, .. before end of each dim. A dim that is split is taken whole."""
    port, parts = call.operands[0], []
    for dim, extent in enumerate(port.shape):
        start, end, step = (call.op[name][dim] for name in ("starts", "ends", "steps"))
        whole = (start, end, step) == (0, extent, 1)
        parts.append(slice(None) if whole else slice(start, end, step))
    view = port.tensor[tuple(parts)]
    return into(call.result(), lambda: view)


@op("pad")
def pad(call: Call) -> Run:
    """A border of one value, and elements of it between two neighbours."""
    x, y, value = call.operand(0), call.result(), call.op.number("value")
    parts = []
    for dim, extent in enumerate(x.shape):
        low, step = call.op["low"][dim], call.op["interior"][dim] + 1
        parts.append(slice(low, low + (extent - 1) * step + 1 if extent else low, step))
    inside, number = y[tuple(parts)], value if y.dtype.is_floating_point else int(value)

    def run() -> None:
        y.fill_(number)
        inside.copy_(x)

    return run


@op("triangle")
def triangle(call: Call) -> Run:
    """Zero above or below a diagonal of the last two dims of the whole."""
    port, y = call.operands[0], call.result()
    diagonal = call.op["diagonal"] + port.origin[-2] - port.origin[-1]
    kept = torch.tril if call.op["lower"] else torch.triu
    x = port.tensor
    return into(y, lambda: kept(x, diagonal))


@op("zigzag")
def zigzag(call: Call) -> Run:
    """Chunks of a dim in another order: early ones of the sequence beside late ones, or back."""
    x, y, dim = call.operand(0), call.result(), call.op["dim"]
    order = zigzag_positions(x.shape[dim], call.op["pairs"], x.device)
    order = torch.argsort(order) if call.op["inverse"] else order
    return into(y, lambda: torch.index_select(x, dim, order))


@op("concat")
def concat(call: Call) -> Run:
    """Operands one after the other along a dim."""
    axis, tensors, y = dim_of(call.results[0], call.op["axis"]), [port.tensor for port in call.operands], call.result()

    def run() -> None:
        torch.cat(tensors, axis, out=y)

    return run


@op("split")
def split(call: Call) -> Run:
    """Parts of given extents along a dim."""
    axis, sizes = dim_of(call.operands[0], call.op["axis"]), list(call.op["sizes"])
    if len(sizes) != len(call.results):
        raise PlanError(f"split has {len(sizes)} parts and {len(call.results)} results")
    pairs = list(zip(call.operand(0).split(sizes, axis), [port.tensor for port in call.results], strict=True))

    def run() -> None:
        for part, result in pairs:
            result.copy_(part)

    return run
