"""Collectives of processes on one machine: each rank reads the operands of the others where they lie (:mod:`graphc_torch.neighbours`).

A collective begins when all ranks have said where their operands are, and ends when all have said that they have read what they need.
Values are combined in the order of coordinates on every rank, so a sum has the same bits on each, and in each run. Of an all-reduce of
more than a few elements each rank makes a share first, and then copies those of the others.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .assembly import Assembly, Change, Scope, combine, partial_along
from .layout import ReduceKind
from .neighbours import Neighbours
from .ops import HALVES, Run, overlap, same_memory
from .plan import BoxingKind, Collective

FEW_BYTES = 1 << 15
"""Up to how many bytes of operands each rank makes all of an all-reduce: a third turn costs more than reading them all."""

MOST_TENSORS = 2048
"""The most tensors of a collective, whose places a message takes."""

ALIGNED = 16
"""Elements of which shares of an all-reduce are multiples, but for the last."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Ranks that make a collective together."""

    neighbours: Neighbours
    group: tuple[int, ...]
    scope: Scope

    @property
    def own(self) -> int:
        """The place of this rank among them."""
        return self.group.index(self.scope.rank)

    def swap(self, message: bytes = b"\0") -> list[bytes]:
        """Tells the others something, and waits for what they say."""
        return self.neighbours.swap(self.group, message)


def collective(does: Collective, changes: list[Change], axis: int, meeting: Meeting) -> Run:
    """A collective of this rank, ready to run.

    Raises:
        PlanError: where layouts do not fit what it does, or tensors lie outside of the memory that ranks share.
    """
    if does.kind is BoxingKind.ALL_REDUCE:
        kind = partial_along(changes, axis)
        if sum(_bytes(change.operand.tensor) for change in changes) > FEW_BYTES:
            return _Shared(changes, axis, kind, meeting).run
    return _Whole(changes, axis, meeting).run


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class _Whole:
    """Each rank makes all of its result, of what it reads from the others."""

    def __init__(self, changes: list[Change], axis: int, meeting: Meeting) -> None:
        scope = meeting.scope
        self.meeting, self.changes = meeting, changes
        self.message = _packed([meeting.neighbours.place_of(change.operand.tensor) for change in changes])
        self.parts = [scope.along(change, axis, scope.rank) for change in changes]
        self.results = [change.result.tensor for change in changes]
        self.assemblies = [
            Assembly(result, scope.held(change.to, scope.rank), parts)
            for change, result, parts in zip(changes, self.results, self.parts, strict=True)
        ]
        tangled = any(overlap(change.operand.tensor, result) for change in changes for result in self.results)
        self.staged = [torch.empty_like(result) for result in self.results] if tangled else self.results
        """Where results are made: apart from operands, which the others may not have read yet."""
        self.known: dict[tuple[bytes, ...], list[list[Tensor]]] = {}

    def run(self) -> None:
        """Makes the collective."""
        self.assemble(self.meeting.swap(self.message))

    def assemble(self, messages: list[bytes]) -> None:
        """Makes it, once all have said where their operands lie."""
        for assembly, values, into in zip(self.assemblies, self._values(tuple(messages)), self.staged, strict=True):
            assembly.run(values, into)
        self.meeting.swap()
        for result, staged in zip(self.results, self.staged, strict=True):
            if result is not staged:
                result.copy_(staged)

    def _values(self, messages: tuple[bytes, ...]) -> list[list[Tensor]]:
        """By change, what is put together."""
        if messages not in self.known:
            places = [_unpacked(message) for message in messages]
            self.known[messages] = [self._parts_of(index, places) for index in range(len(self.changes))]
        return self.known[messages]

    def _parts_of(self, index: int, places: list[list[tuple[int, int]]]) -> list[Tensor]:
        found, change, scope = [], self.changes[index], self.meeting.scope
        for part in self.parts[index]:
            held = scope.held(change.start, part.source)
            place = places[self.meeting.group.index(part.source)][index]
            found.append(self._operand(change, part.source, place, held.extent)[part.part.within(held)])
        return found

    def _operand(self, change: Change, rank: int, place: tuple[int, int], extent: tuple[int, ...]) -> Tensor:
        own = change.operand.tensor
        return own if rank == self.meeting.scope.rank else self.meeting.neighbours.tensor(rank, place, extent, own.dtype)


