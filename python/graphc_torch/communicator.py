"""A rank's way to the others: process groups, and the memory of processes on the same machine."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import PlanError, failing
from .layout import Layout
from .neighbours import neighbours_of
from .plan import Channel, Collective, Plan


class Communicator:
    """The way of one rank to the others: process groups, by their ranks."""

    def __init__(self, plan: Plan, rank: int, device: torch.device, timeout: float) -> None:
        """Makes all groups that the plan's ranks need; all ranks call it."""
        self.plan, self.rank = plan, rank
        self.alone = plan.world_size == 1
        self.nccl = not self.alone and dist.get_backend() == "nccl"
        self.groups: dict[tuple[int, ...], Any] = {}
        self.channels: dict[int, Any] = {}
        shares = not self.alone and device.type == "cpu"
        self.neighbours = neighbours_of(rank, plan.world_size, timeout) if shares else None
        """Processes of this machine, whose memory this one can read."""
        if not self.alone:
            self._join()

    def _join(self) -> None:
        everybody = tuple(range(self.plan.world_size))
        # All ranks make all groups, in one order.
        for ranks in sorted(ranks for ranks in _collective_groups(self.plan) if len(ranks) > 1):
            self.groups[ranks] = dist.group.WORLD if ranks == everybody else dist.new_group(list(ranks))
        # Sends of one channel must not queue behind those of another: NCCL has an order for each group alone.
        for number, channel in enumerate(self.plan.channels) if self.nccl else ():
            ranks = _ends(self.plan, channel)
            self.channels[number] = dist.new_group(list(ranks))

    def take_memory(self, size: int, device: torch.device) -> Tensor:
        """A rank's arena of this many bytes, which are 0. All ranks call it.

        Raises:
            RunError: where memory is short.
        """
        if self.neighbours is not None:
            return self.neighbours.take_memory(size)
        with failing(self.rank, f"taking {size} bytes of memory for the plan"):
            return torch.zeros(size, dtype=torch.uint8, device=device)

    def group(self, ranks: tuple[int, ...]) -> Any:
        """The group of these ranks.

        Raises:
            PlanError: where no collective has it.
        """
        if ranks not in self.groups:
            raise PlanError(f"no collective of the plan is of the ranks {list(ranks)}")
        return self.groups[ranks]


def _collective_groups(plan: Plan) -> set[tuple[int, ...]]:
    found = set()
    for program in plan.programs:
        for actor in program.actors:
            if isinstance(actor.action.does, Collective) and actor.inputs:
                layout = plan.layouts[program.registers[actor.inputs[0]].layout]
                found.update(layout.groups(axis_of(layout, actor.action.does.axis)))
    return found


def axis_of(layout: Layout, axis: int) -> int:
    """An axis of a layout's mesh.

    Raises:
        PlanError: where it has none such.
    """
    if not 0 <= axis < len(layout.hierarchy):
        raise PlanError(f"a collective is over axis {axis} of a mesh {list(layout.hierarchy)}")
    return axis


def _ends(plan: Plan, channel: Channel) -> tuple[int, ...]:
    return tuple(sorted({*plan.layouts[channel.start].ranks.list, *plan.layouts[channel.to].ranks.list}))
