"""Planning: one rank captures, translates and plans, and all have what it has found, or its error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from ..command import Error, Unplanned, find
from ..plan import Plan, compile
from .translate import Translation

Mesh = str | int | Sequence[int]


@dataclass(frozen=True)
class Planned:
    """What all ranks must know."""

    plan: Plan
    translation: Translation
    has_weights: bool
    """Whether the model of the first rank has its weights, or stands on the device ``meta``."""
    counted: dict[str, int]
    """What buffers that count steps begin with."""
    state: dict[str, Any] | list[dict[str, Any]] | None
    """What the optimizer has kept of the steps that it has made."""
    own_counts: bool
    """Whether each variable counts its own updates."""
    form: Any
    """What an output is made of, or what stands beside a loss."""


def on_first_rank(world: int, rank: int, work: Callable[[], Planned]) -> Planned:
    """What the first rank has found.

    Raises:
        Error: where it fails, on all ranks.
    """
    found: list[Planned | str | bool | None] = [None, False]
    try:
        if rank == 0:
            found[0] = work()
    except Exception as error:
        # Whatever it is, the others must not wait.
        found[:] = str(error), isinstance(error, Unplanned)
        raise
    finally:
        if world > 1:
            dist.broadcast_object_list(found)
    if not isinstance(found[0], Planned):
        raise (Unplanned if found[1] else Error)(found[0] or "the first rank was interrupted")
    return found[0]


def planned(text: str, world: int, mesh: Mesh, options: dict[str, Any]) -> Plan:
    """The plan of a graph; of the meshes that ``auto`` tries the one whose step is predicted to be the shortest.

    Raises:
        Unplanned: where there is none.
        Error: where the command is nowhere.
    """
    find()
    if mesh != "auto":
        return _compiled(text, mesh, options)
    found: list[Plan] = []
    wrong: list[Error] = []
    for shape in meshes(world):
        try:
            found.append(_compiled(text, shape, options))
        except Error as error:
            wrong.append(error)
    if not found:
        raise wrong[0]
    return min(found, key=lambda plan: plan.predicted.step_seconds)


def _compiled(text: str, mesh: Mesh, options: dict[str, Any]) -> Plan:
    try:
        return compile(text, mesh=mesh, **options)
    except Error as error:
        raise Unplanned(str(error)) from error


def meshes(world: int) -> list[tuple[int, ...]]:
    """The meshes of one axis and of two that have as many ranks."""
    return [(world,), *((first, world // first) for first in range(2, world // 2 + 1) if world % first == 0)]