class _Shared:
    """An all-reduce of which each rank makes a share."""

    def __init__(self, changes: list[Change], axis: int, kind: ReduceKind, meeting: Meeting) -> None:
        self.meeting, self.kind = meeting, kind
        self.changes, self.axis = changes, axis
        self.operands = [change.operand.tensor.view(-1) for change in changes]
        self.results = [change.result.tensor.view(-1) for change in changes]
        pairs = enumerate(self.operands)
        tangled = any(overlap(a, b) and not (i == j and same_memory(a, b)) for i, a in pairs for j, b in enumerate(self.results))
        places = [meeting.neighbours.place_of(tensor) for tensor in (*self.operands, *self.results)]
        self.message = _packed(places, tangled)
        self.known: dict[tuple[bytes, ...], list[list[Tensor]]] = {}

    def run(self) -> None:
        """Makes it."""
        messages = self.meeting.swap(self.message)
        if any(message[0] for message in messages):
            self._whole.assemble(messages)
            return
        theirs = self._tensors(tuple(messages))
        for index, result in enumerate(self.results):
            self._reduce(result, [tensors[index] for tensors in theirs])
        self.meeting.swap()
        for index, result in enumerate(self.results):
            for rank, tensors in enumerate(theirs):
                if rank != self.meeting.own:
                    share = self._share(result, rank)
                    result[share].copy_(tensors[len(self.results) + index][share])
        self.meeting.swap()

    @cached_property
    def _whole(self) -> _Whole:
        """The way that is left where a result lies over an operand of another tensor."""
        return _Whole(self.changes, self.axis, self.meeting)

    def _reduce(self, result: Tensor, operands: list[Tensor]) -> None:
        """This rank's share, in the order of ranks."""
        share = self._share(result, self.meeting.own)
        target, values = result[share], [operand[share] for operand in operands]
        if same_memory(target, values[self.meeting.own]):
            # It is read after the first ones have been written there.
            values[self.meeting.own] = target.clone() if self.meeting.own > 1 else target
        if target.dtype in HALVES and self.kind is ReduceKind.SUM:
            wide = values[0].float()
            for value in values[1:]:
                combine(self.kind, wide, value, wide)
            target.copy_(wide)
            return
        combine(self.kind, values[0], values[1], target)
        for value in values[2:]:
            combine(self.kind, target, value, target)

    def _share(self, tensor: Tensor, rank: int) -> slice:
        """The elements that a rank makes."""
        ranks, blocks = len(self.meeting.group), -(-tensor.numel() // ALIGNED)
        begin, end = (min(blocks * at // ranks * ALIGNED, tensor.numel()) for at in (rank, rank + 1))
        return slice(begin, end)

    def _tensors(self, messages: tuple[bytes, ...]) -> list[list[Tensor]]:
        """By rank, its operands and results."""
        if messages not in self.known:
            self.known[messages] = [self._of_rank(rank, message) for rank, message in zip(self.meeting.group, messages, strict=True)]
        return self.known[messages]

    def _of_rank(self, rank: int, message: bytes) -> list[Tensor]:
        own = [*self.operands, *self.results]
        if rank == self.meeting.scope.rank:
            return own
        places = _unpacked(message)
        return [
            self.meeting.neighbours.tensor(rank, place, tuple(tensor.shape), tensor.dtype)
            for place, tensor in zip(places, own, strict=True)
        ]


def _packed(places: list[tuple[int, int]], flag: bool = False) -> bytes:
    """Where tensors lie, as a message."""
    return struct.pack(f"<?{2 * len(places)}Q", flag, *(number for place in places for number in place))


def _unpacked(message: bytes) -> list[tuple[int, int]]:
    numbers = struct.unpack(f"<{(len(message) - 1) // 8}Q", message[1:])
    return list(zip(numbers[::2], numbers[1::2], strict=True))
