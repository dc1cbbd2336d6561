"""Which part of a tensor a rank holds, and from whom it gets the parts of another layout.

A layout cuts a tensor over time (microbatches) and over the axes of a mesh, one after the other; of a cut into uneven parts the
first ones are longer. What lies where follows from that alone, so ranks agree without speaking.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .errors import PlanError


class ReduceKind(enum.Enum):
    """How several values become one."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True, repr=False)
class Sbp:
    """How a tensor lies over one mesh axis: ``B``, ``S(dim)`` or ``P(sum|max|min)``."""

    split: int | None = None
    """The dim of which each rank holds a range."""
    partial: ReduceKind | None = None
    """How the tensors of full shape that ranks hold become the whole."""

    @property
    def broadcast(self) -> bool:
        """Whether every rank holds the whole."""
        return self.split is None and self.partial is None

    @classmethod
    def from_json(cls, text: Any) -> Sbp:
        """Reads ``B``, ``S(0)``, ``P`` and ``P(sum)``."""
        if not isinstance(text, str):
            raise ValueError("a layout is a text such as B, S(0) or P(sum)")
        text = text.strip()
        if text == "B":
            return cls()
        if text == "P":
            return cls(partial=ReduceKind.SUM)
        if text.startswith("P(") and text.endswith(")"):
            return cls(partial=ReduceKind(text[2:-1]))
        if text.startswith("S(") and text.endswith(")") and text[2:-1].strip().isdigit():
            return cls(split=int(text[2:-1]))
        raise ValueError(f"`{text}` is no layout: write B, S(dim) or P(sum|max|min)")

    def __str__(self) -> str:
        """As plans write it."""
        if self.split is not None:
            return f"S({self.split})"
        return "B" if self.partial is None else f"P({self.partial.value})"

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class Rect:
    """An axis-aligned part of a tensor: where it begins in each dim, and how many elements it has."""

    origin: tuple[int, ...]
    extent: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.extent)

    def intersect(self, other: Rect) -> Rect | None:
        """What both cover; ``None`` where that is empty."""
        origin, extent = [], []
        for a, n, b, m in zip(self.origin, self.extent, other.origin, other.extent, strict=True):
            start, end = max(a, b), min(a + n, b + m)
            if start >= end:
                return None
            origin.append(start)
            extent.append(end - start)
        return Rect(tuple(origin), tuple(extent))

    def within(self, outer: Rect) -> tuple[slice, ...]:
        """Where it lies in the memory of a part that holds it."""
        places = zip(self.origin, self.extent, outer.origin, strict=True)
        return tuple(slice(a - o, a - o + n) for a, n, o in places)

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where it lies in the whole tensor."""
        return tuple(slice(a, a + n) for a, n in zip(self.origin, self.extent, strict=True))


MOST_BYTES = 1 << 62
"""More than any memory has."""


def product(extents: Iterable[int]) -> int:
    """The product of extents that may be anything: as soon as it is more than any memory has, it is no longer multiplied."""
    size = 1
    for extent in extents:
        size *= extent
        if size > MOST_BYTES:
            break
    return size


def split_range(extent: int, parts: int, index: int) -> tuple[int, int]:
    """Begin and length of part ``index`` of an extent: the first parts take the extra elements."""
    base, extra = divmod(extent, parts)
    return index * base + min(index, extra), base + (index < extra)


def unravel(position: int, extents: tuple[int, ...]) -> tuple[int, ...]:
    """The row-major coordinates of a position in a grid."""
    coordinates = []
    for extent in reversed(extents):
        position, coordinate = divmod(position, extent)
        coordinates.append(coordinate)
    return tuple(reversed(coordinates))


def expand_runs(runs: Any) -> tuple[int, ...]:
    """The ranks of runs ``[first, count, stride]``.

    Raises:
        ValueError: where they are none, or more than any job has.
    """
    ranks: list[int] = []
    for run in runs:
        if not (isinstance(run, list) and len(run) == 3 and all(type(n) is int and n >= 0 for n in run)):
            raise ValueError("a run of ranks is [first, count, stride], of whole numbers")
        first, count, stride = run
        if len(ranks) + count > 1 << 24:
            raise ValueError("more ranks are listed than any job has")
        ranks.extend(first + index * stride for index in range(count))
    return tuple(ranks)


@dataclass(frozen=True)
class Ranks:
    """A list of ranks; in a file numbers, or runs ``[first, count, stride]``."""

    list: tuple[int, ...]

    @classmethod
    def from_json(cls, value: Any) -> Ranks:
        """Reads either form."""
        if not isinstance(value, list):
            raise ValueError("a list of ranks, or of runs of them, is expected")
        if all(type(rank) is int and rank >= 0 for rank in value):
            return cls(tuple(value))
        return cls(expand_runs(value))


@dataclass(frozen=True)
class Layout:
    """A tensor's layout over time (microbatches) and a mesh."""

    shape: tuple[int, ...]
    """Shape of the whole tensor, of the whole batch."""
    dtype: str
    """Element type."""
    microbatch_dim: int | None
    """The dim that microbatches cut; ``None`` for what is the same in all of them."""
    ranks: Ranks
    """Ranks, row-major over ``hierarchy``."""
    hierarchy: tuple[int, ...]
    """Extents of the mesh axes."""
    sbp: tuple[Sbp, ...]
    """One a mesh axis."""

    @cached_property
    def positions(self) -> dict[int, int]:
        """The place of each rank in the mesh."""
        return {rank: position for position, rank in enumerate(self.ranks.list)}

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """The coordinates of a rank of this mesh."""
        return unravel(self.position(rank), self.hierarchy)

    def position(self, rank: int) -> int:
        """The place of a rank in the mesh.

        Raises:
            PlanError: where it is not of it.
        """
        position = self.positions.get(rank)
        if position is None:
            raise PlanError(f"rank {rank} is none of a layout's ranks {list(self.ranks.list)}")
        return position

    def rect(self, rank: int, microbatch: int, microbatches: int) -> Rect:
        """The part that a rank holds of a microbatch."""
        origin, extent = [0] * len(self.shape), list(self.shape)

        def cut(dim: int, parts: int, index: int) -> None:
            start, length = split_range(extent[dim], parts, index)
            origin[dim] += start
            extent[dim] = length

        if self.microbatch_dim is not None:
            cut(self.microbatch_dim, microbatches, microbatch)
        for sbp, parts, index in zip(self.sbp, self.hierarchy, self.coordinates(rank), strict=True):
            if sbp.split is not None:
                cut(sbp.split, parts, index)
        return Rect(tuple(origin), tuple(extent))

    def variants(self, microbatches: int) -> int:
        """How many different parts a rank holds in a step: one a microbatch, or one for all."""
        return 1 if self.microbatch_dim is None else microbatches

    def group(self, rank: int, axis: int) -> tuple[int, ...]:
        """The ranks that differ from one along an axis alone, with it, in order of that coordinate."""
        stride = math.prod(self.hierarchy[axis + 1 :])
        position = self.position(rank)
        first = position - position // stride % self.hierarchy[axis] * stride
        return tuple(self.ranks.list[first + i * stride] for i in range(self.hierarchy[axis]))

    def groups(self, axis: int) -> list[tuple[int, ...]]:
        """All groups along an axis, in the order of their first ranks' places."""
        return list(dict.fromkeys(self.group(rank, axis) for rank in self.ranks.list))

    def masked(self, rank: int) -> ReduceKind | None:
        """The kind of the identity that a rank holds of partial values; ``None`` where it holds a value."""
        axes = zip(self.sbp, self.coordinates(rank), strict=True)
        return next((sbp.partial for sbp, at in axes if sbp.partial and at > 0), None)

    def same(self, a: int, b: int) -> bool:
        """Whether two ranks hold the same; partial values count as the same."""
        if a not in self.positions or b not in self.positions:
            return False
        axes = zip(self.sbp, self.coordinates(a), self.coordinates(b), strict=True)
        return all(sbp.split is None or x == y for sbp, x, y in axes)

    def holders(self) -> list[int]:
        """The ranks whose parts make the whole, each the first of those that hold the same."""
        first: list[int] = []
        for rank in self.ranks.list:
            if not any(self.same(rank, other) for other in first):
                first.append(rank)
        return first

    def replicas(self, rank: int) -> list[int]:
        """The ranks that differ from one along broadcast axes alone."""
        own = self.coordinates(rank)

        def same(other: int) -> bool:
            axes = zip(self.sbp, own, self.coordinates(other), strict=True)
            return all(sbp.broadcast or a == b for sbp, a, b in axes)

        return [other for other in self.ranks.list if same(other)]


