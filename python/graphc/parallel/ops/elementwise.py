"""Ops element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from ..text import COMPARISONS, Value
from .call import Call, Result, Unsupported


def unary(function: str, call: Call) -> Value:
    """A function of one operand, which it takes in the result's element type."""
    return call.writer.unary(function, call.tensor("self", call.dtype))


def binary(function: str, call: Call) -> Value:
    """A function of two operands; the second may be a number."""
    dtype = _common_dtype(call) if function in COMPARISONS else call.dtype
    if function in ("and", "or") and dtype != torch.bool:
        if dtype.is_floating_point:
            raise Unsupported("graphc has it of truth values and integers alone")
        function = f"bit_{function}"
    return call.writer.binary(function, call.tensor("self", dtype), call.tensor("other", dtype))


def add(call: Call) -> Value:
    """Self + alpha other."""
    return _sum(call, float(call["alpha"]))


def subtract(call: Call) -> Value:
    """Self - alpha other."""
    return _sum(call, -float(call["alpha"]))


def reverse_subtract(call: Call) -> Value:
    """Other - alpha self."""
    negated = call.writer.scale(call.tensor("self", call.dtype), -float(call["alpha"]))
    return call.writer.binary("add", call.tensor("other", call.dtype), negated)


def _sum(call: Call, factor: float) -> Value:
    writer, x, number = call.writer, call.tensor("self", call.dtype), call.number("other")
    if number is not None and call.dtype.is_floating_point:
        return writer.offset(x, factor * number)
    other = call.tensor("other", call.dtype)
    if call.dtype == torch.bool:
        return writer.binary("or", x, other)
    if factor == -1.0:
        return writer.binary("sub", x, other)
    return writer.binary("add", x, writer.scale(other, factor))


def multiply(call: Call) -> Value:
    """A product."""
    number = call.number("other")
    if number is not None and call.dtype.is_floating_point:
        return call.writer.scale(call.tensor("self", call.dtype), number)
    return binary("and" if call.dtype == torch.bool else "mul", call)


def divide(call: Call) -> Value:
    """A quotient, rounded as it is asked for."""
    writer, mode = call.writer, call.arguments.get("rounding_mode")
    found = binary("div", call)
    if not call.dtype.is_floating_point:
        return found if mode == "trunc" else _rounded_down(call, found)
    if mode == "trunc":
        is_negative = writer.binary("less", found, writer.full(found.dtype, (), 0.0))
        return writer.select(is_negative, writer.unary("ceil", found), writer.unary("floor", found))
    return writer.unary("floor", found) if mode == "floor" else found


def _rounded_down(call: Call, quotient: Value) -> Value:
    """The quotient of integers that is rounded down, of the one that is rounded towards 0."""
    writer, zero = call.writer, call.writer.full(call.dtype, (), 0)
    self, other = call.tensor("self", call.dtype), call.tensor("other", call.dtype)
    left = writer.binary("sub", self, writer.binary("mul", quotient, other))
    signs = [writer.binary("less", part, zero) for part in (left, other)]
    differs = writer.binary("and", writer.binary("not_equal", left, zero), writer.binary("not_equal", *signs))
    return writer.binary("sub", quotient, writer.cast(differs, call.dtype))


def power(call: Call) -> Value:
    """A power, of which either may be a number."""
    writer, exponent = call.writer, call.number("exponent")
    if exponent is not None:
        x = call.tensor("self", call.dtype)
        if not call.dtype.is_floating_point:
            return _power_of_integers(call, x, int(exponent))
        return writer.binary("mul", x, x) if exponent == 2 else writer.unary({"pow_scalar": exponent}, x)
    base = call.number("self")
    if base is not None and base > 0:
        return writer.unary("exp", writer.scale(call.tensor("exponent", call.dtype), math.log(base)))
    return writer.binary("pow", call.tensor("self", call.dtype), call.tensor("exponent", call.dtype))


def _power_of_integers(call: Call, x: Value, exponent: int) -> Value:
    """As many factors, by squares."""
    writer, found = call.writer, call.writer.full(x.dtype, x.shape, 1)
    for bit in f"{exponent:b}":
        found = writer.binary("mul", found, found)
        found = writer.binary("mul", found, x) if bit == "1" else found
    return found


def clamp(call: Call) -> Value:
    """Bounds below and above."""
    low, high = (math.inf * sign if call[name] is None else float(call[name]) for name, sign in (("min", -1), ("max", 1)))
    x = call.tensor("self", call.dtype)
    if not call.dtype.is_floating_point:
        for function, bound in (("max", low), ("min", high)):
            x = call.writer.binary(function, x, call.writer.full(call.dtype, (), bound)) if math.isfinite(bound) else x
        return x
    return call.writer.unary({"clip": {"low": low, "high": high}}, x)


