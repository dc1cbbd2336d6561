"""Worlds of processes for tests: forked from one that has loaded PyTorch already."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphc_torch.errors import GraphcError
from graphc_torch.seal import BEFORE, BEHIND


def run(world: int, work: Callable[[int], Any]) -> list[Any]:
    """What each rank of a world makes of its number: JSON, or the text of its error as ``{"error": ..}``."""
    port = _free_port()
    sys.stdout.flush()
    gate = os.pipe()
    ranks = [_fork(rank, world, port, work, gate) for rank in range(world)]
    os.close(gate[0])
    found = []
    for _, pipe in ranks:
        with os.fdopen(pipe) as answer:
            text = answer.read()
        found.append(json.loads(text) if text else {"error": "the process died"})
    os.close(gate[1])
    for pid, _ in ranks:
        os.waitpid(pid, 0)
    return found


def alone(work: Callable[[], Any]) -> list[Any]:
    """What a world of one process makes, in this one, which is not forked: where gradients are PyTorch's own.

    PyTorch computes none in a process that is forked from one that has computed some, as other tests do.
    """
    return [json.loads(json.dumps(work()))]


def start(world: int, command: list[str], environment: dict[str, str]) -> list[str]:
    """Runs a program for each rank of a world, without torchrun, which not every build of PyTorch can start: what each that failed said."""
    port = _free_port()
    jobs = [
        subprocess.Popen(command, cwd=root(), env=environment | _variables(rank, world, port), stderr=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    said = [job.communicate()[1] for job in jobs]
    return [f"exit status {job.returncode}: {text}" for job, text in zip(jobs, said, strict=True) if job.returncode]


def _free_port() -> int:
    """A port below those that the system gives to a socket on its own: none can take it before rank 0 listens there."""
    while True:
        port = random.randrange(15_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def _variables(rank: int, world: int, port: int) -> dict[str, str]:
    """What torchrun tells a rank."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _fork(rank: int, world: int, port: int, work: Callable[[int], Any], gate: tuple[int, int]) -> tuple[int, int]:
    """A process and the end of a pipe that has its answer. It stays until all have answered: then nobody waits for it any more, and it
    ends at once, as groups of older versions of gloo sometimes never end."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    os.close(gate[1])
    os.environ.update(_variables(rank, world, port))
    try:
        answer: Any = work(rank)
    except GraphcError as error:
        answer = {"error": str(error)}
    except BaseException:
        answer = {"error": traceback.format_exc()}
    with os.fdopen(write, "w") as pipe:
        pipe.write(json.dumps(answer))
    os.read(gate[0], 1)
    os._exit(0)


def sealed(plan: Any) -> str:
    """The text of a plan that was changed by hand, with a seal that holds: as nobody makes it who does not want to deceive."""
    content = json.dumps({name: value for name, value in plan.items() if name != "seal"}, indent=1).removesuffix("\n}")
    return content + BEFORE.decode() + hashlib.sha256(content.encode()).hexdigest() + BEHIND.decode()


def root() -> Path:
    """The folder of the project."""
    return Path(__file__).parents[2]
