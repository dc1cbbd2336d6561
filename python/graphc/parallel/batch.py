"""Batches: tensors in tuples, lists and mappings, by names, and the whole batch of which each rank brings its own rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from graphc_torch.data import type_of
from graphc_torch.errors import failing

from ..command import Error


def named(batch: Any) -> dict[str, Tensor]:
    """The tensors of a batch: ``batch.input_ids``, ``batch.0``, or ``batch`` where it is one.

    Raises:
        Error: where it holds something else.
    """
    paths, _ = pytree.tree_flatten_with_path(plain(batch))
    found = {"batch" + "".join(f".{_key(key)}" for key in path): leaf for path, leaf in paths}
    others = [name for name, leaf in found.items() if not isinstance(leaf, Tensor)]
    if others:
        raise Error(f"`{others[0]}` is {type(found[others[0]]).__name__}: let a batch hold tensors alone")
    if not found:
        raise Error("the batch holds no tensors")
    return found


def plain(batch: Any) -> Any:
    """A batch of which PyTorch knows the parts."""
    return dict(batch) if isinstance(batch, Mapping) else batch


def _key(key: Any) -> str:
    return str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))))


@dataclass(frozen=True)
class Whole:
    """How the rows of all ranks make one batch."""

    rows: int
    """Of each rank, in each of the batches that make a step."""
    world: int
    types: Mapping[str, str]
    """Of a rank's tensors."""
    sampled: frozenset[str]
    """The tensors that have a row for each sample; the others are the same on all ranks."""
    parts: int
    """How many batches of a rank make a step."""

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], world: int, parts: int = 1) -> Whole:
        """Samples are counted by the first dim of the first tensor that has one."""
        rows = next((tensor.shape[0] for tensor in tensors.values() if tensor.dim() > 0), 1)
        sampled = frozenset(name for name, tensor in tensors.items() if tensor.dim() > 0 and tensor.shape[0] == rows)
        return cls(rows, world, {name: type_of(tensor) for name, tensor in tensors.items()}, sampled, parts)

    def inputs(self) -> dict[str, bool]:
        """The tensors in order, and whether each has a row for each sample."""
        return {name: name in self.sampled for name in self.types}

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Checks that a batch is as the example was.

        Raises:
            Error: where it is not.
        """
        for name, expected in self.types.items():
            found = type_of(tensors[name]) if name in tensors else "not there"
            if found != expected:
                raise Error(f"`{name}` is {found}, and in the example batch it is {expected}: the plan is for batches like that")
        others = [name for name in tensors if name not in self.types]
        if others:
            raise Error(f"`{others[0]}` is not in the example batch, which has {', '.join(self.types)}")

    def example(self, batch: Any, device: torch.device) -> Any:
        """A whole batch without content."""

        def whole(tensor: Tensor) -> Tensor:
            sampled = tensor.dim() > 0 and tensor.shape[0] == self.rows
            return torch.empty(self._shape(tensor, sampled), dtype=tensor.dtype, device=device)

        return pytree.tree_map_only(Tensor, whole, plain(batch))

    def feeds(self, batches: Sequence[Mapping[str, Tensor]], device: torch.device) -> dict[str, Tensor]:
        """What a step is fed: the rows of these batches, and of all ranks in their order.

        Raises:
            Error: where there are more or fewer than make a step, or one is not as the example was.
        """
        if len(batches) != self.parts:
            raise Error(f"a step is made of {self.parts} batches, as accumulate says, and {len(batches)} are given")
        for tensors in batches:
            self.check(tensors)
        return {name: self._gathered([tensors[name] for tensors in batches], name in self.sampled, device) for name in self.types}

    def _gathered(self, parts: Sequence[Tensor], sampled: bool, device: torch.device) -> Tensor:
        own = torch.cat(list(parts)) if sampled and len(parts) > 1 else parts[0]
        own = own.detach().to(device).contiguous()
        if self.world == 1 or not sampled:
            return own
        whole = torch.empty((own.shape[0] * self.world, *own.shape[1:]), dtype=own.dtype, device=device)
        with failing(dist.get_rank(), "gathering the rows of a batch"):
            dist.all_gather(list(_bytes(whole).chunk(self.world)), _bytes(own))
        return whole

    def _shape(self, tensor: Tensor, sampled: bool) -> tuple[int, ...]:
        return (tensor.shape[0] * self.world * self.parts, *tensor.shape[1:]) if sampled else tuple(tensor.shape)


def _bytes(tensor: Tensor) -> Tensor:
    """A tensor whose elements can be sent."""
    return tensor.view(torch.uint8) if tensor.dtype is torch.bool else tensor
