"""Ops without operands, and dropout: constants, indices, random numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import PlanError
from ..plan import scalar
from ..random import Stream, blocks, draw, positions
from .base import Call, Port, Run, into, op


def elements(port: Port) -> Tensor:
    """The row-major positions in the whole of a shard's elements."""
    shape = tuple(port.tensor.shape)
    return positions(port.shape, port.origin, shape, port.tensor.device)


@op("constant")
def constant(call: Call) -> Run:
    """A small literal."""
    port, data = call.results[0], [scalar(value) for value in call.op["data"]]
    whole = torch.tensor(data, dtype=torch.float64, device=port.tensor.device)
    content = whole[elements(port).reshape(-1)].reshape(port.tensor.shape).to(port.tensor.dtype)
    return into(port.tensor, lambda: content)


@op("full")
def full(call: Call) -> Run:
    """One value everywhere."""
    result, value = call.result(), call.op.number("value")
    number = value if result.dtype.is_floating_point else int(value)

    def run() -> None:
        result.fill_(number)

    return run


@op("iota")
def iota(call: Call) -> Run:
    """The global index along a dim."""
    port, dim = call.results[0], call.op["dim"]
    if not 0 <= dim < len(port.shape):
        raise PlanError(f"there is no dim {dim} in {list(port.shape)}")
    extent = port.tensor.shape[dim]
    along = torch.arange(port.origin[dim], port.origin[dim] + extent, device=port.tensor.device)
    along = along.view([-1] + [1] * (len(port.shape) - 1 - dim))
    return into(port.tensor, lambda: along)


@op("random")
def random(call: Call) -> Run:
    """Random numbers, new each step."""
    port, clock, key = call.results[0], call.clock, call.op["key"]
    ((kind, numbers),) = call.op["distribution"].items()
    names = ("mean", "std") if kind == "normal" else ("low", "high")
    a, b = (scalar(numbers[name]) for name in names)
    return _drawn(port, lambda part: draw(kind, a, b, Stream(clock.seed, key, clock.step), part))


def _drawn(port: Port, numbers: Callable[[Tensor], Tensor]) -> Run:
    """Fills a register with what is drawn for the elements' places."""
    flat = port.tensor.view(-1)

    def run() -> None:
        for part, places in blocks(elements(port).reshape(-1)):
            flat[part] = numbers(places)

    return run


@op("dropout")
def dropout(call: Call) -> Run:
    """Random zeros, the rest scaled: an element is dropped where its number is below the probability."""
    x, port, clock = call.operand(0), call.results[0], call.clock
    probability, key = call.op.number("probability"), call.op["key"]
    if not call.op["training"] or probability <= 0.0:
        return into(port.tensor, lambda: x)
    source, result = x.reshape(-1), port.tensor.view(-1)

    def run() -> None:
        stream = Stream(clock.seed, key, clock.step)
        for part, places in blocks(elements(port).reshape(-1)):
            result[part] = drop(stream, places, probability, source[part])

    return run


def drop(stream: Stream, places: Tensor, probability: float, x: Tensor) -> Tensor:
    """What dropout makes of elements at these places of the whole tensor."""
    # Of whole numbers below 2^24: u < p 2^24.
    least = -int(-probability * 2**24 // 1)
    return torch.where(stream.integers(places) >= least, x / (1.0 - probability), 0.0)
