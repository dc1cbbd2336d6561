"""Ops over the last dim or one dim: softmax, normalization, cumulative sums, the greatest elements, rotary positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .base import HALVES, Call, Run, dim_of, into, op, sequence_places, wide

_ATEN: Any = torch.ops.aten


@op("softmax")
def softmax(call: Call) -> Run:
    """exp(x - max) / sum over a dim."""
    x, y, axis = call.operand(0), call.result(), dim_of(call.operands[0], call.op["axis"])
    return lambda: _done(torch.softmax(x, axis, out=y))


@op("log_softmax")
def log_softmax(call: Call) -> Run:
    """The logarithm of it."""
    x, y, axis = call.operand(0), call.result(), dim_of(call.operands[0], call.op["axis"])
    return lambda: _done(torch.log_softmax(x, axis, out=y))


@op("softmax_grad")
def softmax_grad(call: Call) -> Run:
    """(y, dy) -> y (dy - sum(y dy))."""
    y, dy, axis = call.operand(0), call.operand(1), dim_of(call.operands[0], call.op["axis"])
    return into(call.result(), lambda: _ATEN._softmax_backward_data(dy, y, axis, y.dtype))


@op("log_softmax_grad")
def log_softmax_grad(call: Call) -> Run:
    """(y, dy) -> dy - exp(y) sum(dy)."""
    y, dy, axis = call.operand(0), call.operand(1), dim_of(call.operands[0], call.op["axis"])
    return into(call.result(), lambda: _ATEN._log_softmax_backward_data(dy, y, axis, y.dtype))


def _done(_value: Any) -> None:
    """Nothing: the value is where it belongs."""


@op("normalize")
def normalize(call: Call) -> Run:
    """X -> (y, r) over the last dim: r = 1 / sqrt(mean((x - m)^2) + epsilon), y = (x - m) r."""
    x, y, r = call.operand(0), call.result(0), call.result(1)
    epsilon, center = call.op.number("epsilon"), call.op["center"]
    width = [x.shape[-1]]
    if center and x.dtype not in HALVES:

        def layer() -> None:
            found, _, roots = _ATEN.native_layer_norm(x, width, None, None, epsilon)
            y.copy_(found)
            r.copy_(roots)

        return layer

    def run() -> None:
        numbers = wide(x)
        numbers = numbers - numbers.mean(-1, keepdim=True) if center else numbers
        torch.rsqrt(numbers.square().mean(-1, keepdim=True).add_(epsilon), out=r)
        y.copy_(numbers * r)

    return run


@op("normalize_grad")
def normalize_grad(call: Call) -> Run:
    """(y, r, dy) -> r (dy - [center] mean(dy) - y mean(y dy))."""
    y, r, dy, dx = call.operand(0), call.operand(1), call.operand(2), call.result()
    width, center = [y.shape[-1]], call.op["center"]
    if center and y.dtype not in HALVES:
        zeros, ones = torch.zeros_like(r), torch.ones_like(r)

        def layer() -> None:
            mask = [True, False, False]
            found = _ATEN.native_layer_norm_backward(dy, y, width, zeros, ones, None, None, mask)[0]
            torch.mul(found, r, out=dx)

        return layer

    def run() -> None:
        given, numbers = wide(dy), wide(y)
        slope = given - numbers * (numbers * given).mean(-1, keepdim=True)
        dx.copy_((slope - given.mean(-1, keepdim=True) if center else slope) * r)

    return run


@op("cumulative_sum")
def cumulative_sum(call: Call) -> Run:
    """Each element is the sum of those before it along a dim and of itself."""
    x, y, axis = call.operand(0), call.result(), dim_of(call.operands[0], call.op["axis"])
    exclusive, reverse = call.op["exclusive"], call.op["reverse"]

    def compute() -> Tensor:
        lane = x.flip(axis) if reverse else x
        sums = torch.cumsum(lane, axis, dtype=torch.float32 if x.dtype in HALVES else x.dtype)
        if exclusive:
            sums = torch.cat([torch.zeros_like(sums.narrow(axis, 0, 1)), sums.narrow(axis, 0, sums.shape[axis] - 1)], axis)
        return sums.flip(axis) if reverse else sums

    return (lambda: None) if x.numel() == 0 else into(y, compute)


@op("top_k")
def top_k(call: Call) -> Run:
    """The greatest or least elements of each row and their places, the best first."""
    x, values, places = call.operand(0), call.result(0), call.result(1)
    count, greatest = call.op["count"], call.op["greatest"]

    def run() -> None:
        found, at = torch.sort(x, dim=-1, descending=greatest, stable=True)
        values.copy_(found[..., :count])
        places.copy_(at[..., :count])

    return run


@op("rotary")
def rotary(call: Call) -> Run:
    """Pairs of elements of a head turned by angles that grow with the position in the whole."""
    port, y, interleaved = call.operands[0], call.result(), call.op["interleaved"]
    x, width = port.tensor, port.shape[-1]
    local = x.shape[-1] // 2
    first = port.origin[-1] // 2 if interleaved else 0
    cos, sin = _angles(call, first, local, width)

    def run() -> None:
        numbers = wide(x)
        pairs = numbers.unflatten(-1, (local, 2)) if interleaved else numbers.unflatten(-1, (2, local))
        dim = -1 if interleaved else -2
        a, b = pairs.unbind(dim)
        y.copy_(torch.stack([a * cos - b * sin, a * sin + b * cos], dim).flatten(-2))

    return run


def _angles(call: Call, first: int, count: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [time, 1, pairs], computed in f64."""
    port, device = call.operands[0], call.operand(0).device
    pairs = torch.arange(first, first + count, dtype=torch.float64, device=device)
    base = torch.tensor(call.op.number("base"), dtype=torch.float64, device=device)
    frequency = base.pow(-2.0 * pairs / width)
    time = sequence_places(call.op, port, port.tensor.dim() - 3).double()
    angle = time.view(-1, 1, 1) * frequency
    angle = -angle if call.op["inverse"] else angle
    return angle.cos().float(), angle.sin().float()
