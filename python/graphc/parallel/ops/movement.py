"""Ops that put elements elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from ..text import Value
from .call import Call, Result, Unsupported

MASK = "how much a mask takes depends on its content: use torch.where, or let the mask be known, of tensors that are not in the batch"
"""Why a mask is no index."""


def reshape(call: Call) -> Value:
    """The same elements in the shape of the result."""
    return call.writer.reshape(call.tensor("self"), call.shape)


def permute(call: Call) -> Value:
    """Dims in another order."""
    x = call.tensor("self")
    return call.writer.transpose(x, [dim % x.rank for dim in call["dims"]])


def transpose(call: Call) -> Value:
    """Two dims exchanged; without names the last two."""
    x = call.tensor("self")
    first, second = (call.dim("dim0", x.rank), call.dim("dim1", x.rank)) if "dim0" in call.arguments else (0, 1)
    return exchanged(call, x, first, second) if x.rank > 1 else x


def exchanged(call: Call, x: Value, first: int, second: int) -> Value:
    """Two dims exchanged."""
    order = list(range(x.rank))
    order[first], order[second] = order[second], order[first]
    return call.writer.transpose(x, order)


def expand(call: Call) -> Value:
    """Dims of extent 1, and missing ones, repeated."""
    return call.writer.expand(call.tensor("self"), call.shape)


def repeat(call: Call) -> Value:
    """The whole, several times along each dim."""
    x, repeats = call.tensor("self"), list(call["repeats"])
    shape = [1] * (len(repeats) - x.rank) + list(x.shape)
    apart = call.writer.reshape(x, [extent for dim in shape for extent in (1, dim)])
    grown = call.writer.expand(apart, [extent for times, dim in zip(repeats, shape, strict=True) for extent in (times, dim)])
    return call.writer.reshape(grown, call.shape)


def slice_(call: Call) -> Value:
    """A range of a dim."""
    x = call.tensor("self")
    dim = call.dim("dim", x.rank)
    start, end = bounds(call, x.shape[dim])
    return call.writer.slice(x, dim, start, end, int(call["step"]))


def bounds(call: Call, extent: int) -> tuple[int, int]:
    """Where a range begins and ends, within a dim."""
    start, end, _ = slice(call["start"], call["end"]).indices(extent)
    return start, max(start, end)


def select(call: Call) -> Value:
    """One element of a dim, which goes."""
    x = call.tensor("self")
    dim = call.dim("dim", x.rank)
    index = int(call["index"]) % x.shape[dim]
    return call.writer.reshape(call.writer.slice(x, dim, index, index + 1), call.shape)


def split(call: Call) -> Result:
    """Parts of given extents along a dim."""
    x = call.tensor("self")
    dim = call.dim("dim", x.rank)
    sizes = list(call["split_sizes"])
    results = [(x.dtype, [*x.shape[:dim], size, *x.shape[dim + 1 :]]) for size in sizes]
    return call.writer.nodes("split", [x], results, axis=dim, sizes=sizes)


def concat(call: Call) -> Value:
    """Tensors one after the other."""
    parts = [part for part in call.tensors("tensors") if part.shape != (0,)]
    dim = call.dim("dim", len(call.shape))
    return call.writer.concat([call.writer.cast(part, call.dtype) for part in parts], dim)


def pad(call: Call) -> Value:
    """A border of one value, where it is negative less."""
    writer, x, given = call.writer, call.tensor("self"), list(call["pad"])
    low, high = [0] * x.rank, [0] * x.rank
    for index in range(len(given) // 2):
        low[x.rank - 1 - index], high[x.rank - 1 - index] = given[2 * index], given[2 * index + 1]
    for dim in range(x.rank):
        x = writer.slice(x, dim, max(0, -low[dim]), x.shape[dim] - max(0, -high[dim]))
    low, high = [max(0, extent) for extent in low], [max(0, extent) for extent in high]
    value = float(call["value"] or 0.0)
    if not any(low) and not any(high):
        return x
    return writer.node("pad", [x], x.dtype, call.shape, low=low, high=high, interior=[0] * x.rank, value=value)


def slice_scatter(call: Call) -> Value:
    """A range of a dim in the place of what was there."""
    x, part = call.tensor("self"), call.tensor("src")
    dim = call.dim("dim", x.rank)
    start, end = bounds(call, x.shape[dim])
    call.require("step", 1)
    return _between(call, x, part, dim, start, end)


def select_scatter(call: Call) -> Value:
    """One element of a dim in the place of what was there."""
    x, part = call.tensor("self"), call.tensor("src")
    dim = call.dim("dim", x.rank)
    index = int(call["index"]) % x.shape[dim]
    shape = [*x.shape[:dim], 1, *x.shape[dim + 1 :]]
    return _between(call, x, call.writer.reshape(part, shape), dim, index, index + 1)


def _between(call: Call, x: Value, part: Value, dim: int, start: int, end: int) -> Value:
    writer = call.writer
    parts = [writer.slice(x, dim, 0, start), writer.cast(part, x.dtype), writer.slice(x, dim, end, x.shape[dim])]
    return writer.concat([part for part in parts if part.shape[dim] > 0], dim)


def copy(call: Call) -> Value:
    """A tensor of another's type and shape."""
    return call.writer.expand(call.tensor("src", call.dtype), call.shape)


def embedding(call: Call) -> Value:
    """Rows of a table; the row of padding learns nothing."""
    writer, weight = call.writer, call.tensor("weight")
    if call["scale_grad_by_freq"]:
        raise Unsupported("graphc does not divide gradients by how often a row is looked up: leave out scale_grad_by_freq")
    indices = call.tensor("indices", torch.int64)
    rows = writer.node("embedding", [weight, indices], weight.dtype, call.shape)
    padding = int(call["padding_idx"])
    if padding < 0:
        return rows
    is_padding = writer.binary("equal", indices, writer.full(torch.int64, (), padding))
    return writer.select(writer.reshape(is_padding, (*indices.shape, 1)), writer.unary("detach", rows), rows)


