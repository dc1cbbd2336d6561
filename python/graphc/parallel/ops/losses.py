"""Losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..text import Value
from .call import Call, Result, Unsupported

IGNORED = -100
"""The label that graphc ignores."""

NONE, MEAN, SUM = 0, 1, 2
"""How ATen numbers reductions."""


def cross_entropy(call: Call) -> Value:
    """Cross entropy of logits and labels; classes are dim 1, of one sample dim 0."""
    writer, scores = call.writer, call.tensor("self")
    call.require("weight", None)
    target = call.tensor("target")
    if target.dtype.is_floating_point:
        raise Unsupported("graphc has it of labels, not of probabilities")
    labels = _ignoring(call, target)
    dim = 0 if scores.rank == 1 else 1
    last = writer.transpose(scores, [*(other for other in range(scores.rank) if other != dim), dim])
    smoothing = float(call["label_smoothing"])
    attributes: dict[str, Any] = {"smoothing": smoothing} if smoothing else {}
    results = [(torch.float32, labels.shape)] * 2
    each, _ = writer.nodes("cross_entropy", [last, labels], results, **attributes)
    return writer.cast(_over_labels(call, each, labels), call.dtype)


def nll(call: Call) -> Result:
    """Minus the log-probability of labels."""
    writer, scores = call.writer, call.tensor("self")
    call.require("weight", None)
    labels = _ignoring(call, call.tensor("target"))
    dim = 0 if scores.rank == 1 else 1
    last = writer.transpose(scores, [*(other for other in range(scores.rank) if other != dim), dim])
    picked = writer.node("pick", [last, labels], last.dtype, labels.shape)
    return (_over_labels(call, writer.scale(picked, -1.0), labels), None)


def mse(call: Call) -> Value:
    """Squared differences."""
    writer = call.writer
    apart = writer.binary("sub", call.tensor("self", call.dtype), call.tensor("target", call.dtype))
    squares = writer.binary("mul", apart, apart)
    return (
        squares
        if call["reduction"] == NONE
        else writer.reduce("mean" if call["reduction"] == MEAN else "sum", squares, range(squares.rank))
    )


def _ignoring(call: Call, labels: Value) -> Value:
    """Labels as graphc has them, whichever is ignored."""
    writer, ignored = call.writer, int(call["ignore_index"])
    labels = writer.cast(labels, torch.int64)
    if ignored == IGNORED:
        return labels
    passed = writer.binary("equal", labels, writer.full(torch.int64, (), ignored))
    return writer.select(passed, writer.full(torch.int64, labels.shape, IGNORED), labels)


def _over_labels(call: Call, each: Value, labels: Value) -> Value:
    """The reduction of a loss over the labels that are not ignored."""
    writer, axes = call.writer, range(each.rank)
    if call["reduction"] == NONE:
        return each
    total = writer.reduce("sum", each, axes)
    if call["reduction"] == SUM:
        return total
    counted = writer.binary("not_equal", labels, writer.full(torch.int64, (), IGNORED))
    return writer.binary("div", total, writer.reduce("sum", writer.cast(counted, each.dtype), axes))


TABLE: dict[str, Callable[[Call], Result]] = {
    "cross_entropy_loss": cross_entropy,
    "nll_loss_forward": nll,
    "nll_loss2d_forward": nll,
    "mse_loss": mse,
}
