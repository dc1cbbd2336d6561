"""Matrix products and attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..plan import scalar
from ..random import Stream, blocks, positions
from .base import EIGHTS, HALVES, Call, Run, into, op, sequence_places, wide
from .elementwise import float8_scale
from .sources import drop

_ATEN: Any = torch.ops.aten

# The least score that a finite bias leaves: FLOOR of graphc's attention.
_FLOOR = -3e4


@op("matmul")
def matmul(call: Call) -> Run:
    """``[.., i, k] x [.., k, j]``; leading dims broadcast."""
    a, b, y = call.operand(0), call.operand(1), call.result()
    if not a.dtype.is_floating_point and a.device.type != "cpu":
        a, b = _turned(call, a, b)
        return into(y, lambda: torch.matmul(a.double(), b.double()))
    if a.dtype in EIGHTS:
        return _float8_product(call, a, b, y)
    if b.dim() == 2 and a.dim() > 2 and not call.op["transpose_a"]:
        # All rows of a batch meet one matrix.
        a, y = a.view(-1, a.shape[-1]), y.view(-1, y.shape[-1])
    left, right = _turned(call, a, b)
    if left.dim() == 2 and right.dim() == 2:
        return lambda: _done(torch.mm(left, right, out=y))
    if left.shape[:-2] == right.shape[:-2] and left.dim() == right.dim():
        return _batched(left, right, y)
    return into(y, lambda: torch.matmul(left, right))


def _float8_product(call: Call, a: Tensor, b: Tensor, y: Tensor) -> Run:
    """Numbers of 8 bits, all of which bf16 has, and behind them maybe the sizes by which rows and columns were rounded."""
    left, right = _turned(call, a, b)

    def multiply() -> Tensor:
        return torch.matmul(left.to(torch.bfloat16), right.to(torch.bfloat16))

    if len(call.operands) == 2:
        return into(y, multiply)
    rows, columns = _turned(call, call.operand(2), call.operand(3))

    def divide() -> Tensor:
        scales = [float8_scale(sizes.float(), factor.dtype) for sizes, factor in ((rows, a), (columns, b))]
        return multiply().float().div_(scales[0]).div_(scales[1])

    return into(y, divide)


def _turned(call: Call, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    left = a.transpose(-1, -2) if call.op["transpose_a"] else a
    return left, b.transpose(-1, -2) if call.op["transpose_b"] else b


def _batched(a: Tensor, b: Tensor, y: Tensor) -> Run:
    a, b = (x.flatten(0, -3) for x in (a, b))
    y = y.view(-1, *y.shape[-2:])
    return lambda: _done(torch.bmm(a, b, out=y))


def _done(_value: Any) -> None:
    """Nothing: the value is where it belongs."""


@op("attention")
def attention(call: Call) -> Run:
    """(q [b, t, heads, d], k, v [b, s, kv, d] [, bias]) -> (o, log-sum-exp [b, t, heads])."""
    q, k, v = (call.operand(index) for index in range(3))
    o, of_rows, scale = call.result(0), call.result(1), call.op.number("scale")
    bias = call.operand(3) if len(call.operands) > 3 else None
    if bias is None and _flash(call, q, k):
        causal = call.op["causal"]
        turned = [x.transpose(1, 2) for x in (q, k, v)]

        def run() -> None:
            found, sums = _ATEN._scaled_dot_product_flash_attention_for_cpu(*turned, 0.0, causal, scale=scale)
            o.copy_(found.transpose(1, 2))
            of_rows.copy_(sums.transpose(1, 2))

        return run
    hidden, cap, dropped = _hidden(call), _soft_cap(call), _dropped(call)

    def plain() -> None:
        scores = _scores(_bounded(q, k, scale, cap), bias, hidden)
        sums = torch.logsumexp(scores, -1)
        # By the sums they would be right to a thousandth where a bias hides all keys, as these are about _FLOOR.
        weights = torch.where(sums.unsqueeze(-1) == -math.inf, 0.0, torch.softmax(scores, -1))
        weights = weights if dropped is None else weights * dropped()
        o.copy_(_merged(weights @ _heads(v, q)))
        of_rows.copy_(sums.transpose(1, 2))

    return plain


@op("attention_grad")
def attention_grad(call: Call) -> Run:
    """(q, k, v, o, l, do [, dl] [, bias]) -> (dq, dk, dv [, dbias]); ranks that hold parts give parts of sums."""
    q, k, v, o, sums, do = (call.operand(index) for index in range(6))
    use = call.op.get("bias", "none")
    last = len(call.operands) - (use != "none")
    bias = call.operand(last) if use != "none" else None
    dl = call.operand(6) if last > 6 else None
    of_bias = call.result(3) if use == "learned" else None
    results, scale = [call.result(index) for index in range(3)], call.op.number("scale")
    if dl is None and bias is None and _flash(call, q, k):
        causal = call.op["causal"]
        turned = [x.transpose(1, 2) for x in (do, q, k, v, o, sums)]

        def run() -> None:
            found = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(*turned, 0.0, causal, scale=scale)
            for result, gradient in zip(results, found, strict=True):
                result.copy_(gradient.transpose(1, 2))

        return run
    hidden, cap, dropped = _hidden(call), _soft_cap(call), _dropped(call)

    def plain() -> None:
        bounded = _bounded(q, k, scale, cap)
        slopes = None if cap is None else 1 - (bounded / cap) ** 2
        weights = torch.exp(_scores(bounded, bias, hidden) - _finite(sums.transpose(1, 2)).unsqueeze(-1))
        given = wide(do).transpose(1, 2)
        of_weights = given @ _heads(v, q).transpose(-1, -2)
        factors = None if dropped is None else dropped()
        of_weights = of_weights if factors is None else of_weights * factors
        rows = (given * wide(o).transpose(1, 2)).sum(-1)
        rows = rows if dl is None else rows - wide(dl).transpose(1, 2)
        of_scores = weights * (of_weights - rows.unsqueeze(-1))
        if of_bias is not None:
            of_bias.copy_(of_scores.sum_to_size(of_bias.shape))
        of_scores = of_scores * scale if slopes is None else of_scores * slopes * scale
        results[0].copy_(_merged(of_scores @ _heads(k, q)))
        results[1].copy_(_shared(of_scores.transpose(-1, -2) @ wide(q).transpose(1, 2), k))
        weights = weights if factors is None else weights * factors
        results[2].copy_(_shared(weights.transpose(-1, -2) @ given, v))

    return plain


def _flash(call: Call, q: Tensor, k: Tensor) -> bool:
    """Whether PyTorch's kernel for processors computes the same."""
    whole = all(call.operands[index].shape[1] == call.operand(index).shape[1] for index in (0, 1))
    plain = q.shape[2] == k.shape[2] and q.numel() > 0 and k.numel() > 0 and q.dtype not in HALVES
    of_softmax = call.op.get("window") is None and call.op.get("zigzag") is None and _soft_cap(call) is None and _dropped(call) is None
    return q.device.type == "cpu" and whole and plain and of_softmax


