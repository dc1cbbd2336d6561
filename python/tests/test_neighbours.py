"""Processes of one machine read each other's memory, and fall back to messages where they cannot."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from world import root, run

import graphc_torch
from graphc_torch import neighbours

DATA = "tests/refs/mlp/data.safetensors"


def session_of(path: Path, timeout: float = 20) -> graphc_torch.Session:
    os.chdir(root())
    plan = graphc_torch.load(path)
    return graphc_torch.Session(plan, graphc_torch.model_weights(plan), timeout=timeout)


def stepped(session: graphc_torch.Session) -> list[float]:
    data = graphc_torch.load_tensors(root() / DATA)
    feeds = {name: data[name][:16] for name in session.inputs}
    return [float(session.step(feeds)["loss"]) for _ in range(3)]


@pytest.mark.parametrize("off", [(), (1,), (0, 1)])
@pytest.mark.parametrize("by", ["switch", "folder"])
def test_losses_are_the_same_by_memory_and_by_messages(compiled: Callable[..., Path], off: tuple[int, ...], by: str) -> None:
    """Where a process is told so, or has no place for the sockets of the machine, all communicate by messages."""
    path = compiled("mlp", "--mesh", "2")

    def work(rank: int) -> Any:
        if rank in off:
            os.environ[neighbours.SWITCH] = "0" if by == "switch" else "1"
            tempfile.tempdir = "/nowhere"
        session = session_of(path)
        return stepped(session), session.executor.communicator.neighbours is not None

    (first, shares), (second, _) = run(2, work)
    assert first == second and shares == (not off)
    assert first == pytest.approx(run(1, lambda _rank: stepped(session_of(compiled("mlp", "--mesh", "1"))))[0], rel=1e-6)


def test_a_rank_that_does_not_come_is_named(compiled: Callable[..., Path]) -> None:
    path = compiled("mlp", "--mesh", "2")

    def work(rank: int) -> Any:
        session = session_of(path, timeout=1)
        if rank == 1:
            time.sleep(4)
            return "slept"
        return stepped(session)

    waiting, slept = run(2, work)
    assert slept == "slept"
    assert waiting["error"].startswith("rank 0, step 0, `")
    assert waiting["error"].endswith("rank 1 has not answered within 1 s: it hangs, or needs a longer timeout")


def test_memory_that_no_session_uses_is_given_back_by_all(compiled: Callable[..., Path]) -> None:
    path = compiled("mlp", "--mesh", "2")

    def work(rank: int) -> Any:
        first = session_of(path)
        kept = first.executor.view(next(iter(first.registers().values())), 0)
        before = stepped(first)
        del first
        second = session_of(path)
        held = second.executor.communicator.neighbours
        with_view = held is not None and held.segments[1 - rank][0] is not None
        del kept
        gc.collect()
        third = session_of(path)
        return with_view, held is not None and held.segments[1 - rank][0] is None, before == stepped(second) == stepped(third)

    assert run(2, work) == [[True, True, True]] * 2


def test_a_place_outside_of_shared_memory_is_refused() -> None:
    alone = neighbours.Neighbours(0, {}, [frozenset()])
    memory = alone.take_memory(64)
    assert memory.tolist() == [0] * 64 and alone.place_of(memory[8:16]) == (0, 8) and alone.place_of(memory[:0])[0] == 0
    with pytest.raises(graphc_torch.GraphcError, match="outside of the memory that ranks share"):
        alone.place_of(torch.zeros(4))


def test_memory_that_is_not_there_is_said() -> None:
    alone = neighbours.Neighbours(3, {}, [frozenset()])
    with pytest.raises(graphc_torch.GraphcError, match=f"rank 3, taking {1 << 62} bytes of memory for the plan: "):
        alone.take_memory(1 << 62)
