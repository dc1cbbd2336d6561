"""Changes of layout: collectives over ``torch.distributed``, rectangles that ranks send each other, local slices and masks.

What goes where is worked out once, when a plan is loaded (:mod:`graphc_torch.layout`). An all-reduce and an all-gather are those of
``torch.distributed``; all else, and what has uneven shards, is one ``all_to_all_single`` of the rectangles in which layouts overlap,
with partial values combined in the order of coordinates. Sums of halves are made in f32 and rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import direct
from .assembly import Assembly, Change, Scope, identity, partial_along
from .communicator import Communicator, axis_of
from .errors import PlanError
from .layout import Contribution, Layout, Ranks, Rect, ReduceKind, Sbp, contributions
from .ops import TORCH, Port, Run, overlap
from .ops.base import MOVED_AS_BYTES
from .plan import BoxingKind, Collective

REDUCE: dict[ReduceKind, Any] = {
    ReduceKind.SUM: dist.ReduceOp.SUM,
    ReduceKind.MAX: dist.ReduceOp.MAX,
    ReduceKind.MIN: dist.ReduceOp.MIN,
}


def collective(does: Collective, changes: list[Change], scope: Scope) -> Run:
    """A collective of this rank, ready to run.

    Raises:
        PlanError: where layouts do not fit what it does.
    """
    axis = axis_of(changes[0].start, does.axis)
    group = changes[0].start.group(scope.rank, axis)
    if any(change.start.group(scope.rank, axis) != group for change in changes):
        raise PlanError("a collective is of tensors on different ranks")
    neighbours = scope.communicator.neighbours
    if neighbours is not None and len(group) > 1 and neighbours.reach(group) and len(changes) <= direct.MOST_TENSORS:
        return direct.collective(does, changes, axis, direct.Meeting(neighbours, group, scope))
    if does.kind is BoxingKind.ALL_REDUCE:
        return _all_reduce(changes, axis, group, scope)
    if does.kind is BoxingKind.ALL_GATHER and len(changes) == 1 and len(group) > 1:
        return _all_gather(changes[0], axis, group, scope)
    if does.kind in (BoxingKind.REDUCE_SCATTER, BoxingKind.ALL_GATHER, BoxingKind.ALL_TO_ALL):
        return _exchange(changes, axis, group, scope)
    raise PlanError(f"{does.kind.value} is no collective")


def _all_reduce(changes: list[Change], axis: int, group: tuple[int, ...], scope: Scope) -> Run:
    kind = partial_along(changes, axis)
    pairs = [(change.operand.tensor, change.result.tensor) for change in changes]
    if len(group) == 1:
        return all_of([_copy(operand, result) for operand, result in pairs])
    by_type: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for pair in pairs:
        by_type.setdefault(pair[0].dtype, []).append(pair)
    runs = [_reduced(of_type, kind, scope.communicator.group(group)) for of_type in by_type.values()]
    return all_of(runs)


def all_of(runs: list[Run]) -> Run:
    """One action of several."""
    if len(runs) == 1:
        return runs[0]

    def run() -> None:
        for each in runs:
            each()

    return run


def _copy(operand: Tensor, result: Tensor) -> Run:
    def run() -> None:
        result.copy_(operand)

    return run


def _fill(result: Tensor, value: float) -> Run:
    def run() -> None:
        result.fill_(value)

    return run


def _reduced(pairs: list[tuple[Tensor, Tensor]], kind: ReduceKind, group: Any) -> Run:
    dtype, reduce = pairs[0][0].dtype, REDUCE[kind]
    if dtype is torch.bool:
        reduce = dist.ReduceOp.MIN if kind is ReduceKind.MIN else dist.ReduceOp.MAX
    message = {torch.bool: torch.uint8, torch.float16: torch.float32, torch.bfloat16: torch.float32}.get(dtype, dtype)
    if len(pairs) == 1 and message is dtype:
        ((operand, result),) = pairs

        def one() -> None:
            if operand.data_ptr() != result.data_ptr():
                result.copy_(operand)
            dist.all_reduce(result, reduce, group)

        return one

    def many() -> None:
        flat = torch.cat([operand.reshape(-1).to(message) for operand, _ in pairs])
        dist.all_reduce(flat, reduce, group)
        parts = flat.split([operand.numel() for operand, _ in pairs])
        for (_, result), part in zip(pairs, parts, strict=True):
            result.copy_(part.view(result.shape))

    return many


def _all_gather(change: Change, axis: int, group: tuple[int, ...], scope: Scope) -> Run:
    held = [scope.held(change.start, rank) for rank in group]
    parts = scope.along(change, axis, scope.rank)
    most = max(rect.elements for rect in held)
    operand, result, members = change.operand.tensor, change.result.tensor, scope.communicator.group(group)
    own = operand.reshape(-1)
    message = torch.uint8 if operand.dtype in MOVED_AS_BYTES else operand.dtype
    even = all(rect.elements == most for rect in held)
    places = [(group.index(part.source), part.part) for part in parts]
    assembly = Assembly(result, scope.held(change.to, scope.rank), parts)
    rows = even and result.is_contiguous() and message is operand.dtype and _in_order(held, result)
    apart = not overlap(operand, result)

    def run() -> None:
        if rows and apart:
            dist.all_gather_into_tensor(result.view(-1), own, members)
            return
        sent = own.view(message) if even else torch.nn.functional.pad(own.view(message), (0, most - own.numel()))
        all_of = sent.new_empty(len(group) * most)
        dist.all_gather_into_tensor(all_of, sent.contiguous(), members)
        shards = all_of.view(operand.dtype).view(len(group), most)
        assembly.run([_part(shards[index], held[index], part) for index, part in places])

    return run


def _in_order(held: list[Rect], result: Tensor) -> bool:
    """Whether shards one after the other are the result."""
    dims = [dim for dim in range(result.dim()) if held[0].extent[dim] != result.shape[dim]]
    return not dims or (all(extent == 1 for extent in result.shape[: dims[0]]) and len(dims) == 1)


def _part(flat: Tensor, held: Rect, part: Rect) -> Tensor:
    return flat[: held.elements].view(held.extent)[part.within(held)]


@dataclass(slots=True)
class _Traffic:
    """Of elements of one type: what goes to each peer, what comes, and where it belongs."""

    sends: list[list[Tensor]]
    """By peer: parts of operands."""
    receives: list[int]
    """By peer: elements."""
    results: list[tuple[Assembly, list[tuple[int, int, tuple[int, ...], Tensor | None]]]] = field(default_factory=list)
    """By tensor: peer, first element of its message and shape of each part; or the part itself, which is this rank's."""


