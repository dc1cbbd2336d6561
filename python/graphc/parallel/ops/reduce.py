"""Reductions over dims."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from ..text import Value
from .call import Call, Result, Unsupported


def reduction(function: str, call: Call) -> Value:
    """A reduction over the dims that are named, or all."""
    x = call.tensor("self", call.dtype)
    found = call.writer.reduce(function, x, call.dims("dim", x.rank), bool(call.arguments.get("keepdim")))
    return call.writer.reshape(found, call.shape)


def variance(call: Call) -> Value:
    """The variance over dims, of which a number of elements is taken off the divisor."""
    return _spread(call)[0]


def _spread(call: Call) -> tuple[Value, Value]:
    """Variance and mean."""
    writer, x = call.writer, call.tensor("self")
    dims = call.dims("dim", x.rank)
    count = math.prod(x.shape[dim] for dim in dims)
    correction = call.arguments.get("correction")
    divisor = count - (1.0 if correction is None else float(correction))
    if divisor <= 0:
        raise Unsupported(f"the variance of {count} numbers has no divisor")
    mean = writer.reduce("mean", x, dims, keep=True)
    apart = writer.binary("sub", x, mean)
    squares = writer.reduce("sum", writer.binary("mul", apart, apart), dims, keep=True)
    return writer.reshape(writer.scale(squares, 1.0 / divisor), call.shape), writer.reshape(mean, call.shape)


def argmax(call: Call) -> Value:
    """The index of the greatest of a dim."""
    x = call.tensor("self")
    if call["dim"] is None:
        raise Unsupported("graphc has it of one dim")
    axis = call.dim("dim", x.rank)
    return call.writer.node("argmax", [x], torch.int64, call.shape, axis=axis, keep_dims=bool(call["keepdim"]))


def cumulative_sum(call: Call) -> Value:
    """Sums of all elements of a dim up to each; of a number there is one, itself."""
    x = call.tensor("self", call.dtype)
    if x.rank == 0:
        return x
    axis = call.dim("dim", x.rank)
    return call.writer.node("cumulative_sum", [x], call.dtype, call.shape, axis=axis, exclusive=False, reverse=False)


TABLE: dict[str, Callable[[Call], Result]] = {
    "sum": partial(reduction, "sum"),
    "mean": partial(reduction, "mean"),
    "amax": partial(reduction, "max"),
    "amin": partial(reduction, "min"),
    "var": variance,
    "var_mean": _spread,
    "argmax": argmax,
    "cumsum": cumulative_sum,
}
