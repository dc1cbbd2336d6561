"""Ops that put elements to computed places, or add them there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from ..text import Value
from .call import Call, Result, Unsupported
from .movement import MASK, exchanged, joined_indices


def scatter(call: Call) -> Value:
    """Elements, or one number, at places of a dim, for each element around."""
    return _along(call, "src" if "src" in call.arguments else "value", _put)


def scatter_add(call: Call) -> Value:
    """Elements added at places of a dim, for each element around."""
    return _along(call, "src", _added)


def scatter_reduce(call: Call) -> Value:
    """Elements joined with what is at their places: sums, products, the greatest or the least."""
    functions = {"prod": "mul", "amax": "max", "amin": "min"}
    call.require("include_self", True)
    kind = call["reduce"]
    if kind == "sum":
        return scatter_add(call)
    if kind not in functions:
        raise Unsupported(f"graphc has no mean at places: divide a sum, not reduce={kind}")
    return _along(call, "src", partial(_put, function=functions[kind]))


def _along(call: Call, source: str, join: Callable[[Call, Value, Value, Value], Value]) -> Value:
    """What joins the values of a dim to those at its places, with that dim behind all others."""
    writer, x, places = call.writer, call.tensor("self"), call.tensor("index", torch.int64)
    if x.rank == 0:
        raise Unsupported("graphc has it of tensors that have a dim")
    dim, last = call.dim("dim", x.rank), x.rank - 1
    if any(places.shape[other] != x.shape[other] for other in range(x.rank) if other != dim):
        raise Unsupported("graphc has it of as many rows of places as the tensor has")
    values = call.tensor(source, x.dtype)
    if values.rank == 0:
        values = writer.expand(values, places.shape)
    for other, extent in enumerate(places.shape):
        values = writer.slice(values, other, 0, extent)
    return exchanged(call, join(call, *(exchanged(call, part, dim, last) for part in (x, places, values))), dim, last)


def _put(call: Call, x: Value, places: Value, values: Value, function: str = "set") -> Value:
    return call.writer.node("scatter", [x, places, values], x.dtype, x.shape, function=function)


def _added(call: Call, x: Value, places: Value, values: Value) -> Value:
    """Of sums there is one of all values, and the tensor."""
    extent = x.shape[places.rank - 1]
    sums = call.writer.node("scatter_sum", [places, values], x.dtype, x.shape, places=extent)
    return call.writer.binary("add", x, sums)


def index_put(call: Call) -> Value:
    """Elements at indices of one dim or of several; or one where a mask holds."""
    writer, x, given = call.writer, call.tensor("self"), call["indices"]
    dims = [dim for dim, one in enumerate(given) if one is not None]
    indices = [call.value(given[dim]) for dim in dims]
    if len(indices) == 1 and indices[0].dtype == torch.bool:
        return _where(call, x, dims[0], indices[0])
    if any(one.dtype == torch.bool for one in indices):
        raise Unsupported(MASK)
    others = [dim for dim in range(x.rank) if dim not in dims]
    front = writer.transpose(x, [*dims, *others])
    extents, inner = front.shape[: len(dims)], front.shape[len(dims) :]
    places = joined_indices(call, indices, extents)
    count = math.prod(places.shape)
    values = _indexed_first(call, places, dims, inner)
    flat = writer.reshape(front, (math.prod(extents), *inner))
    join = _added if call["accumulate"] else _put
    found = join(call, flat, writer.reshape(places, (count,)), writer.reshape(values, (count, *inner)))
    order = [*dims, *others]
    return writer.transpose(writer.reshape(found, front.shape), [order.index(dim) for dim in range(x.rank)])


def _indexed_first(call: Call, places: Value, dims: Sequence[int], inner: Sequence[int]) -> Value:
    """The values of indices, whose dims stand before all others."""
    writer, first = call.writer, dims[0]
    if list(dims) != list(range(first, first + len(dims))):
        first = 0
    values = writer.expand(call.tensor("values", call.dtype), (*inner[:first], *places.shape, *inner[first:]))
    of_places = range(first, first + places.rank)
    return writer.transpose(values, [*of_places, *(dim for dim in range(values.rank) if dim not in of_places)])


def _where(call: Call, x: Value, dim: int, mask: Value) -> Value:
    """One number for each place that a mask names."""
    writer, value = call.writer, call.tensor("values", x.dtype)
    if math.prod(value.shape) != 1:
        raise Unsupported(MASK)
    if call["accumulate"]:
        raise Unsupported("graphc adds at indices, not where a mask holds")
    mask = writer.reshape(mask, (*mask.shape, *[1] * (x.rank - dim - mask.rank)))
    return writer.select(mask, writer.reshape(value, ()), x)


TABLE: dict[str, Callable[[Call], Result]] = {
    "scatter": scatter,
    "scatter_add": scatter_add,
    "scatter_reduce": scatter_reduce,
    "index_put": index_put,
}
