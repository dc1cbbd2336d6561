"""Collectives that a model calls itself, as contrastive losses gather features, while it is captured.

A graph is of one device, and its batch has the samples of all ranks. So while a model is captured the world has one rank: a sum over ranks
is what that rank has, a norm over all ranks is a norm, and the plan makes of it what its own ranks need.

Where PyTorch's collectives hand no gradient on (``torch.distributed.all_gather``), none is handed on here either.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..command import Error
from .gradients import in_function

INSTEAD = "while a model is captured its batch is that of all ranks, and the world has one"


class Done:
    """A collective that nobody need wait for."""

    def wait(self, *_: Any) -> bool:
        """It is done."""
        return True

    is_completed = is_success = wait

    def result(self) -> list[Tensor]:
        """Nothing beside what is in place."""
        return []


@contextmanager
def world_of_one() -> Iterator[None]:
    """Lets a model that calls collectives compute as the only rank while this is entered.

    Raises:
        Error: where it speaks to some ranks alone, or counts them otherwise than by asking for the world's size.
    """
    if not dist.is_available():
        yield
        return
    found = _replaced(_stand_ins())
    forward = nn.SyncBatchNorm.forward
    for module, name, _, other in found:
        setattr(module, name, other)
    nn.SyncBatchNorm.forward = _BatchNorm.forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        for module, name, own, _ in found:
            setattr(module, name, own)
        nn.SyncBatchNorm.forward = forward  # type: ignore[method-assign]


def _replaced(stand_ins: Mapping[Any, Callable[..., Any]]) -> list[tuple[Any, str, Any, Callable[..., Any]]]:
    """The modules that have such a function, their names for it, and what stands for it: the user's, and PyTorch's where users find it."""
    modules: list[tuple[str, Any]] = list(sys.modules.items())
    users = [module for path, module in modules if not path.startswith(("torch.", "graphc.")) or path.startswith("torch.distributed")]
    held = [(module, name, value) for module in users for name, value in list(getattr(module, "__dict__", {}).items())]
    return [(*at, stand_ins[at[2]]) for at in held if type(at[2]) is FunctionType and at[2] in stand_ins]


def _stand_ins() -> dict[Any, Callable[..., Any]]:
    """What stands for each function in a world of one rank."""
    size, rank = dist.get_world_size, dist.get_rank
    ranks = size() if dist.is_initialized() else 1

    def check(group: Any) -> None:
        if group is not None and group is not dist.group.WORLD and isinstance(group, dist.ProcessGroup) and size(group) != ranks:
            raise Error(f"the model speaks to {size(group)} of {ranks} ranks, and {INSTEAD}: leave the group out")

    def of_world(own: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(own)

        def call(*given: Any, **more: Any) -> Any:
            arguments = signature.bind(*given, **more).arguments
            check(arguments.pop("group", None))
            is_async = arguments.pop("async_op", False)
            found = other(**arguments)
            return Done() if is_async else found

        return call

    in_place: dict[Any, Callable[..., Any]] = {
        size: lambda: 1,
        rank: lambda: 0,
        dist.all_reduce: lambda tensor, **_: None,
        dist.reduce: lambda tensor, **_: None,
        dist.broadcast: lambda tensor, **_: None,
        dist.barrier: lambda **_: None,
        dist.all_gather: lambda tensor_list, tensor: _write(_only(tensor_list), tensor),
        dist.all_gather_object: lambda object_list, obj: _put_one(object_list, obj),
        dist.all_gather_into_tensor: lambda output_tensor, input_tensor: _write(output_tensor, input_tensor),
        dist.reduce_scatter: lambda output, input_list, **_: _write(output, _only(input_list)),
        dist.reduce_scatter_tensor: lambda output, input, **_: _write(output, input),
        dist.all_to_all: lambda output_tensor_list, input_tensor_list: _write(_only(output_tensor_list), _only(input_tensor_list)),
        dist.all_to_all_single: lambda output, input, **_: _write(output, input),
    }
    with_gradients: dict[Any, Callable[..., Any]] = {
        differentiable.all_reduce: lambda tensor, **_: tensor.clone(),
        differentiable.all_gather: lambda tensor: (tensor.clone(),),
        differentiable.broadcast: lambda tensor, **_: tensor.clone(),
        differentiable.reduce: lambda tensor, **_: tensor.clone(),
        differentiable.reduce_scatter: lambda output, input_list, **_: _only(input_list).clone(),
        functional.all_reduce: lambda self, **_: self.clone(),
        functional.all_gather_tensor: lambda self, **_: self.clone(),
        functional.all_gather_tensor_autograd: lambda self, **_: self.clone(),
        functional.reduce_scatter_tensor: lambda self, **_: self.clone(),
    }
    others = [dist.send, dist.recv, dist.isend, dist.irecv, dist.gather, dist.scatter, dist.new_group, dist.broadcast_object_list]
    found = {own: of_world(own, other) for own, other in {**in_place, **with_gradients}.items()}
    return found | {own: _refuser(own.__name__) for own in others}


def _refuser(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise Error(f"the model calls torch.distributed.{name}, and {INSTEAD}: leave it out, all samples are there")

    return refuse


def _only(parts: Sequence[Any]) -> Any:
    """The one of as many as the world has ranks.

    Raises:
        Error: where there are more.
    """
    if len(parts) != 1:
        advice = "ask torch.distributed.get_world_size() for their number where the model is called"
        raise Error(f"the model has {len(parts)} tensors for as many ranks, and {INSTEAD}: {advice}")
    return parts[0]


def _write(target: Tensor, x: Tensor) -> None:
    """Writes what PyTorch writes unseen by its gradients; a function that has a ``backward`` of its own says there what they are."""
    if target.shape != x.shape:
        raise Error(f"the model gathers {list(x.shape)} into {list(target.shape)}, and {INSTEAD}")
    # A copy in place has no gradient in a function that is compared with its own.
    target.zero_().add_(x if in_function() else x.detach())


def _put_one(parts: list[Any], content: Any) -> None:
    _only(parts)
    parts[0] = content
