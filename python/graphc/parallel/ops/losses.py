"""Losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ..text import Value
from .call import Call, Result

IGNORED = -100
"""The label that graphc ignores."""

NONE, MEAN, SUM = 0, 1, 2
"""How ATen numbers reductions."""


def cross_entropy(call: Call) -> Value:
    """Cross entropy of logits and labels or probabilities; classes are dim 1, of one sample dim 0."""
    writer, target, smoothing = call.writer, call.tensor("target"), float(call["label_smoothing"])
    last = _classes_last(call, call.tensor("self"))
    if target.dtype.is_floating_point:
        return _of_probabilities(call, last, _classes_last(call, target), smoothing)
    labels = _ignoring(call, target)
    if call["weight"] is not None:
        return _of_weighted_classes(call, last, labels, smoothing)
    attributes: dict[str, Any] = {"smoothing": smoothing} if smoothing else {}
    results = [(torch.float32, labels.shape)] * 2
    each, _ = writer.nodes("cross_entropy", [last, labels], results, **attributes)
    return writer.cast(_over_labels(call, each, labels), call.dtype)


def _classes_last(call: Call, x: Value) -> Value:
    dim = 0 if x.rank == 1 else 1
    return call.writer.transpose(x, [*(other for other in range(x.rank) if other != dim), dim])


def _of_probabilities(call: Call, scores: Value, target: Value, smoothing: float) -> Value:
    """Minus the log-probability of each class, times what is expected of it."""
    writer, axis, classes = call.writer, scores.rank - 1, scores.shape[-1]
    expected = writer.offset(writer.scale(writer.cast(target, scores.dtype), 1.0 - smoothing), smoothing / classes)
    terms = writer.binary("mul", _log_softmax(call, scores), expected)
    if call["weight"] is not None:
        terms = writer.binary("mul", terms, call.tensor("weight", scores.dtype))
    each = writer.scale(writer.reduce("sum", terms, [axis]), -1.0)
    if call["reduction"] == NONE:
        return each
    total = writer.reduce("sum", each, range(each.rank))
    return total if call["reduction"] == SUM else writer.scale(total, 1.0 / math.prod(each.shape))


def _of_weighted_classes(call: Call, scores: Value, labels: Value, smoothing: float) -> Value:
    """Cross entropy whose mean is one by the weights of the labels."""
    writer, weights = call.writer, call.tensor("weight", scores.dtype)
    zero = writer.full(torch.int64, (), 0)
    is_counted = writer.binary("not_equal", labels, writer.full(torch.int64, (), IGNORED))
    places = writer.reshape(writer.select(is_counted, labels, zero), (math.prod(labels.shape),))
    own = writer.reshape(writer.node("gather", [weights, places], weights.dtype, places.shape), labels.shape)
    own = writer.binary("mul", own, writer.cast(is_counted, own.dtype))
    logarithms = _log_softmax(call, scores)
    picked = writer.node("pick", [logarithms, labels], scores.dtype, labels.shape)
    each = writer.scale(writer.binary("mul", picked, own), smoothing - 1.0)
    if smoothing:
        spread = writer.reduce("sum", writer.binary("mul", logarithms, weights), [scores.rank - 1])
        spread = writer.binary("mul", spread, writer.cast(is_counted, spread.dtype))
        each = writer.binary("add", each, writer.scale(spread, -smoothing / scores.shape[-1]))
    if call["reduction"] == NONE:
        return each
    total = writer.reduce("sum", each, range(each.rank))
    return total if call["reduction"] == SUM else writer.binary("div", total, writer.reduce("sum", own, range(own.rank)))


def _log_softmax(call: Call, scores: Value) -> Value:
    return call.writer.node("log_softmax", [scores], scores.dtype, scores.shape, axis=scores.rank - 1)


def nll(call: Call) -> Result:
    """Minus the log-probability of labels."""
    writer, scores = call.writer, call.tensor("self")
    call.require("weight", None)
    labels = _ignoring(call, call.tensor("target"))
    last = _classes_last(call, scores)
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