def _exchange(changes: list[Change], axis: int, group: tuple[int, ...], scope: Scope) -> Run:
    by_type: dict[torch.dtype, list[Change]] = {}
    for change in changes:
        by_type.setdefault(change.operand.tensor.dtype, []).append(change)
    members = scope.communicator.group(group) if len(group) > 1 else None
    plans = [(dtype, _traffic(of_type, axis, group, scope)) for dtype, of_type in by_type.items()]
    staged = any(overlap(a.operand.tensor, b.result.tensor) for a in changes for b in changes)
    device = changes[0].operand.tensor.device

    def run() -> None:
        kept = [_own(traffic, staged) for _, traffic in plans]
        messages = [_swapped(dtype, traffic, members, device) for dtype, traffic in plans]
        for (_, traffic), own, received in zip(plans, kept, messages, strict=True):
            _assemble(traffic, own, received)

    return run


def _traffic(changes: list[Change], axis: int, group: tuple[int, ...], scope: Scope) -> _Traffic:
    own = group.index(scope.rank)
    traffic = _Traffic([[] for _ in group], [0] * len(group))
    for change in changes:
        held = scope.held(change.start, scope.rank)
        for peer, rank in enumerate(group):
            for part in scope.along(change, axis, rank) if peer != own else ():
                if part.source == scope.rank:
                    traffic.sends[peer].append(change.operand.tensor[part.part.within(held)])
        parts = scope.along(change, axis, scope.rank)
        places: list[tuple[int, int, tuple[int, ...], Tensor | None]] = []
        for part in parts:
            peer = group.index(part.source)
            here = change.operand.tensor[part.part.within(held)] if peer == own else None
            places.append((peer, traffic.receives[peer], part.part.extent, here))
            traffic.receives[peer] += part.part.elements if peer != own else 0
        assembly = Assembly(change.result.tensor, scope.held(change.to, scope.rank), parts)
        traffic.results.append((assembly, places))
    return traffic