@dataclass(frozen=True, slots=True)
class Contribution:
    """A rectangle that a rank gets from another, or from itself."""

    source: int
    """Who holds it."""
    part: Rect
    """The rectangle, in the whole tensor."""
    combine: ReduceKind | None
    """Combined with what came before instead of copied."""


def contributions(start: Layout, to: Layout, rank: int, microbatch: int, microbatches: int) -> list[Contribution]:
    """What ``rank`` of ``to`` gets from the ranks of ``start``, in the order in which it is combined.

    Of ranks that hold the same one is chosen: the rank itself where it is among them, else one by its place, so that the load is
    shared. Partial values come in the order of coordinates.

    Raises:
        PlanError: where some elements have no source.
    """
    if to.masked(rank) is not None:
        return []
    place, target = to.position(rank), to.rect(rank, microbatch, microbatches)
    kind = next((sbp.partial for sbp in start.sbp if sbp.partial), None)
    found = []
    for holder in start.ranks.list:
        replicas = start.replicas(holder)
        part = start.rect(holder, microbatch, microbatches).intersect(target)
        if replicas[0] != holder or part is None:
            continue
        source = rank if rank in replicas else replicas[place % len(replicas)]
        axes = zip(start.sbp, start.coordinates(holder), strict=True)
        later = any(sbp.partial and at > 0 for sbp, at in axes)
        found.append(Contribution(source, part, kind if later else None))
    covered(target, found)
    return found


def along_axis(start: Layout, to: Layout, axis: int, rank: int, microbatch: int, microbatches: int) -> list[Contribution]:
    """What ``rank`` gets where only ``axis`` changes, from the ranks along that axis.

    Raises:
        PlanError: where the layouts do not differ as a step along one axis does.
    """
    if (start.ranks, start.hierarchy, start.shape) != (to.ranks, to.hierarchy, to.shape):
        raise PlanError("a step along one axis is between two meshes or two tensors")
    group, target = start.group(rank, axis), to.rect(rank, microbatch, microbatches)
    own, sbp = group.index(rank), start.sbp[axis]
    found = []
    for index, source in enumerate(group):
        part = start.rect(source, microbatch, microbatches).intersect(target)
        if part is None or (sbp.broadcast and index != own):
            continue
        found.append(Contribution(source, part, sbp.partial if index > 0 else None))
    covered(target, found)
    return found


def covered(target: Rect, found: list[Contribution]) -> None:
    """Checks that every element is copied once; what is combined comes on top."""
    copied = sum(entry.part.elements for entry in found if entry.combine is None)
    if copied != target.elements:
        raise PlanError(f"of {target.elements} elements of a new layout {copied} have a source")
