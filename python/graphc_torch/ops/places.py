"""Ops at computed places: embedding, gather, scatter, losses over classes.

A rank that holds a part of what is indexed takes what it holds, and gives 0, or leaves as it is, elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import RunError
from .base import HALVES, Call, Port, Run, blocks_of, into, op, wide

IGNORED = -100
"""The label that is ignored."""


def checked(what: str, places: Tensor, count: int, ignored: int | None = None) -> Callable[[], None]:
    """What checks, on the processor, that places are of a range; accelerators check by themselves.

    Raises, when it is called:
        RunError: for the first that is not.
    """
    if places.device.type != "cpu":
        return lambda: None

    def check() -> None:
        wrong = (places < 0) | (places >= count)
        wrong = wrong & (places != ignored) if ignored is not None else wrong
        if bool(wrong.any()):
            value = int(places[wrong][0])
            raise RunError(f"{what} {value} is out of range: it must be from 0 to {count - 1}")

    return check


def _held(port: Port, dim: int, places: Tensor) -> tuple[Tensor, Tensor | None]:
    """Places in what a rank holds of a dim, and which of them it holds; ``None``: all."""
    extent, origin = port.tensor.shape[dim], port.origin[dim]
    if extent == port.shape[dim]:
        return places, None
    local = places - origin
    here = (local >= 0) & (local < extent)
    return torch.where(here, local, 0), here


@op("embedding")
def embedding(call: Call) -> Run:
    """(table [V, D], rows [..]) -> [.., D]."""
    table, ids, y = call.operands[0], call.operand(1), call.result()
    check = checked("row", ids, table.shape[0])
    flat, result = ids.view(-1), y.view(-1, y.shape[-1])

    def run() -> None:
        check()
        rows, here = _held(table, 0, flat)
        if table.tensor.shape[0] == 0:
            result.zero_()
            return
        torch.index_select(table.tensor, 0, rows, out=result)
        if here is not None:
            result.mul_(here.unsqueeze(-1))

    return run


@op("embedding_grad")
def embedding_grad(call: Call) -> Run:
    """(rows [..], g [.., D]) -> [V, D]: each g added into its row."""
    ids, g, table = call.operand(0), call.operand(1), call.results[0]
    check = checked("row", ids, table.shape[0])
    flat, given = ids.view(-1), g.view(-1, g.shape[-1])

    def run() -> None:
        check()
        rows, here = _held(table, 0, flat)
        added = wide(given) if here is None else wide(given) * here.unsqueeze(-1)
        if table.tensor.numel() == 0:
            return
        if table.tensor.dtype in HALVES:
            sums = torch.zeros(table.tensor.shape, device=g.device).index_add_(0, rows, added)
            table.tensor.copy_(sums)
        else:
            table.tensor.zero_().index_add_(0, rows, added)

    return run


def _flat(tensor: Tensor, batch: int) -> Tensor:
    """A tensor [b.., n, w..] as [B, n, W]."""
    lead = math.prod(tensor.shape[:batch])
    rest = math.prod(tensor.shape[batch + 1 :])
    return tensor.reshape(lead, tensor.shape[batch], rest)


@op("gather")
def gather(call: Call) -> Run:
    """(x [b.., n, w..], places [b.., m]) -> [b.., m, w..]."""
    x, places, y = call.operands[0], call.operand(1), call.result()
    dim = places.dim() - 1
    source, check = _flat(x.tensor, dim), checked("index", places, x.shape[dim])

    def run() -> None:
        check()
        local, here = _held(x, dim, _flat(places, dim))
        if source.shape[1] == 0:
            y.zero_()
            return
        found = torch.gather(source, 1, local.expand(-1, -1, source.shape[2]))
        y.copy_((found if here is None else found * here).view(y.shape))

    return run


@op("scatter_sum")
def scatter_sum(call: Call) -> Run:
    """(places [b.., m], g [b.., m, w..]) -> [b.., n, w..]: each g added at its place."""
    places, g, y = call.operand(0), call.operand(1), call.results[0]
    dim = places.dim() - 1
    check, given = checked("index", places, y.shape[dim]), _flat(g, dim)
    batch, n, width = _flat(y.tensor, dim).shape

    def run() -> None:
        check()
        local, here = _held(y, dim, _flat(places, dim))
        added = wide(given) if here is None else wide(given) * here
        if y.tensor.numel():
            sums = torch.zeros(batch, n, width, dtype=added.dtype, device=added.device)
            sums.scatter_add_(1, local.expand(-1, -1, width), added)
            y.tensor.copy_(sums.view(y.tensor.shape))

    return run


@op("scatter")
def scatter(call: Call) -> Run:
    """(x [b.., n, w..], places [b.., m], values [b.., m, w..]) -> x with the values joined to what is at their places."""
    x, places, values, y = call.operand(0), call.operand(1), call.operand(2), call.results[0]
    dim, name = places.dim() - 1, call.op["function"]
    check, given = checked("index", places, y.shape[dim]), _flat(values, dim)
    join = {"mul": "prod", "max": "amax", "min": "amin"}.get(name)
    n = y.tensor.shape[dim]

    def run() -> None:
        check()
        to = _flat(places, dim) - y.origin[dim]
        # What goes elsewhere goes behind the end.
        to = torch.where((to >= 0) & (to < n), to, n)
        to = to if join else _last_ones(to, n)
        old = _flat(x, dim)
        room = torch.cat([old, old.new_zeros(old.shape[0], 1, old.shape[2])], 1)
        index = to.expand(-1, -1, given.shape[2])
        room = room.scatter_reduce(1, index, given, join) if join else room.scatter(1, index, given)
        y.tensor.copy_(room[:, :n].view(y.tensor.shape))

    return run


def _last_ones(to: Tensor, n: int) -> Tensor:
    """Of several values for one place the last: the others go behind the end."""
    order = torch.arange(to.shape[1], device=to.device).view(1, -1, 1).expand(to.shape)
    last = torch.full((to.shape[0], n + 1, 1), -1, device=to.device, dtype=torch.int64)
    last.scatter_reduce_(1, to, order, "amax")
    return torch.where(torch.gather(last, 1, to) == order, to, n)


@op("pick")
def pick(call: Call) -> Run:
    """(x [.., C], labels [..]) -> x at the label, 0 where the label is ignored or another rank's."""
    x, labels = call.operands[0], call.operand(1)
    last, check = len(x.shape) - 1, checked("label", labels, _classes(call, x), IGNORED)

    def compute() -> Tensor:
        check()
        here, local = _labels(x, last, labels)
        if x.tensor.shape[-1] == 0:
            return torch.zeros_like(labels, dtype=x.tensor.dtype)
        return torch.where(here, torch.gather(x.tensor, last, local.unsqueeze(-1)).squeeze(-1), 0)

    return into(call.result(), compute)


