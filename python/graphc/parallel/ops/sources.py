"""Ops that make numbers: of one value, or random ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..text import Value
from .call import Call, Result, Unsupported


def filled(value: float | str, call: Call) -> Tensor:
    """A tensor of one value, of which only the shape depends on anything."""
    number = call[value] if isinstance(value, str) else value
    return torch.tensor(number, dtype=call.dtype).expand(call.shape)


def random(distribution: dict[str, Any], call: Call) -> Value:
    """Random numbers, new at each step and in each row of the whole batch; they are others than PyTorch would draw."""
    if not call.dtype.is_floating_point:
        raise Unsupported("graphc draws floating-point numbers alone: give integers with the batch")
    return _drawn(call, call.dtype, call.shape, distribution)


def integers(call: Call) -> Value:
    """Random integers of a range, new at each step."""
    writer = call.writer
    low, high = int(call["low"]) if "low" in call.arguments else 0, int(call["high"])
    if high - low > MOST_INTEGERS:
        raise Unsupported(f"graphc draws integers of a range of up to {MOST_INTEGERS}")
    drawn = writer.scale(_drawn(call, torch.float32, call.shape, UNIFORM), float(high - low))
    return writer.cast(writer.offset(writer.unary("floor", drawn), float(low)), call.dtype)


MOST_INTEGERS = 1 << 24
"""Integers of a range that a float32 tells apart."""


def bernoulli(call: Call) -> Value:
    """1 with a probability, else 0."""
    writer, probability = call.writer, call.tensor("p") if "p" in call.arguments else call.tensor("self")
    drawn = _drawn(call, torch.float32, call.shape, UNIFORM)
    return writer.cast(writer.binary("less", drawn, writer.cast(probability, torch.float32)), call.dtype)


UNIFORM, NORMAL = {"uniform": {"low": 0.0, "high": 1.0}}, {"normal": {"mean": 0.0, "std": 1.0}}


def _drawn(call: Call, dtype: torch.dtype, shape: tuple[int, ...], distribution: dict[str, Any]) -> Value:
    """Random numbers by a key that no other op has."""
    return call.writer.node("random", [], dtype, shape, distribution=distribution, key=len(call.writer.lines))


def dropout(call: Call) -> Result:
    """Random zeros in training."""
    x, probability = call.tensor("input"), float(call["p"])
    if not call["train"] or probability == 0.0:
        return (x, None)
    return (dropped(call, x, probability), None)


def dropped(call: Call, x: Value, probability: float) -> Value:
    """Zeros with this probability, by a key that no other op has."""
    if probability >= 1.0:
        raise Unsupported("graphc drops with a probability below 1")
    key = len(call.writer.lines)
    return call.writer.node("dropout", [x], x.dtype, x.shape, probability=probability, key=key, training=True)


TABLE: dict[str, Callable[[Call], Result]] = {
    "full_like": partial(filled, "fill_value"),
    "new_full": partial(filled, "fill_value"),
    "fill": partial(filled, "value"),
    **{name: partial(filled, 0.0) for name in ("zeros_like", "new_zeros", "empty_like")},
    **{name: partial(filled, 1.0) for name in ("ones_like", "new_ones")},
    **{name: partial(random, UNIFORM) for name in ("rand", "rand_like")},
    **{name: partial(random, NORMAL) for name in ("randn", "randn_like")},
    **{name: integers for name in ("randint", "randint_like")},
    "bernoulli": bernoulli,
    "native_dropout": dropout,
}
