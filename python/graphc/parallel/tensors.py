"""A session's variables as PyTorch's tensors: whole ones, and this rank's parts of those that are cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import graphc_torch
from graphc_torch.layout import Layout
from graphc_torch.ops import TORCH
from graphc_torch.session import Session

from ..command import Error

Read = Callable[[str], Tensor]
"""The content of a variable by its name."""


def put(session: Session, name: str, value: Tensor) -> None:
    """Overwrites a variable with a whole tensor, or one of which each rank has a part."""
    register = session.registers().get(name)
    given: Any = value.detach()
    with in_own_words():
        if hasattr(given, "full_tensor"):
            part = given.to_local()
            if register is not None and part.data_ptr() == session.executor.view(register, 0).data_ptr():
                return
            given = given.full_tensor()
        dtype = TORCH[session.variables()[name][1]]
        session.set_variable(name, given.to(dtype))


class Parts:
    """Variables as ``DTensor`` over this rank's own memory, where PyTorch knows their layouts; else they are whole."""

    def __init__(self, session: Session) -> None:
        """Those of a session."""
        self.session = session
        self.meshes: dict[tuple[tuple[int, ...], tuple[int, ...]], Any] = {}

    def read(self, name: str) -> Tensor:
        """A variable. All processes call it, in the same order."""
        layout = self.session.plan.variables[name][1]
        if not _is_cut_alike(layout, self.session.plan.world_size):
            with in_own_words():
                return self.session.variable(name)
        from torch.distributed.tensor import DTensor, Replicate, Shard

        local = self.session.executor.view(self.session.registers()[name], 0)
        places = [Replicate() if sbp.split is None else Shard(sbp.split) for sbp in layout.sbp]
        shape = torch.Size(layout.shape)
        stride = torch.empty(shape, device="meta").stride()
        found: Tensor = DTensor.from_local(local, self._mesh(layout), places, run_check=False, shape=shape, stride=stride)
        return found

    def _mesh(self, layout: Layout) -> Any:
        key = (layout.ranks.list, layout.hierarchy)
        if key not in self.meshes:
            from torch.distributed.device_mesh import DeviceMesh

            ranks = torch.tensor(layout.ranks.list).view(layout.hierarchy)
            self.meshes[key] = DeviceMesh(self.session.device.type, ranks)
        return self.meshes[key]


def _is_cut_alike(layout: Layout, world: int) -> bool:
    """Whether all ranks have parts of one size: of uneven parts PyTorch has other sizes than graphc."""
    extents = list(layout.shape)
    for sbp, parts in zip(layout.sbp, layout.hierarchy, strict=True):
        if sbp.partial is not None:
            return False
        if sbp.split is not None:
            if extents[sbp.split] % parts:
                return False
            extents[sbp.split] //= parts
    cut = any(sbp.split is not None for sbp in layout.sbp)
    return cut and world > 1 and sorted(layout.ranks.list) == list(range(world))


def from_first(tensor: Tensor, world: int, device: torch.device) -> Tensor:
    """The first rank's content of a tensor."""
    if world == 1:
        return tensor
    held = torch.empty(tensor.shape, dtype=tensor.dtype, device=device) if tensor.is_meta else tensor.to(device).contiguous()
    dist.broadcast(held.view(torch.uint8) if held.dtype is torch.bool else held, 0)
    return held


@contextmanager
def in_own_words() -> Iterator[None]:
    """Errors of the engine as those of this package."""
    try:
        yield
    except graphc_torch.GraphcError as error:
        raise Error(str(error)) from error