def _hidden(call: Call) -> Tensor | None:
    """Which keys a query does not see: those behind it in the whole sequence, and those before its window."""
    if not call.op["causal"]:
        return None
    q, k = call.operands[:2]
    queries, keys = sequence_places(call.op, q, 1), sequence_places(call.op, k, 1)
    ahead = keys.unsqueeze(0) - queries.unsqueeze(1)
    window = call.op.get("window")
    return ahead > 0 if window is None else (ahead > 0) | (ahead <= -window)


def _soft_cap(call: Call) -> float | None:
    return None if call.op.get("soft_cap") is None else call.op.number("soft_cap")


def _dropped(call: Call) -> Callable[[], Tensor] | None:
    """The factors ``[b, heads, t, s]`` by which a dropout multiplies weights: by the places that they have in the whole."""
    dropout = call.op.get("dropout")
    if dropout is None or not dropout["training"] or scalar(dropout["probability"]) <= 0.0:
        return None
    probability, clock = scalar(dropout["probability"]), call.clock
    q, k = call.operands[:2]
    whole, origin, extent = (
        (of_q[0], of_q[2], of_q[1], of_k[1]) for of_q, of_k in ((q.shape, k.shape), (q.origin, k.origin), (q.tensor.shape, k.tensor.shape))
    )

    def draw() -> Tensor:
        stream, device = Stream(clock.seed, dropout["key"], clock.step), q.tensor.device
        factors = torch.ones(extent, device=device)
        flat = factors.view(-1)
        for part, places in blocks(positions(whole, origin, extent, device).reshape(-1)):
            flat[part] = drop(stream, places, probability, flat[part])
        return factors

    return draw


def _heads(keys: Tensor, q: Tensor) -> Tensor:
    """Keys or values as [b, heads, s, d]: each head reads those of its group."""
    return wide(keys).transpose(1, 2).repeat_interleave(q.shape[2] // keys.shape[2], 1)


def _shared(gradient: Tensor, keys: Tensor) -> Tensor:
    """What all heads of a group give to its keys, as [b, s, kv, d]."""
    b, heads, s, d = gradient.shape
    return gradient.view(b, keys.shape[2], heads // keys.shape[2], s, d).sum(2).transpose(1, 2)


def _merged(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2)


def _bounded(q: Tensor, k: Tensor, scale: float, cap: float | None) -> Tensor:
    """[b, heads, t, s]: the scaled products, within the soft cap."""
    scores = wide(q).transpose(1, 2) @ _heads(k, q).transpose(-1, -2) * scale
    return scores if cap is None else torch.tanh(scores / cap) * cap


def _scores(bounded: Tensor, bias: Tensor | None, hidden: Tensor | None) -> Tensor:
    """With the bias, of which finite sums are at least _FLOOR; -inf where a query does not see a key."""
    scores = bounded.clone() if bias is None else bounded + wide(bias)
    if bias is not None:
        scores = torch.where(scores == -math.inf, scores, scores.clamp(min=_FLOOR))
    return scores if hidden is None else scores.masked_fill_(hidden, -math.inf)


def _finite(sums: Tensor) -> Tensor:
    """Where there is no key at all weights are 0."""
    return torch.where(sums == -math.inf, 0.0, sums)