def _own(traffic: _Traffic, staged: bool) -> list[list[Tensor | None]]:
    """This rank's parts, copied where a result is written over an operand."""
    parts = [[place[3] for place in places] for _, places in traffic.results]
    return [[part.clone() if staged and part is not None else part for part in row] for row in parts]


def _swapped(dtype: torch.dtype, traffic: _Traffic, members: Any, device: torch.device) -> list[Tensor]:
    """What comes from each peer."""
    received = torch.empty(sum(traffic.receives), dtype=dtype, device=device)
    if members is not None:
        sizes = [sum(part.numel() for part in parts) for parts in traffic.sends]
        parts = [part.reshape(-1) for row in traffic.sends for part in row]
        sent = torch.cat(parts) if parts else received.new_empty(0)
        bytes_of = torch.uint8 if dtype in MOVED_AS_BYTES else dtype
        dist.all_to_all_single(received.view(bytes_of), sent.view(bytes_of), traffic.receives, sizes, group=members)
    return list(received.split(traffic.receives))


def _assemble(traffic: _Traffic, own: list[list[Tensor | None]], received: list[Tensor]) -> None:
    for (assembly, places), row in zip(traffic.results, own, strict=True):
        values = []
        for (peer, begin, extent, _), here in zip(places, row, strict=True):
            size = 1
            for n in extent:
                size *= n
            values.append(received[peer][begin : begin + size].view(extent) if here is None else here)
        assembly.run(values)


def local(change: Change, scope: Scope) -> Run:
    """A slice or a mask: a part of what the rank holds, or what changes nothing."""
    result = change.result.tensor
    axes = zip(change.start.sbp, change.to.sbp, change.to.coordinates(scope.rank), strict=True)
    kind = next((to.partial for start, to, at in axes if to.partial and not start.partial and at > 0), None)
    if kind is not None:
        value = identity(result.dtype, kind)
        return _fill(result, value)
    held, kept = scope.held(change.start, scope.rank), scope.held(change.to, scope.rank)
    if kept.elements == 0:
        return lambda: None
    if held.intersect(kept) != kept:
        raise PlanError(f"rank {scope.rank} keeps a part that it does not hold")
    view = change.operand.tensor[kept.within(held)]
    return _copy(view, result)


