"""What is wrong is said in a line, with exit status 1, and nobody hangs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from world import root, run

import graphc_torch
from graphc_torch.cli import main

DATA = "tests/refs/mlp/data.safetensors"


@pytest.fixture
def edited(compiled: Callable[..., Path], tmp_path: Path) -> Callable[[Callable[[Any], None]], Path]:
    """A plan of one rank, changed by hand."""

    def edit(change: Callable[[Any], None]) -> Path:
        plan = json.loads(compiled("mlp", "--mesh", "1").read_text())
        change(plan)
        path = tmp_path / "edited.json"
        path.write_text(json.dumps(plan))
        return path

    return edit


def refused(path: Path, capsys: pytest.CaptureFixture[str], *extra: str) -> str:
    os.chdir(root())
    assert main(["train", str(path), "--data", DATA, "--steps", "1", *extra]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1, error
    return error


def of_op(plan: Any) -> Any:
    return next(a["action"]["compute"] for a in plan["programs"][0]["actors"] if "compute" in a["action"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda plan: plan.update(version=9), "it has version 9, this package reads version 3: compile the model again"),
        (lambda plan: plan.pop("version"), "it has no version"),
        (lambda plan: plan.pop("layouts"), "plan has no `layouts`"),
        (lambda plan: plan.update(colour="red"), "the field `colour`, which this version does not know"),
        (lambda plan: plan.update(microbatches="two"), "plan.microbatches: a whole number is expected"),
        (lambda plan: plan["programs"][0]["registers"][0].update(layout=999), "programs[0].registers[0].layout is 999"),
        (lambda plan: plan["programs"][0]["registers"][0].update(offset=1 << 40), "does not fit into the arena"),
        (lambda plan: plan["programs"][0]["registers"][0].update(shape=[3, 3]), "its layout gives rank 0"),
        (lambda plan: plan["layouts"][0].update(sbp=["X"]), "`X` is no layout"),
        (lambda plan: of_op(plan)["op"].update(op="teleport"), "the op `teleport` is none that this version has"),
        (lambda plan: of_op(plan)["op"].clear(), "an op is an object with its name"),
        (lambda plan: plan["ranks"].append({"program": 0}), "it has 2 ranks and says that they are 1"),
    ],
)
def test_a_plan_that_was_edited_is_refused(
    edited: Callable[[Callable[[Any], None]], Path],
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Any], None],
    said: str,
) -> None:
    assert said in refused(edited(change), capsys)


def test_another_number_of_processes_is_refused(compiled: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(compiled("mlp", "--mesh", "2"), capsys)
    assert "the plan is for 2 ranks, and the job has 1 processes: start it with torchrun" in error


def test_files_that_do_not_fit_are_named(compiled: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = compiled("mlp", "--mesh", "1")
    other = tmp_path / "other.safetensors"
    graphc_torch.save_tensors(other, {"input": torch.zeros(4, 20)})
    assert f"{other} has no `layers" in refused(path, capsys, "--weights-from", str(other))
    assert "no such directory" in refused(path, capsys, "--resume", str(tmp_path / "nowhere"))
    assert main(["train", str(path), "--data", str(other), "--steps", "1"]) == 1
    assert "the data has no tensor `labels`" in capsys.readouterr().err


def test_a_rank_that_dies_ends_the_others(compiled: Callable[..., Path]) -> None:
    path = compiled("mlp", "--mesh", "2")

    def work(rank: int) -> str:
        os.chdir(root())
        plan = graphc_torch.load(path)
        session = graphc_torch.Session(plan, graphc_torch.model_weights(plan), timeout=20)
        data = graphc_torch.load_tensors(DATA)
        feeds = {name: data[name][:16] for name in session.inputs}
        session.step(feeds)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(3):
            session.step(feeds)
        return "went on"

    left, dead = run(2, work)
    assert dead == {"error": "the process died"}
    assert left["error"].startswith("rank 0, step 1, `"), left
    assert left["error"].endswith("that rank has ended, and says why") and "GLHF" not in left["error"], left


def test_a_disk_that_is_full_is_named(compiled: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """What ``/dev/full`` says of metrics."""
    error = refused(compiled("mlp", "--mesh", "1"), capsys, "--metrics", "/dev/full")
    assert error == "error: cannot write /dev/full: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data["input"].fill_(float("nan")), "the loss of step 0 is nan, and weights after it are of no use"),
        (lambda data: data["labels"].fill_(77), "`: label 77 is out of range: there are 0..10"),
    ],
)
def test_numbers_that_are_wrong_are_said(
    compiled: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path, change: Callable[[Any], None], said: str
) -> None:
    data = graphc_torch.load_tensors(root() / DATA)
    change(data)
    graphc_torch.save_tensors(tmp_path / "wrong.safetensors", data)
    path = compiled("mlp", "--mesh", "1")
    os.chdir(root())
    assert main(["train", str(path), "--data", str(tmp_path / "wrong.safetensors"), "--steps", "1"]) == 1
    assert said in capsys.readouterr().err


def test_memory_that_is_not_there_is_said(edited: Callable[[Callable[[Any], None]], Path], capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(edited(lambda plan: plan["programs"][0].update(arena_bytes=1 << 60)), capsys)
    assert f"rank 0, taking {1 << 60} bytes of memory for the plan" in error
