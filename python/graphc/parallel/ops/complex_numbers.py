"""Ops of complex numbers, which graphc has not: each is a pair of tensors, and products of them are four."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Node

from ..text import Value, Writer
from . import elementwise, movement, products, reduce
from .call import Call, Unsupported

MOST_FACTORS = 8
"""The greatest power that is taken by products."""

COMPLEX = torch.complex64
"""The element type that is taken apart."""


@dataclass(frozen=True)
class Pair:
    """A tensor of complex numbers."""

    real: Value
    imaginary: Value


Find = Callable[[Node], Value | Pair]


class ComplexCall(Call):
    """A node of which some operand or the result is complex."""

    def __init__(self, writer: Writer, node: Node, find: Find) -> None:
        """The node's arguments, which are pairs where they are complex."""
        super().__init__(writer, node, self._first)
        self.node, self._find = node, find
        self._takes_real = True

    def _first(self, node: Node) -> Value:
        """The part of a node that is computed now; real numbers have an imaginary part of 0."""
        found = self._find(node)
        if isinstance(found, Pair):
            return found.real if self._takes_real else found.imaginary
        if self._takes_real or not found.dtype.is_floating_point:
            return found
        return self.writer.full(found.dtype, found.shape, 0.0)

    @property
    def dtype(self) -> torch.dtype:
        """The element type of the result, or of its parts."""
        return torch.float32 if self.result.dtype == COMPLEX else super().dtype

    def pair(self, name: str) -> Pair:
        """An argument: a tensor of complex or of real numbers, or a number."""
        given, writer = self.arguments[name], self.writer
        if isinstance(given, Node):
            found = self._find(given)
            return found if isinstance(found, Pair) else real_pair(writer, writer.cast(found, torch.float32))
        number = complex(given)
        return Pair(writer.full(torch.float32, (), number.real), writer.full(torch.float32, (), number.imag))

    def each(self, handler: Callable[[Call], object]) -> Pair | tuple[Pair, ...]:
        """An op that real and imaginary parts go through by themselves."""
        found = []
        for self._takes_real in (True, False):
            result = handler(self)
            found.append(result if isinstance(result, tuple) else (result,))
        pairs = tuple(Pair(real, imaginary) for real, imaginary in zip(*found, strict=True))
        return pairs if isinstance(result, tuple) else pairs[0]


Handler = Callable[[ComplexCall], Value | Pair | tuple[Pair, ...]]


def is_complex(node: Node) -> bool:
    """Whether a node takes or gives complex numbers."""
    values = [node.meta.get("val"), *(operand.meta.get("val") for operand in node.all_input_nodes)]
    return any(isinstance(value, Tensor) and value.dtype.is_complex for value in values)


def real_pair(writer: Writer, x: Value) -> Pair:
    """Real numbers as complex ones."""
    return Pair(x, writer.full(x.dtype, x.shape, 0.0))


def multiply(call: ComplexCall) -> Pair:
    """(a + bi) (c + di)."""
    return product(call.writer, call.pair("self"), call.pair("other"))


def matmul(call: ComplexCall) -> Pair:
    """The product of matrices, of which there are four."""
    x, y = call.pair("self"), call.pair(products.second_of(call))
    return product(call.writer, x, y, lambda a, b: products.matrix_product(call, a, b))


def power(call: ComplexCall) -> Pair:
    """A whole power, by products."""
    exponent, x = call.number("exponent"), call.pair("self")
    if exponent is None or exponent not in range(1, MOST_FACTORS + 1):
        raise Unsupported(f"graphc has whole powers from 1 to {MOST_FACTORS} of complex numbers")
    found = x
    for _ in range(int(exponent) - 1):
        found = product(call.writer, found, x)
    return found


def product(writer: Writer, x: Pair, y: Pair, multiply: Callable[[Value, Value], Value] | None = None) -> Pair:
    """(a + bi) (c + di) = (ac - bd) + (ad + bc) i, element by element where nothing else is said."""

    def times(a: Value, b: Value) -> Value:
        return multiply(a, b) if multiply is not None else writer.binary("mul", a, b)

    real = writer.binary("sub", times(x.real, y.real), times(x.imaginary, y.imaginary))
    return Pair(real, writer.binary("add", times(x.real, y.imaginary), times(x.imaginary, y.real)))


def divide(call: ComplexCall) -> Pair:
    """A product with the conjugate, by the square of the divisor's size."""
    call.require("rounding_mode", None)
    return _quotient(call.writer, call.pair("self"), call.pair("other"))


