"""Elementwise ops, reductions, and chains of both.

An elementwise op is a function of tensors that writes into ``out`` where it is given one. A chain becomes the source of one Python
function, whose steps write into results, or into values that no later step reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import PlanError
from ..plan import Op, scalar
from .base import EIGHTS, HALVES, TORCH, Call, Run, op, overlap, same_memory

Function = Callable[..., Tensor]
"""A function of tensors with an ``out`` that may be left out."""

_NN: Any = torch._C._nn

PLAIN: dict[str, Function] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": _NN.silu,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "abs": torch.abs,
    "neg": torch.neg,
    "sign": torch.sign,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "reciprocal": torch.reciprocal,
    "detach": lambda x, out=None: x.clone() if out is None else out.copy_(x),
    "not": torch.logical_not,
}
"""Functions of one operand that PyTorch has as they are."""

BINARY: dict[str, Function] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "equal": torch.eq,
    "not_equal": torch.ne,
    "less": torch.lt,
    "less_equal": torch.le,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "bit_and": torch.bitwise_and,
    "bit_or": torch.bitwise_or,
    "bit_xor": torch.bitwise_xor,
}
"""Functions of two operands that PyTorch has as they are."""

LOGIC = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "and", "or"}
"""Those that give truth values."""

ROUND_FLOAT8 = {"round_float8": torch.float8_e4m3fn, "round_float8_e5m2": torch.float8_e5m2}
"""The functions of a number and of the greatest size that give numbers of 8 bits, and their types."""


def function(of: Op, dtype: torch.dtype) -> Function:
    """The function of an elementwise op on operands of a type.

    Raises:
        PlanError: where it is none.
    """
    if of.name == "unary":
        return unary(of["function"], dtype)
    if of.name == "binary":
        return binary(of["function"], dtype)
    if of.name == "where":
        return torch.where
    if of.name == "cast":
        return cast(dtype, TORCH[of["dtype"]])
    raise PlanError(f"the op `{of.name}` is no elementwise op that this version has")


def unary(name: Any, dtype: torch.dtype) -> Function:
    """A function of one operand: a name, or an object of a name and its numbers."""
    if isinstance(name, dict):
        ((name, numbers),) = name.items()
        return _with_numbers(name, numbers, dtype)
    if name == "relu":
        return lambda x, out=None: torch.clamp_min(x, 0, out=out)
    if name in ("gelu", "gelu_tanh"):
        form = "tanh" if name == "gelu_tanh" else "none"
        gelu: Function = lambda x, out=None: _NN.gelu(x, approximate=form, out=out)  # noqa: E731
        return gelu
    if name not in PLAIN:
        raise PlanError(f"`{name}` is no function of one operand that this version has")
    return PLAIN[name]


def _with_numbers(name: str, numbers: Any, dtype: torch.dtype) -> Function:
    if name == "clip":
        low, high = _bound(scalar(numbers["low"]), dtype), _bound(scalar(numbers["high"]), dtype)
        return lambda x, out=None: torch.clamp(x, low, high, out=out)
    by = _whole(scalar(numbers), dtype)
    if name == "scale":
        return lambda x, out=None: torch.mul(x, by, out=out)
    if name == "offset":
        return lambda x, out=None: torch.add(x, by, out=out)
    if name == "pow_scalar":
        return lambda x, out=None: torch.pow(x, by, out=out)
    raise PlanError(f"`{name}` is no function of one operand that this version has")


def _whole(value: float, dtype: torch.dtype) -> float:
    """A number as arithmetic with this type takes it."""
    return value if dtype.is_floating_point else int(value)


def _bound(value: float, dtype: torch.dtype) -> float:
    if dtype.is_floating_point or math.isfinite(value):
        return _whole(value, dtype)
    limits = torch.iinfo(dtype)
    return limits.max if value > 0 else limits.min


def binary(name: str, dtype: torch.dtype) -> Function:
    """A function of two operands of a type."""
    if name == "div":
        return torch.div if dtype.is_floating_point else _divide_whole
    if name == "pow":
        return torch.pow if dtype.is_floating_point else _power_whole
    if name in ROUND_FLOAT8:
        return partial(_round_float8, ROUND_FLOAT8[name])
    if name not in BINARY:
        raise PlanError(f"`{name}` is no function of two operands that this version has")
    return BINARY[name]


def float8_scale(greatest: Tensor, dtype: torch.dtype) -> Tensor:
    """The greatest power of two that keeps numbers up to this size within the greatest of a type: 448, or 57344 of ``float8_e5m2``."""
    mantissa, exponent = torch.frexp(greatest.clamp(min=1e-12))
    top = 9 if dtype is torch.float8_e4m3fn else 16
    power = torch.ldexp(torch.ones_like(mantissa), top - exponent - (mantissa > 0.875).to(exponent.dtype))
    return torch.where(torch.isfinite(greatest), power, 1.0)


def _round_float8(dtype: torch.dtype, x: Tensor, greatest: Tensor, out: Tensor | None = None) -> Tensor:
    """The numbers of 8 bits nearest to these times their scale."""
    limit = torch.finfo(dtype).max
    scaled = (x.float() * float8_scale(greatest.float(), dtype)).clamp_(-limit, limit)
    return scaled.to(dtype) if out is None else out.copy_(scaled)


def _divide_whole(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    if b.device.type == "cpu" and bool((b == 0).any()):
        raise ZeroDivisionError("an integer is divided by 0")
    return torch.div(a, b, rounding_mode="trunc", out=out)


def _power_whole(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    power = cast(torch.float64, a.dtype)(torch.pow(a.double(), b.double()))
    return power if out is None else out.copy_(power)


def cast(start: torch.dtype, to: torch.dtype) -> Function:
    """Another element type: floats are truncated to integers, which wrap; to bool whether not 0."""
    narrow = start.is_floating_point and to in (torch.uint8, torch.int32, torch.int64)
    if to in EIGHTS:
        greatest = torch.finfo(to).max
        return lambda x, out=None: x.clamp(-greatest, greatest).to(to) if out is None else out.copy_(x.clamp(-greatest, greatest))

    def run(x: Tensor, out: Tensor | None = None) -> Tensor:
        value = torch.nan_to_num(x, nan=0.0).to(torch.int64) if narrow else x
        return value.to(to, copy=True) if out is None else out.copy_(value)

    return run


def result_type(of: Op, operands: list[torch.dtype]) -> torch.dtype:
    """The element type of an elementwise op's result."""
    if of.name == "cast":
        return TORCH[of["dtype"]]
    if of.name == "binary" and of["function"] in LOGIC:
        return torch.bool
    if of.name == "binary" and of["function"] in ROUND_FLOAT8:
        return ROUND_FLOAT8[of["function"]]
    return operands[-1] if of.name == "where" else operands[0]