def hardtanh(call: Call) -> Value:
    """Bounds below and above, as of ReLU6: nothing is learned at the bounds."""
    writer, x = call.writer, call.tensor("self", call.dtype)
    low, high = float(call["min_val"]), float(call["max_val"])
    bounds = [writer.full(call.dtype, (), bound) for bound in (low, high)]
    between = writer.binary("and", writer.binary("greater", x, bounds[0]), writer.binary("less", x, bounds[1]))
    return writer.select(between, x, writer.unary("detach", writer.unary({"clip": {"low": low, "high": high}}, x)))


def gelu(call: Call) -> Value:
    """GELU, or its approximation."""
    return unary("gelu_tanh" if call["approximate"] == "tanh" else "gelu", call)


def leaky_relu(call: Call) -> Value:
    """max(x, 0) + slope min(x, 0)."""
    writer, x = call.writer, call.tensor("self")
    slope = float(call["negative_slope"])
    return writer.binary("add", writer.scale(writer.unary("relu", x), 1.0 - slope), writer.scale(x, slope))


def where(call: Call) -> Value:
    """A choice."""
    dtype = call.dtype
    return call.writer.select(call.tensor("condition", torch.bool), call.tensor("self", dtype), call.tensor("other", dtype))


def negate_truth(call: Call) -> Value:
    """Logical negation."""
    return call.writer.unary("not", call.tensor("self", torch.bool))


def bitwise_not(call: Call) -> Value:
    """Logical negation of truth values; of an integer all other bits."""
    if call.dtype == torch.bool:
        return negate_truth(call)
    if not call.dtype.is_signed:
        raise Unsupported("graphc has it of truth values and of integers with a sign")
    return call.writer.binary("sub", call.writer.full(call.dtype, (), -1), call.tensor("self", call.dtype))


def logical(function: str, call: Call) -> Value:
    """A function of truth values."""
    return call.writer.binary(function, call.tensor("self", torch.bool), call.tensor("other", torch.bool))


def cast(call: Call) -> Value:
    """Another element type."""
    return call.tensor("self", call.dtype)


def same(call: Call) -> Value:
    """The same tensor: memory is the plan's affair."""
    return call.tensor("self")


def detach(call: Call) -> Value:
    """The same numbers, of which nothing is learned."""
    x = call.tensor("x")
    return call.writer.unary("detach", x) if x.dtype.is_floating_point else x


def _common_dtype(call: Call) -> torch.dtype:
    """The element type in which two operands are compared."""
    given = [call.arguments[name] for name in ("self", "other")]
    examples: list[Any] = [
        torch.empty(part.meta["val"].shape, dtype=part.meta["val"].dtype, device="meta") if isinstance(part, Node) else part
        for part in given
    ]
    return torch.result_type(*examples)


def _of(function: Callable[[str, Call], Value], names: dict[str, str]) -> dict[str, Callable[[Call], Result]]:
    return {aten: partial(function, own) for aten, own in names.items()}


UNARY = {
    name: name for name in ("relu", "sigmoid", "tanh", "silu", "exp", "log", "sqrt", "rsqrt", "abs", "neg", "sign", "erf", "sin", "cos")
}
UNARY |= {name: name for name in ("floor", "ceil", "round", "reciprocal")}
BINARY = {"maximum": "max", "minimum": "min", "bitwise_and": "and", "bitwise_or": "or"}
BINARY |= {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}

TABLE: dict[str, Callable[[Call], Result]] = {
    **_of(unary, UNARY),
    **_of(binary, BINARY),
    **_of(logical, {"logical_and": "and", "logical_or": "or", "logical_xor": "not_equal"}),
    "add": add,
    "sub": subtract,
    "rsub": reverse_subtract,
    "mul": multiply,
    "div": divide,
    "pow": power,
    "clamp": clamp,
    "hardtanh": hardtanh,
    "gelu": gelu,
    "leaky_relu": leaky_relu,
    "where": where,
    "logical_not": negate_truth,
    "bitwise_not": bitwise_not,
    "_to_copy": cast,
    **{name: same for name in ("clone", "alias", "lift_fresh_copy", "contiguous", "detach_")},
    "prims.copy_strided.default": lambda call: call.tensor("a"),
    "graphc.detach.default": detach,
}
