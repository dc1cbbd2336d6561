"""How a tensor in a new layout is put together from the parts that ranks hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .communicator import Communicator
from .errors import PlanError
from .layout import Contribution, Layout, Rect, ReduceKind, along_axis
from .ops import HALVES, Port


@dataclass(frozen=True, slots=True)
class Change:
    """A tensor that changes its layout."""

    start: Layout
    to: Layout
    operand: Port
    result: Port


@dataclass(frozen=True, slots=True)
class Scope:
    """For whom, and when, a change of layout is worked out."""

    communicator: Communicator
    rank: int
    microbatch: int
    microbatches: int

    def along(self, change: Change, axis: int, rank: int) -> list[Contribution]:
        """What a rank gets in a step along an axis."""
        return along_axis(change.start, change.to, axis, rank, self.microbatch, self.microbatches)

    def held(self, layout: Layout, rank: int) -> Rect:
        """What a rank holds."""
        return layout.rect(rank, self.microbatch, self.microbatches)


def partial_along(changes: list[Change], axis: int) -> ReduceKind:
    """How partial values along an axis are combined, which is the same for all tensors of an all-reduce.

    Raises:
        PlanError: where it is not, or one is not partial.
    """
    kind = changes[0].start.sbp[axis].partial
    if kind is None or any(change.start.sbp[axis].partial is not kind for change in changes):
        raise PlanError("an all-reduce is of what is not partial in one way")
    return kind


def identity(dtype: torch.dtype, kind: ReduceKind) -> float | bool:
    """The value that changes nothing."""
    if kind is ReduceKind.SUM:
        return 0
    if dtype is torch.bool:
        return kind is ReduceKind.MIN
    if dtype.is_floating_point:
        return float("-inf") if kind is ReduceKind.MAX else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if kind is ReduceKind.MAX else limits.max


def combine(kind: ReduceKind, first: Tensor, second: Tensor, out: Tensor) -> None:
    """Joins two values; a NaN stays one."""
    if out.dtype is torch.bool:
        join: Any = torch.logical_and if kind is ReduceKind.MIN else torch.logical_or
    else:
        join = {ReduceKind.SUM: torch.add, ReduceKind.MAX: torch.maximum, ReduceKind.MIN: torch.minimum}[kind]
    join(first, second, out=out)


class Assembly:
    """How a result is put together: values by their rectangles, in order; sums of halves in f32."""

    def __init__(self, result: Tensor, held: Rect, parts: list[Contribution]) -> None:
        """The memory of the result, the rectangle that it is, and what goes into it."""
        self.result = result
        sums = any(part.combine is ReduceKind.SUM for part in parts)
        self.precise = sums and result.dtype in HALVES
        self.places = [part.part.within(held) for part in parts]
        self.kinds = [part.combine for part in parts]
        same = [index + 1 < len(parts) and parts[index + 1].part == part.part for index, part in enumerate(parts)]
        first = [kind is None and fits for kind, fits in zip(self.kinds, same, strict=True)]
        self.joins = [joins and self.kinds[index + 1] is not None for index, joins in enumerate(first)]
        """Whether a value need not be copied, as the next one is combined with it at once."""

    def run(self, values: list[Tensor], into: Tensor | None = None) -> None:
        """Writes the result, or other memory of its shape and type."""
        result = self.result if into is None else into
        target = torch.zeros_like(result, dtype=torch.float32) if self.precise else result
        held: Tensor | None = None
        for place, kind, value, joins in zip(self.places, self.kinds, values, self.joins, strict=True):
            if joins and value.dtype is target.dtype:
                held = value
                continue
            if kind is None:
                target[place] = value
            else:
                combine(kind, target[place] if held is None else held, value, target[place])
            held = None
        if self.precise:
            result.copy_(target)
