"""Measured seconds of each actor, beside what the plan says of it.

Actions of a step are timed one by one, each until the device has ended it, so times add up to more than a step where streams would
overlap. Of a collective this includes waiting for those who come later; the least of all ranks' times is that of the last who came.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections import defaultdict
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import plan as plans
from .errors import FeedError, failing
from .files import write_whole
from .ops import TORCH
from .plan import Actor
from .session import Session

VERSION = 1


def profile(session: Session, steps: int, path: Path) -> None:
    """Measures steps on random feeds after one that warms up, and writes what all ranks found.

    Raises:
        FeedError: where the file cannot be written.
    """
    with failing(session.rank, "taking memory for feeds"):
        feeds = {name: _content(layout.shape, TORCH[layout.dtype]) for name, layout in session.inputs.items()}
    session.step(feeds)
    whole = []
    for _ in range(steps):
        session.barrier()
        begun = perf_counter()
        session.step(feeds)
        _wait(session)
        whole.append(perf_counter() - begun)
    times = _actions(session, steps, feeds)
    found: list[Any] = [None] * session.plan.world_size
    mine = {actor: statistics.median(all_of) for actor, all_of in times.items()}
    if session.plan.world_size > 1:
        dist.all_gather_object(found, mine)
    else:
        found = [mine]
    if session.leads:
        _write(path, _document(session, found, statistics.median(whole)))


def _content(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        return torch.rand(shape).to(dtype)
    return torch.zeros(shape, dtype=dtype)


def _wait(session: Session) -> None:
    if session.device.type == "cuda":
        torch.cuda.synchronize(session.device)


def _actions(session: Session, steps: int, feeds: dict[str, Tensor]) -> dict[int, list[float]]:
    """Seconds of each action, by actor."""
    times: dict[int, list[float]] = defaultdict(list)
    executor, clock = session.executor, session.executor.clock
    for _ in range(steps):
        clock.feeds, clock.step = feeds, session.steps
        session.barrier()
        with torch.no_grad():
            for action in executor.step_of(executor.begun):
                begun = perf_counter()
                executor.act(action)
                _wait(session)
                if action.actor >= 0:
                    times[action.actor].append(perf_counter() - begun)
        executor.begun += 1
    return times


def _document(session: Session, found: list[Any], step: float) -> dict[str, Any]:
    """The actors of each program, with the median seconds of its ranks; of communication the least."""
    plan, programs = session.plan, []
    for index, program in enumerate(plan.programs):
        ranks = [rank for rank, entry in enumerate(plan.ranks) if entry.program == index]
        actors = []
        for number, actor in enumerate(program.actors):
            seconds = [found[rank][number] for rank in ranks if number in found[rank]]
            if seconds:
                measured = min(seconds) if _communicates(actor) else statistics.median(seconds)
                head = {"actor": number, "name": actor.name, "kind": kind_of(actor), "seconds": measured}
                actors.append({**head, **_work(session, program, actor)})
        programs.append({"program": index, "actors": actors})
    head = {"format": "graphc measured", "version": VERSION, "plan": plan.name, "ranks": plan.world_size}
    engine = {"engine": f"torch {torch.__version__}", "threads": torch.get_num_threads(), **_device(session)}
    return {**head, **engine, "step_seconds": step, "programs": programs}


def _device(session: Session) -> dict[str, Any]:
    """The device, and the bytes of memory that a rank has."""
    if session.device.type == "cuda":
        properties = torch.cuda.get_device_properties(session.device)
        return {"device": properties.name, "memory": properties.total_memory}
    local = int(os.environ.get("LOCAL_WORLD_SIZE", session.plan.world_size))
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"device": "cpu", "memory": whole // max(local, 1)}


def _communicates(actor: Actor) -> bool:
    return isinstance(actor.action.does, plans.Collective | plans.Send | plans.Receive)


def _work(session: Session, program: plans.Program, actor: Actor) -> dict[str, Any]:
    """How much an action does: FLOPs, bytes (of a collective those of its message) and ranks."""
    does, bytes_of, ranks = actor.action.does, actor.bytes, 1
    registers = [program.registers[index] for index in actor.outputs or actor.updates or actor.inputs]
    layouts = [session.plan.layouts[register.layout] for register in registers]
    if isinstance(does, plans.Collective):
        ranks = layouts[0].hierarchy[does.axis]
        shards = zip(registers, layouts, strict=True)
        bytes_of = float(sum(math.prod(shard.shape) * TORCH[layout.dtype].itemsize for shard, layout in shards))
    dtype = layouts[0].dtype if layouts else None
    return {"flops": actor.flops, "bytes": bytes_of, "dtype": dtype, "ranks": ranks}


def kind_of(actor: Actor) -> str:
    """The op of an actor, or what else it does, in the words of plans."""
    does = actor.action.does
    if isinstance(does, plans.Compute):
        return does.op.name
    if isinstance(does, plans.Collective | plans.Local):
        return does.kind.value
    return next(name for name, action in plans.ACTIONS.items() if isinstance(does, action))


def _write(path: Path, document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    try:
        write_whole(path, lambda beside: beside.write_text(text, encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FeedError(f"cannot write {path}: {error}") from error
