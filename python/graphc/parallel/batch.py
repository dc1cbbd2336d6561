"""Batches: tensors in tuples, lists and mappings, by names, and the whole batch of which each rank brings its own rows."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from graphc_torch.data import type_of
from graphc_torch.errors import failing

from ..command import Error, Unplanned


def named(batch: Any) -> dict[str, Tensor]:
    """The tensors of a batch: ``batch.input_ids``, ``batch.0``, or ``batch`` where it is one.

    Raises:
        Error: where it holds something else, but for ``None``, ``True`` and ``False``.
    """
    found = {name: leaf for name, leaf in _leaves(batch).items() if not _is_fixed(leaf)}
    others = [name for name, leaf in found.items() if not isinstance(leaf, Tensor)]
    if others:
        advice = "let a batch hold tensors alone, numbers as tensors too; None, True and False may stand beside them"
        raise Unplanned(f"`{others[0]}` is {type(found[others[0]]).__name__}: {advice}")
    if not found:
        raise Unplanned("the batch holds no tensors")
    return found


def fixed(batch: Any) -> dict[str, bool | None]:
    """What of a batch is part of its plan: ``None``, ``True`` and ``False``."""
    return {name: leaf for name, leaf in _leaves(batch).items() if _is_fixed(leaf)}


def _is_fixed(leaf: Any) -> bool:
    return leaf is None or isinstance(leaf, bool)


def _leaves(batch: Any) -> dict[str, Any]:
    paths, _ = pytree.tree_flatten_with_path(plain(batch))
    return {"batch" + "".join(f".{_key(key)}" for key in path): leaf for path, leaf in paths}


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
    fixed: Mapping[str, bool | None]
    """What is no tensor."""

    @classmethod
    def of(cls, batch: Any, world: int, parts: int = 1) -> Whole:
        """Samples are counted by the first dim of the first tensor that has one."""
        tensors = named(batch)
        rows = next((tensor.shape[0] for tensor in tensors.values() if tensor.dim() > 0), 1)
        sampled = frozenset(name for name, tensor in tensors.items() if tensor.dim() > 0 and tensor.shape[0] == rows)
        return cls(rows, world, {name: type_of(tensor) for name, tensor in tensors.items()}, sampled, parts, fixed(batch))

    @property
    def key(self) -> tuple[tuple[str, object], ...]:
        """What batches of one plan have in common."""
        return (*self.types.items(), *self.fixed.items())

    def inputs(self) -> dict[str, bool]:
        """The tensors in order, and whether each has a row for each sample."""
        return {name: name in self.sampled for name in self.types}

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Checks that a batch is as the first of its step.

        Raises:
            Error: where it is not.
        """
        for name, expected in self.types.items():
            found = type_of(tensors[name]) if name in tensors else "not there"
            if found != expected:
                raise Error(f"`{name}` is {found}, and in the first batch of this step it is {expected}: let them be alike")

    def check_kind(self, example: Whole) -> None:
        """Checks that a batch differs from the example in extents alone.

        Raises:
            Error: where it differs in more.
        """
        for name, expected in example.types.items():
            found = self.types.get(name, "not there")
            if _kind(found) != _kind(expected):
                raise Error(f"`{name}` is {found}, and in the example batch it is {expected}: batches may differ in extents, not in more")
        others = [name for name in self.types if name not in example.types]
        if others:
            raise Error(f"`{others[0]}` is not in the example batch, which has {', '.join(example.types)}")

    def agree(self) -> None:
        """Checks that the batches of all ranks are alike. All processes call it.

        Raises:
            Error: where they are not.
        """
        # On a card ranks would have to wait for it.
        if self.world == 1 or dist.get_backend() != "gloo":
            return
        own = torch.tensor(zlib.crc32(repr(self.key).encode()))
        all_of = [torch.empty_like(own) for _ in range(self.world)]
        with failing(dist.get_rank(), "comparing its batch with the others'"):
            dist.all_gather(all_of, own)
        if any(int(other) != int(all_of[0]) for other in all_of):
            self._tell()

    def _tell(self) -> None:
        """Says whose batch is another than the first rank's."""
        keys: list[Any] = [None] * self.world
        dist.all_gather_object(keys, self.key)
        rank = next(rank for rank, key in enumerate(keys) if key != keys[0])
        first, other = dict(keys[0]), dict(keys[rank])
        name = next(name for name in {**first, **other} if first.get(name) != other.get(name))
        said = f"`{name}` is {other.get(name)} on rank {rank} and {first.get(name)} on rank 0"
        raise Error(f"{said}: let all ranks have batches of one shape, as DistributedSampler gives them")

    def example(self, batch: Any, device: torch.device) -> Any:
        """A whole batch without content."""

        def whole(tensor: Tensor) -> Tensor:
            sampled = tensor.dim() > 0 and tensor.shape[0] == self.rows
            return torch.empty(self._shape(tensor, sampled), dtype=tensor.dtype, device=device)

        return pytree.tree_map_only(Tensor, whole, plain(batch))

    def feeds(self, batches: Sequence[Mapping[str, Tensor]], device: torch.device) -> dict[str, Tensor]:
        """What a step is fed: the rows of these batches, and of all ranks in their order.

        Raises:
            Error: where one is not as the first is.
        """
        for tensors in batches:
            self.check(tensors)
        return {name: self._gathered([tensors[name] for tensors in batches], name in self.sampled, device) for name in self.types}

    def own_rows(self, tensor: Tensor, rank: int) -> Tensor:
        """A rank's part of what has rows for all samples of a step, one or several for each; all else as it is."""
        rows = self.rows * self.world * self.parts
        cut = tensor.dim() > 0 and tensor.shape[0] > 0 and tensor.shape[0] % rows == 0
        return tensor.chunk(self.world)[rank].clone() if cut else tensor

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


def _kind(type_: str) -> tuple[str, int]:
    """Of a type as plans write it the element type, and how many dims there are."""
    element, _, extents = type_.partition("[")
    return element, len([extent for extent in extents.rstrip("]").split(",") if extent])


def _bytes(tensor: Tensor) -> Tensor:
    """A tensor whose elements can be sent."""
    return tensor.view(torch.uint8) if tensor.dtype is torch.bool else tensor