def _classes(call: Call, scores: Port) -> int:
    """How many scores of a label are those of classes: those behind them are padding."""
    return int(call.op.number("classes", scores.shape[-1]))


def _labels(port: Port, dim: int, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Which labels a rank holds, and where; 0 for others."""
    local = labels - port.origin[dim]
    here = (labels != IGNORED) & (local >= 0) & (local < port.tensor.shape[dim])
    return here, torch.where(here, local, 0)


@op("pick_grad")
def pick_grad(call: Call) -> Run:
    """(labels [..], g [..]) -> [.., C]: g at the label, 0 elsewhere."""
    labels, g, y = call.operand(0), call.operand(1), call.results[0]
    last, check = len(y.shape) - 1, checked("label", labels, y.shape[-1], IGNORED)

    def run() -> None:
        check()
        here, local = _labels(y, last, labels)
        y.tensor.zero_()
        if y.tensor.shape[-1]:
            y.tensor.scatter_(last, local.unsqueeze(-1), torch.where(here, g, 0).unsqueeze(-1))

    return run


@op("cross_entropy")
def cross_entropy(call: Call) -> Run:
    """(x [.., C], labels [..]) -> (loss [..], log-sum-exp [..])."""
    x, labels, loss, sums = call.operand(0), call.operand(1), call.result(0), call.result(1)
    smoothing, classes = call.op.number("smoothing", 0.0), _classes(call, call.operands[0])
    check = checked("label", labels, classes, IGNORED)

    flat = sums.view(-1)
    rows = x.view(flat.numel(), x.shape[-1])[:, :classes]
    parts = [(rows[block], flat[block]) for block in blocks_of(rows)]

    def run() -> None:
        check()
        for part, result in parts:
            torch.logsumexp(wide(part), -1, out=result)
        ignored = labels == IGNORED
        hit = wide(torch.gather(x, -1, torch.where(ignored, 0, labels).unsqueeze(-1)).squeeze(-1))
        found = sums - hit
        if smoothing:
            found = found + smoothing * (hit - wide(x[..., :classes]).mean(-1))
        torch.mul(found, ~ignored, out=loss)
        loss.masked_fill_(ignored, 0.0)

    return run


@op("cross_entropy_grad")
def cross_entropy_grad(call: Call) -> Run:
    """(x [.., C], l [..], labels [..], g [..]) -> (exp(x - l) - (1 - smoothing) [class is label] - smoothing / C) g."""
    port, sums, labels, g = call.operands[0], call.operand(1), call.operand(2), call.operand(3)
    smoothing, y, x = call.op.number("smoothing", 0.0), call.result(), call.operand(0)
    classes, last = _classes(call, port), len(port.shape) - 1
    check, here_of = checked("label", labels, classes, IGNORED), max(classes - port.origin[last], 0)

    count, columns = sums.numel(), x.shape[-1]
    scores, result = x.view(count, columns), y.view(count, columns)
    own = y.dtype is torch.float32
    blocks = list(blocks_of(scores))

    def run() -> None:
        check()
        here, local = _labels(port, last, labels)
        given = torch.where(labels == IGNORED, 0.0, g).view(count, 1)
        hits, local, of_rows = torch.where(here, smoothing - 1.0, 0.0).view(count, 1), local.view(count, 1), sums.view(count, 1)
        for block in blocks if columns else ():
            found = torch.sub(wide(scores[block]), of_rows[block], out=result[block] if own else None).exp_()
            found.scatter_add_(1, local[block], hits[block])
            found = found.sub_(smoothing / classes) if smoothing else found
            found.mul_(given[block])
            if not own:
                result[block] = found
        y[..., here_of:] = 0

    return run


@op("label_rank")
def label_rank(call: Call) -> Run:
    """(x [.., C], labels [..], s [..]) -> f32[..]: how many classes come before the label, whose score is s."""
    port, labels, scores = call.operands[0], call.operand(1), call.operand(2)
    count, x = _classes(call, port), call.operand(0)
    check, held = checked("label", labels, count, IGNORED), torch.arange(x.shape[-1], device=x.device)
    classes = held + port.origin[-1]

    def compute() -> Tensor:
        check()
        score = scores.unsqueeze(-1)
        behind = (x < score) | ((x == score) & (classes >= labels.unsqueeze(-1)))
        before = (~behind & (classes < count)).sum(-1).to(torch.float32)
        return before.masked_fill_(labels == IGNORED, 0.0)

    return into(call.result(), compute)