def reciprocal(call: ComplexCall) -> Pair:
    """One by a number."""
    one = call.writer.full(torch.float32, (), 1.0)
    return _quotient(call.writer, real_pair(call.writer, one), call.pair("self"))


def _quotient(writer: Writer, x: Pair, divisor: Pair) -> Pair:
    found = product(writer, x, _conjugate(writer, divisor))
    size = _squared(writer, divisor)
    return Pair(writer.binary("div", found.real, size), writer.binary("div", found.imaginary, size))


def conjugate(call: ComplexCall) -> Pair:
    """The same with the opposite imaginary part."""
    return _conjugate(call.writer, call.pair("self"))


def _conjugate(writer: Writer, x: Pair) -> Pair:
    return Pair(x.real, writer.scale(x.imaginary, -1.0))


def _squared(writer: Writer, x: Pair) -> Value:
    return writer.binary("add", writer.binary("mul", x.real, x.real), writer.binary("mul", x.imaginary, x.imaginary))


def size(call: ComplexCall) -> Value:
    """The distance from 0; nothing is learned where it is 0."""
    writer, squared = call.writer, _squared(call.writer, call.pair("self"))
    zero, one = (writer.full(squared.dtype, (), value) for value in (0.0, 1.0))
    is_zero = writer.binary("equal", squared, zero)
    return writer.select(is_zero, zero, writer.unary("sqrt", writer.select(is_zero, one, squared)))


def as_real(call: ComplexCall) -> Value:
    """Both parts, in a dim behind all others."""
    writer, x = call.writer, call.pair("self")
    return writer.concat([writer.reshape(part, (*part.shape, 1)) for part in (x.real, x.imaginary)], x.real.rank)


def as_complex(call: ComplexCall) -> Pair:
    """What the last dim has of both parts."""
    writer, x = call.writer, call.tensor("self")
    parts = [writer.reshape(writer.slice(x, x.rank - 1, place, place + 1), x.shape[:-1]) for place in (0, 1)]
    return Pair(*parts)


def of_parts(call: ComplexCall) -> Pair:
    """Of both parts."""
    return Pair(call.tensor("real"), call.tensor("imag"))


def polar(call: ComplexCall) -> Pair:
    """Of a size and an angle."""
    return _turned(call.writer, call.tensor("abs"), call.tensor("angle"))


def exponential(call: ComplexCall) -> Pair:
    """Of the size that the real part says, and with the imaginary part for an angle."""
    return _turned(call.writer, call.writer.unary("exp", call.pair("self").real), call.pair("self").imaginary)


def _turned(writer: Writer, length: Value, angle: Value) -> Pair:
    parts = [writer.binary("mul", length, writer.unary(function, angle)) for function in ("cos", "sin")]
    return Pair(*parts)


def cast(call: ComplexCall) -> Value | Pair:
    """Real numbers as complex ones, or the real part of these."""
    x = call.pair("self")
    return x if call.result.dtype == COMPLEX else call.writer.cast(x.real, call.dtype)


def added(function: str, call: ComplexCall) -> Pair:
    """A sum or a difference, of which one may be a number."""
    writer, alpha = call.writer, complex(call["alpha"])
    if alpha.imag != 0.0:
        raise Unsupported(f"graphc has it with a real alpha, not {call['alpha']}")
    x, y = call.pair("self"), call.pair("other")
    pairs = ((x.real, y.real), (x.imaginary, y.imaginary))
    return Pair(*(writer.binary(function, a, writer.scale(b, alpha.real)) for a, b in pairs))


def _parts(handler: Callable[[Call], object]) -> Handler:
    return lambda call: call.each(handler)


MOVED = {name: handler for name, handler in movement.TABLE.items() if name not in ("embedding", "topk", "sort")}
SUMMED = {name: reduce.TABLE[name] for name in ("sum", "mean", "cumsum")}
ALIKE = ("neg", "where", "clone", "alias", "lift_fresh_copy", "contiguous", "graphc.detach.default")
KEPT = {name: elementwise.TABLE[name] for name in ALIKE}

TABLE: dict[str, Handler] = {
    **{name: _parts(handler) for name, handler in (MOVED | SUMMED | KEPT).items()},
    "add": lambda call: added("add", call),
    "sub": lambda call: added("sub", call),
    "mul": multiply,
    "div": divide,
    "reciprocal": reciprocal,
    "pow": power,
    "exp": exponential,
    **{name: matmul for name in ("matmul", "mm", "bmm", "mv", "dot")},
    "_conj": conjugate,
    "conj_physical": conjugate,
    "abs": size,
    "view_as_real": as_real,
    "view_as_complex": as_complex,
    "complex": of_parts,
    "polar": polar,
    "_to_copy": cast,
}
