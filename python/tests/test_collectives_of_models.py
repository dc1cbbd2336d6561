"""Models that call collectives themselves: a plan trains them as one process does on the whole batch."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from cases import flat
from torch import Tensor, nn
from torch.distributed import get_rank, get_world_size
from world import alone, run

import graphc

pytestmark = pytest.mark.usefixtures("exporter", "command")

ROWS, STEPS = 4, 5


class Gather(torch.autograd.Function):
    """Gathers rows, and hands each rank the gradients of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, ...]:
        found = [torch.zeros_like(x) for _ in range(get_world_size())]
        dist.all_gather(found, x)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        whole = torch.stack(gradients)
        dist.all_reduce(whole)
        return whole[get_rank()]


def by_a_function(_: nn.Module, x: Tensor) -> Tensor:
    return torch.cat(Gather.apply(x))  # type: ignore[no-untyped-call]


def with_gradients(_: nn.Module, x: Tensor) -> Tensor:
    return torch.cat(torch.distributed.nn.all_gather(x))  # type: ignore[no-untyped-call, attr-defined]


def with_its_own(_: nn.Module, x: Tensor) -> Tensor:
    """The others' rows have no gradient."""
    found = [torch.zeros_like(x) for _ in range(get_world_size())]
    dist.all_gather(found, x)
    found[get_rank()] = x
    return torch.cat(found)


def without_gradients(_: nn.Module, x: Tensor) -> Tensor:
    found = x.new_zeros(x.shape[0] * get_world_size(), *x.shape[1:])
    work = dist.all_gather_into_tensor(found, x, group=dist.group.WORLD, async_op=True)
    work.wait()
    return found


def centered(model: nn.Module, x: Tensor) -> Tensor:
    """A state that follows the mean of all rows."""
    with torch.no_grad():
        total = x.sum(0)
        dist.all_reduce(total)
        model.center.mul_(0.9).add_(total / (len(x) * get_world_size()), alpha=0.1)  # type: ignore[operator, union-attr]
    return x - model.center  # type: ignore[operator]


def centered_at_once(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        model.center.mul_(0.9).add_(x.mean(0), alpha=0.1)  # type: ignore[operator, union-attr]
    return x - model.center  # type: ignore[operator]


def correlated(_: nn.Module, x: Tensor) -> Tensor:
    """A product over all rows, of which ranks have parts."""
    product = x.t() @ x / (len(x) * get_world_size())
    dist.all_reduce(product)
    return x + product.diagonal()


Way = Callable[[nn.Module, Tensor], Tensor]

WAYS: list[tuple[Way, Way]] = [
    (by_a_function, lambda _, x: x),
    (with_gradients, lambda _, x: x),
    (with_its_own, lambda _, x: x),
    (without_gradients, lambda _, x: x.detach()),
    (centered, centered_at_once),
    (correlated, lambda _, x: x + x.square().mean(0)),
]
"""What ranks do together, and what a single process does that has all samples."""


class Gathering(nn.Module):
    def __init__(self, way: Way) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
        self.register_buffer("center", torch.zeros(4))
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x)
        others = self.way(self, x)
        return F.cross_entropy(x @ others.t(), torch.arange(len(x)))


def begun(way: Way) -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
    torch.manual_seed(0)
    model = Gathering(way)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(ROWS, 6)


def plain(way: Way) -> tuple[list[float], dict[str, list[float]]]:
    """Losses and weights of PyTorch."""
    model, optimizer, x = begun(way)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(x)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses, flat(model.state_dict())


@pytest.mark.parametrize(("way", "at_once"), WAYS)
def test_ranks_compute_what_one_computes_of_all_samples(way: Way, at_once: Way) -> None:
    expected = plain(at_once)
    # To compare a function's backward with its forward takes gradients, of which a process has none that is forked from this one.
    world = 1 if way is by_a_function else 2

    def work(rank: int) -> Any:
        model, optimizer, x = begun(way)
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        own = x.chunk(world)[rank]
        parallel = graphc.parallelize(model, own, optimizer=optimizer)
        return [float(parallel.step(own)) for _ in range(STEPS)], flat(parallel.state_dict())

    for found in alone(lambda: work(0)) if world == 1 else run(world, work):
        assert not isinstance(found, dict), found["error"]
        losses, state = found
        assert losses == pytest.approx(expected[0], abs=1e-5)
        assert list(state) == list(expected[1])
        for name, content in state.items():
            assert content == pytest.approx(expected[1][name], abs=1e-5), name


def sends(_: nn.Module, x: Tensor) -> Tensor:
    dist.send(x, 1)
    return x


def counts_ranks_by_itself(_: nn.Module, x: Tensor) -> Tensor:
    found = [torch.zeros_like(x) for _ in range(2)]
    dist.all_gather(found, x)
    return torch.cat(found)


def sums_in_a_group(model: nn.Module, x: Tensor) -> Tensor:
    dist.all_reduce(x, group=model.group)
    return x


def makes_a_group(_: nn.Module, x: Tensor) -> Tensor:
    dist.all_reduce(x, group=dist.new_group([0, 1]))
    return x


@pytest.mark.parametrize(
    ("way", "said"),
    [
        (
            sends,
            "the model calls torch.distributed.send, and while a model is captured its batch is that of all ranks, and the world has one",
        ),
        (counts_ranks_by_itself, "the model has 2 tensors for as many ranks, and .*: ask torch.distributed.get_world_size\\(\\)"),
        (makes_a_group, "the model calls torch.distributed.new_group, and"),
        (sums_in_a_group, "the model speaks to 1 of 2 ranks, and .*: leave the group out .*test_collectives_of_models.py, line"),
    ],
)
def test_what_is_no_work_of_one_rank_is_refused(way: Way, said: str) -> None:
    def work(rank: int) -> Any:
        model, optimizer, x = begun(way)
        dist.init_process_group("gloo")
        group: Any = dist.new_group([0])
        model.group = group
        before = dist.all_reduce, dist.get_rank, nn.SyncBatchNorm.forward
        try:
            graphc.parallelize(model, x.chunk(2)[rank], optimizer=optimizer)
        except graphc.Error as error:
            assert before == (dist.all_reduce, dist.get_rank, nn.SyncBatchNorm.forward)
            return str(error)
        return None

    for found in run(2, work):
        assert isinstance(found, str), found
        assert re.search(said, found), found