class Buffered:
    """This rank's end, or both of its ends, of a channel: a buffered exchange between two layouts."""

    def __init__(self, communicator: Communicator, number: int, device: torch.device) -> None:
        """What goes through the channel of this number."""
        plan = communicator.plan
        channel = plan.channels[number]
        self.communicator, self.number, self.rank = communicator, number, communicator.rank
        self.start, self.to = plan.layouts[channel.start], plan.layouts[channel.to]
        self.slots, self.dtype, self.device = max(channel.slots, 1), TORCH[self.start.dtype], device
        self.microbatches = max(plan.microbatches, 1)
        self.sends = self.rank in self.start.positions
        self.sent = self.received = 0
        self.under_way: list[list[Any]] = [[] for _ in range(self.slots)]
        self.posted: dict[int, tuple[list[Any], list[Tensor]]] = {}
        self.own: dict[int, Tensor] = {}

    def _parts(self, rank: int, microbatch: int) -> list[Contribution]:
        return contributions(self.start, self.to, rank, microbatch, self.microbatches)

    def send(self, operand: Port, microbatch: int) -> Run:
        """Sends one content."""
        held = self.start.rect(self.rank, microbatch, self.microbatches)
        views: list[tuple[int, Tensor]] = []
        for peer in self.to.ranks.list:
            mine = [part for part in self._parts(peer, microbatch) if part.source == self.rank]
            views.extend((peer, operand.tensor[part.part.within(held)]) for part in mine)
        receives = self._shapes(microbatch) if self.rank in self.to.positions else None

        def run() -> None:
            slot = self.sent % self.slots
            for work in self.under_way[slot]:
                work.wait()
            out = [(peer, view.clone(memory_format=torch.contiguous_format)) for peer, view in views]
            for peer, message in out:
                if peer == self.rank:
                    self.own[self.sent] = message
            messages = [(peer, message) for peer, message in out if peer != self.rank]
            self.under_way[slot] = self._post(messages, receives, self.sent)
            self.sent += 1

        return run

    def _shapes(self, microbatch: int) -> list[tuple[int, tuple[int, ...]]]:
        """From whom comes what, in the order in which it is combined."""
        return [(part.source, part.part.extent) for part in self._parts(self.rank, microbatch)]

    def _post(self, messages: list[tuple[int, Tensor]], receives: list[tuple[int, tuple[int, ...]]] | None, content: int) -> list[Any]:
        """Begins sends, and receives where the rank takes part in both: one batch, so that neither waits for the other."""
        group, batch = self.communicator.channels.get(self.number), []
        for peer, message in messages:
            batch.append(dist.P2POp(dist.isend, _wire(message), peer, group, self.number))
        buffers = []
        for source, extent in receives or ():
            buffers.append(torch.empty(extent, dtype=self.dtype, device=self.device))
            if source != self.rank:
                batch.append(dist.P2POp(dist.irecv, _wire(buffers[-1]), source, group, self.number))
        works = dist.batch_isend_irecv(batch) if batch else []
        if receives is not None:
            own = [works] if self.communicator.nccl else [works[len(messages) :]]
            self.posted[content] = (own[0], buffers)
        # A work keeps its message alive until it has ended.
        return [_Kept(work, messages) for work in (works if self.communicator.nccl else works[: len(messages)])]

    def receive(self, result: Port, microbatch: int) -> Run:
        """Receives one content."""
        parts, shapes = self._parts(self.rank, microbatch), self._shapes(microbatch)
        held = self.to.rect(self.rank, microbatch, self.microbatches)
        assembly, masked = Assembly(result.tensor, held, parts), self.to.masked(self.rank)
        value = None if masked is None else identity(result.tensor.dtype, masked)

        def run() -> None:
            content = self.received
            self.received += 1
            if content not in self.posted:
                self._post([], shapes, content)
            works, buffers = self.posted.pop(content)
            for work in works:
                work.wait()
            if value is not None:
                result.tensor.fill_(value)
                return
            own = self.own.pop(content, None)
            pairs = zip(shapes, buffers, strict=True)
            assembly.run([own if source == self.rank and own is not None else got for (source, _), got in pairs])

        return run


@dataclass(slots=True)
class _Kept:
    work: Any
    messages: list[tuple[int, Tensor]]

    def wait(self) -> None:
        self.work.wait()


def _wire(tensor: Tensor) -> Tensor:
    """A tensor as it travels: truth values as bytes."""
    return tensor.view(torch.uint8) if tensor.dtype in MOVED_AS_BYTES else tensor


def sources(layout: Layout, microbatches: int, variants: int) -> dict[int, list[tuple[Rect, Rect, ReduceKind | None]]]:
    """How the whole of a tensor comes together: by source, the rectangles that it gives, those that it holds, and how they combine."""
    host = Layout(layout.shape, layout.dtype, layout.microbatch_dim, Ranks((0,)), (1,), (Sbp(),))
    by_source: dict[int, list[tuple[Rect, Rect, ReduceKind | None]]] = {}
    for microbatch in range(variants):
        for part in contributions(layout, host, 0, microbatch, microbatches):
            held = layout.rect(part.source, microbatch, microbatches)
            by_source.setdefault(part.source, []).append((part.part, held, part.combine))
    return by_source