def as_strided(call: Call) -> Value:
    """All elements in another shape, in their order, however they lie in memory; other strides have no translation."""
    x, expected = call.tensor("self"), 1
    for extent, stride in reversed(list(zip(call["size"], call["stride"], strict=True))):
        if extent > 1 and stride != expected:
            raise Unsupported("its strides are not those of a tensor that lies as a whole")
        expected *= extent
    if math.prod(x.shape) != math.prod(call.shape) or call["storage_offset"]:
        raise Unsupported("it takes a part of a tensor")
    return call.writer.reshape(x, call.shape)


def index(call: Call) -> Value:
    """Elements by indices of any shape, which count from the end where they are negative, of one dim or of several."""
    x, given = call.tensor("self"), call["indices"]
    dims = [dim for dim, one in enumerate(given) if one is not None]
    indices = [call.value(given[dim]) for dim in dims]
    if any(one.dtype == torch.bool for one in indices):
        raise Unsupported(MASK)
    if dims != list(range(dims[0], dims[0] + len(dims))):
        # Dims of indices that are no neighbours come first in the result.
        x = call.writer.transpose(x, [*dims, *(dim for dim in range(x.rank) if dim not in dims)])
        dims = list(range(len(dims)))
    extents = [x.shape[dim] for dim in dims]
    places = joined_indices(call, indices, extents)
    shape = (*x.shape[: dims[0]], math.prod(extents), *x.shape[dims[-1] + 1 :])
    return _looked_up(call, call.writer.reshape(x, shape), dims[0], places)


def joined_indices(call: Call, indices: Sequence[Value], extents: Sequence[int]) -> Value:
    """Places in dims that have become one, of indices of each."""
    writer, (found, *others) = call.writer, [_from_start(call, one, extent) for one, extent in zip(indices, extents, strict=True)]
    for one, extent in zip(others, extents[1:], strict=True):
        rows = writer.binary("mul", found, writer.full(torch.int64, (), extent))
        found = writer.binary("add", rows, one)
    return found


def _from_start(call: Call, indices: Value, extent: int) -> Value:
    """Indices of which those that are negative count from the end."""
    writer = call.writer
    indices = writer.cast(indices, torch.int64)
    is_negative = writer.binary("less", indices, writer.full(torch.int64, (), 0))
    return writer.select(is_negative, writer.binary("add", indices, writer.full(torch.int64, (), extent)), indices)


def index_select(call: Call) -> Value:
    """Elements of one dim, by a list of indices."""
    x = call.tensor("self")
    return _looked_up(call, x, call.dim("dim", x.rank), call.tensor("index"))


def _looked_up(call: Call, x: Value, dim: int, indices: Value) -> Value:
    """Elements of a dim, with the dims of the indices in its place."""
    if indices.dtype == torch.bool:
        raise Unsupported(MASK)
    writer, count = call.writer, math.prod(indices.shape)
    front = writer.transpose(x, [dim, *(other for other in range(x.rank) if other != dim)])
    places = writer.reshape(writer.cast(indices, torch.int64), (count,))
    taken = writer.node("gather", [front, places], x.dtype, (count, *front.shape[1:]))
    whole = writer.reshape(taken, (*indices.shape, *front.shape[1:]))
    order = [*range(indices.rank, indices.rank + dim), *range(indices.rank), *range(indices.rank + dim, whole.rank)]
    return writer.transpose(whole, order)


def gather(call: Call) -> Value:
    """Elements at places of a dim, for each element around."""
    x, places = call.tensor("self"), call.tensor("index", torch.int64)
    dim = call.dim("dim", x.rank)
    writer = call.writer
    for other in range(x.rank):
        if other != dim:
            x = writer.slice(x, other, 0, places.shape[other])
    last = x.rank - 1
    moved = exchanged(call, x, dim, last), exchanged(call, places, dim, last)
    taken = writer.node("gather", moved, x.dtype, moved[1].shape)
    return exchanged(call, taken, dim, last)


def top_k(call: Call) -> Result:
    """The greatest or least elements of a dim, the best first, and their places."""
    return _best(call, int(call["k"]), bool(call["largest"]))


def sort(call: Call) -> Result:
    """All elements of a dim in order, and their places: of those that are alike the first one comes first."""
    x = call.tensor("self")
    return _best(call, x.shape[call.dim("dim", x.rank)], bool(call["descending"]))


def _best(call: Call, count: int, greatest: bool) -> Result:
    writer, x = call.writer, call.tensor("self")
    dim, last = call.dim("dim", x.rank), x.rank - 1
    turned = exchanged(call, x, dim, last)
    shape = (*turned.shape[:-1], count)
    results = [(x.dtype, shape), (torch.int64, shape)]
    values, places = writer.nodes("top_k", [turned], results, count=count, greatest=greatest)
    return (exchanged(call, values, dim, last), exchanged(call, places, dim, last))


TABLE: dict[str, Callable[[Call], Result]] = {
    **{name: reshape for name in ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "flatten")},
    "permute": permute,
    "transpose": transpose,
    "t": transpose,
    "expand": expand,
    "repeat": repeat,
    "slice": slice_,
    "select": select,
    "split_with_sizes": split,
    "cat": concat,
    "constant_pad_nd": pad,
    "slice_scatter": slice_scatter,
    "select_scatter": select_scatter,
    "copy": copy,
    "embedding": embedding,
    "as_strided": as_strided,
    "index": index,
    "index_select": index_select,
    "gather": gather,
    "topk": top_k,
    "sort": sort,
}