def _single(call: Call) -> Run:
    result, operands = call.result(), [port.tensor for port in call.operands]
    compute = function(call.op, operands[0].dtype)
    if any(overlap(operand, result) and not same_memory(operand, result) for operand in operands):
        return lambda: _copied(result, compute(*operands))
    if len(operands) == 1:
        (only,) = operands
        return lambda: _done(compute(only, out=result))
    if len(operands) == 2:
        a, b = operands
        return lambda: _done(compute(a, b, out=result))
    return lambda: _done(compute(*operands, out=result))


for _name in ("unary", "binary", "where", "cast"):
    op(_name)(_single)


def _done(_value: Tensor) -> None:
    """Nothing: the value is where it belongs."""


def _copied(result: Tensor, value: Tensor) -> None:
    result.copy_(value)


def reduction(of: Op, local: tuple[int, ...], shape: tuple[int, ...], dtype: torch.dtype) -> Function:
    """A reduction of a part of a tensor: a mean divides by the extents of the whole."""
    name, axes, keep = of["function"], tuple(of["axes"]), of["keep_dims"]
    if name not in ("sum", "mean", "max", "min", "max_abs"):
        raise PlanError(f"`{name}` is no reduction that this version has")
    if any(axis >= len(shape) for axis in axes):
        raise PlanError(f"there are no dims {list(axes)} in {list(shape)}")
    if name == "max_abs":
        return _greatest_size(axes, keep, local)
    if not axes:
        return lambda x, out=None: x.clone() if out is None else out.copy_(x)
    if name in ("sum", "mean"):
        count = math.prod(shape[axis] for axis in axes)
        return _sum(axes, keep, count if name == "mean" else 1, dtype, local == shape)
    if 0 in local:
        return _identity(name, axes, keep, local, dtype)
    extreme = torch.amax if name == "max" else torch.amin
    return lambda x, out=None: extreme(x, axes, keep, out=out)


def _greatest_size(axes: tuple[int, ...], keep: bool, local: tuple[int, ...]) -> Function:
    if not axes:
        return torch.abs
    if 0 in local:
        return _fill(0.0, axes, keep, local)
    return lambda x, out=None: torch.linalg.vector_norm(x, math.inf, axes, keep, out=out)


def _sum(axes: tuple[int, ...], keep: bool, count: int, dtype: torch.dtype, whole: bool) -> Function:
    if count == 1:
        return lambda x, out=None: torch.sum(x, axes, keep, dtype=dtype, out=out)
    if whole:
        return lambda x, out=None: torch.mean(x, axes, keep, out=out)
    precise = torch.float32 if dtype in HALVES else dtype

    def mean(x: Tensor, out: Tensor | None = None) -> Tensor:
        value = torch.sum(x, axes, keep, dtype=precise).div_(count)
        return value.to(dtype) if out is None else out.copy_(value)

    return mean


def _identity(name: str, axes: tuple[int, ...], keep: bool, local: tuple[int, ...], dtype: torch.dtype) -> Function:
    sign = -1.0 if name == "max" else 1.0
    value = sign * math.inf if dtype.is_floating_point else _bound(sign * math.inf, dtype)
    return _fill(value, axes, keep, local)


def _fill(value: float, axes: tuple[int, ...], keep: bool, local: tuple[int, ...]) -> Function:
    kept = [1 if dim in axes else extent for dim, extent in enumerate(local)]
    shape = kept if keep else [extent for dim, extent in enumerate(local) if dim not in axes]

    def fill(x: Tensor, out: Tensor | None = None) -> Tensor:
        full = x.new_full(shape, value)
        return full if out is None else out.copy_(full)

    return fill


@op("reduce")
def reduce(call: Call) -> Run:
    """The sum, mean, greatest or least over dims."""
    x, y = call.operand(0), call.result()
    compute = reduction(call.op, tuple(x.shape), call.operands[0].shape, x.dtype)
    return lambda: _done(compute(x, out=y))


@op("argmax")
def argmax(call: Call) -> Run:
    """The index of the greatest along a dim, the first where several are."""
    x, y, axis, keep = call.operand(0), call.result(), call.op["axis"], call.op["keep_dims"]
    if x.dtype == torch.bool:
        return lambda: _copied(y, torch.argmax(x.to(torch.uint8), axis, keep))
    return lambda: _done(torch.argmax(x, axis, keep, out=y))
