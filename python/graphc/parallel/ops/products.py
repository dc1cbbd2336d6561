"""Matrix products and attention."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ..text import Value
from .call import Call, Result
from .movement import exchanged
from .sources import dropped


def linear(call: Call) -> Value:
    """X times the weight turned, plus the bias."""
    writer, x, bias = call.writer, call.tensor("input"), call.optional("bias")
    rows = x if x.rank > 1 else writer.reshape(x, (1, *x.shape))
    product = writer.reshape(writer.matmul(rows, call.tensor("weight"), transpose_b=True), call.shape)
    return product if bias is None else writer.binary("add", product, bias)


def matmul(call: Call) -> Value:
    """A matrix product; a vector is a row on the left and a column on the right."""
    return matrix_product(call, call.tensor("self"), call.tensor(second_of(call)))


def matrix_product(call: Call, a: Value, b: Value) -> Value:
    """The product of these, in the shape of a call's result."""
    writer = call.writer
    rows = a if a.rank > 1 else writer.reshape(a, (1, *a.shape))
    columns = b if b.rank > 1 else writer.reshape(b, (*b.shape, 1))
    return writer.reshape(writer.matmul(rows, columns), call.shape)


def second_of(call: Call) -> str:
    """What a product calls its second operand."""
    return next(name for name in ("other", "mat2", "vec", "tensor") if name in call.arguments)


def added_product(call: Call) -> Value:
    """Beta self + alpha times a product."""
    writer = call.writer
    names = ("mat1", "mat2") if "mat1" in call.arguments else ("batch1", "batch2")
    product = writer.scale(writer.matmul(call.tensor(names[0]), call.tensor(names[1])), float(call["alpha"]))
    return writer.binary("add", product, writer.scale(call.tensor("self"), float(call["beta"])))


def attention(call: Call) -> Value:
    """Attention of ``[.., heads, time, width]``: one op, or with a mask or dropout, or values of another width, in parts."""
    queries, keys, values = (call.tensor(name) for name in ("query", "key", "value"))
    mask, probability = call.optional("attn_mask"), float(call["dropout_p"])
    scale = 1.0 / math.sqrt(queries.shape[-1]) if call["scale"] is None else float(call["scale"])
    causal = bool(call["is_causal"])
    shared = bool(call.arguments.get("enable_gqa", False))
    if mask is None and probability == 0.0 and _is_whole(queries, keys, values, causal, shared):
        return _whole(call, (queries, keys, values), causal, scale)
    if shared:
        keys, values = (_repeated(call, operand, queries.shape[-3]) for operand in (keys, values))
    scores = call.writer.matmul(call.writer.scale(queries, scale), keys, transpose_b=True)
    if causal:
        mask = call.writer.content(torch.ones(scores.shape[-2:], dtype=torch.bool).tril())
    scores = scores if mask is None else _masked(call, scores, mask)
    weights = _softmax_of_keys(call, scores) if _may_hide_all(call, mask) else _softmax(call, scores)
    if probability > 0.0:
        weights = dropped(call, weights, probability)
    return call.writer.matmul(weights, values)


def _is_whole(queries: Value, keys: Value, values: Value, causal: bool, shared: bool) -> bool:
    """Whether graphc has it as one op."""
    alike = keys.shape == values.shape and queries.shape[-1] == keys.shape[-1]
    if queries.rank != 4 or not alike or queries.shape[0] != keys.shape[0]:
        return False
    return (shared or queries.shape[1] == keys.shape[1]) and not (causal and queries.shape[2] != keys.shape[2])


def _whole(call: Call, operands: tuple[Value, Value, Value], causal: bool, scale: float) -> Value:
    turned = [exchanged(call, operand, 1, 2) for operand in operands]
    query = turned[0]
    results = [(query.dtype, query.shape), (torch.float32, query.shape[:3])]
    found, _ = call.writer.nodes("attention", turned, results, causal=causal, scale=scale)
    return exchanged(call, found, 1, 2)


def _repeated(call: Call, x: Value, heads: int) -> Value:
    """Keys or values of fewer heads, so often one after the other that each query's head has its own."""
    *samples, own, time, width = x.shape
    apart = call.writer.reshape(x, (*samples, own, 1, time, width))
    grown = call.writer.expand(apart, (*samples, own, heads // own, time, width))
    return call.writer.reshape(grown, (*samples, heads, time, width))


def _masked(call: Call, scores: Value, mask: Value) -> Value:
    """Scores without what a mask hides, or with what it adds."""
    writer = call.writer
    if mask.dtype == torch.bool:
        return writer.select(mask, scores, writer.full(scores.dtype, (), -math.inf))
    return writer.binary("add", scores, writer.cast(mask, scores.dtype))


def _may_hide_all(call: Call, mask: Value | None) -> bool:
    """Whether a mask may leave a query without any key, as texts that are padded in front do."""
    if mask is None:
        return False
    known = call.content("attn_mask")
    if known is None:
        return True
    hidden = ~known if known.dtype == torch.bool else known == -math.inf
    return bool(hidden.all(-1).any())


def _softmax_of_keys(call: Call, scores: Value) -> Value:
    """Weights that are 0 where a query has no key, and softmax would give no number: a form in which graphc knows attention."""
    writer, zero = call.writer, call.writer.full(scores.dtype, (), 0.0)
    greatest = writer.reduce("max", scores, [scores.rank - 1], keep=True)
    is_none = writer.binary("equal", greatest, writer.full(scores.dtype, (), -math.inf))
    # Its scores are put aside as well: else gradients would come from no numbers.
    return writer.select(is_none, zero, _softmax(call, writer.select(is_none, zero, scores)))


def _softmax(call: Call, x: Value) -> Value:
    return call.writer.node("softmax", [x], x.dtype, x.shape, axis=x.rank - 1)


TABLE: dict[str, Callable[[Call], Result]] = {
    "linear": linear,
    **{name: matmul for name in ("matmul", "mm", "bmm", "mv", "dot")},
    **{name: added_product for name in ("addmm", "baddbmm")},
    "scaled_dot_product_attention": attention,
}
