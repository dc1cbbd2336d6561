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
from world import root, run, sealed

import graphc_torch
from graphc_torch.cli import main

DATA = "tests/refs/mlp/data.safetensors"


@pytest.fixture
def edited(compiled: Callable[..., Path], tmp_path: Path) -> Callable[[Callable[[Any], None]], Path]:
    """A plan of one rank, changed by hand and sealed again."""

    def edit(change: Callable[[Any], None]) -> Path:
        plan = json.loads(compiled("mlp", "--mesh", "1").read_text())
        change(plan)
        path = tmp_path / "edited.json"
        path.write_text(sealed(plan))
        return path

    return edit


def refused(path: Path, capsys: pytest.CaptureFixture[str], *extra: str) -> str:
    os.chdir(root())
    assert main(["train", str(path), "--data", DATA, "--steps", "1", *extra]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1, error
    return error


def feeding(plan: Any) -> Any:
    return next(actor for actor in plan["programs"][0]["actors"] if "feed" in actor["action"])


def nested(depth: int) -> Any:
    return [] if depth == 0 else [nested(depth - 1)]


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
        (lambda plan: plan["programs"][0].update(streams=[]), "programs[0]: it has no stream"),
        (lambda plan: plan["programs"][0]["streams"][0]["blocks"][0].append(0), "stands 2 times in blocks"),
        (lambda plan: feeding(plan)["inputs"].append(0), "it cannot have 1 inputs, 1 outputs and 0 updates"),
        (lambda plan: plan["layouts"][0].update(shape=[1 << 40, 1 << 40]), "larger than any memory"),
        (lambda plan: plan["layouts"][0].update(ranks=[[0, 1 << 30, 1]]), "ranks, at most 16777216 are possible"),
        (lambda plan: plan.update(mesh=[1] * 100 + [3]), "is none of 1 ranks"),
        (lambda plan: plan.update(microbatches=1 << 32), "microbatches: is 4294967296"),
        (lambda plan: plan["options"].update(optimizer="sgd"), "options.optimizer: it is no optimizer"),
        (lambda plan: plan["options"].update(lr_schedule="step:inf,2"), "is no schedule of the learning rate"),
        (lambda plan: plan["options"].update(deep=nested(300)), "lie in each other more than 127 deep"),
        (lambda plan: plan.update(name="\ud800"), "a text holds half of a character"),
        (lambda plan: plan["layouts"][0].update(sbp=["X"]), "`X` is no layout"),
        (lambda plan: of_op(plan)["op"].update(op="teleport"), "the op `teleport` is none that this version has"),
        (
            lambda plan: of_op(plan)["op"].update(op="custom", name="own", dims="n -> n"),
            "the op `own` is a program's own",
        ),
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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace('"seconds": ', '"seconds": 1', 1), "it was changed after graphc had sealed it: compile the model again"),
        (lambda text: text.replace("\n ", "\n  ", 1), "it was changed after graphc had sealed it"),
        (lambda text: json.dumps(json.loads(text)), "it has no seal of graphc"),
        (lambda text: text[: text.rindex(",")] + "\n}\n", "it has no seal of graphc"),
        (lambda text: text.replace('"seal": "', '"seal": "0', 1), "it was changed"),
        (lambda text: text.replace('"version": 3', '"version": 3, "version": 3', 1), "the field 'version' stands twice"),
        (lambda text: text.replace('"version": 3', '"version": NaN', 1), "NaN is no number"),
        (lambda text: text.replace('"version": 3', '"version": 3' + "0" * 5000, 1), "it is no JSON"),
        (lambda text: text.replace('"version": 3', '"version": 3e999', 1), "out of range"),
        (lambda _text: "[" * 100_000, "127 deep"),
        (lambda _text: "", "it is no JSON"),
    ],
)
def test_a_text_that_graphc_has_not_sealed_is_refused(
    compiled: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[str], str], said: str
) -> None:
    path, text = tmp_path / "changed.json", compiled("mlp", "--mesh", "1").read_text()
    assert change(text) != text
    path.write_text(change(text))
    assert said in refused(path, capsys)


def test_graphc_seals_what_it_has_verified(
    compiled: Callable[..., Path], graphc: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, whole = tmp_path / "plan.json", compiled("mlp", "--mesh", "1").read_text()
    path.write_text(json.dumps(json.loads(whole)))
    assert "`graphc verify --seal`" in refused(path, capsys)
    graphc("verify", "--seal", path)
    assert path.read_text() == whole
    # What is sound, but not what the model compiles to, is none of it.
    changed = json.loads(whole)
    changed["programs"][0]["actors"][0]["flops"] += 1
    path.write_text(json.dumps(changed))
    with pytest.raises(AssertionError, match="is not valid"):
        graphc("verify", "--seal", path)


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
        (lambda data: data["labels"].fill_(77), "`: label 77 is out of range: it must be from 0 to 9"),
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


def test_names_do_not_steer_the_terminal(compiled: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = compiled("mlp", "--mesh", "1")
    error = refused(path, capsys, "--resume", "there\x1b[2J\u202eis\x9bnone\r")
    assert error == "error: there is no checkpoint there\\u001b[2J\\u202eis\\u009bnone\\u000d: no such directory\n"


def test_what_is_no_file_is_written_to_and_not_replaced(compiled: Callable[..., Path], tmp_path: Path) -> None:
    os.chdir(root())
    path, target, link = compiled("mlp", "--mesh", "1"), tmp_path / "weights", tmp_path / "link"
    own = ["train", str(path), "--data", DATA, "--steps", "1", "--weights"]
    assert main([*own, "/dev/null"]) == 0 and not Path("/dev/null").is_file()
    link.symlink_to(target)
    assert main([*own, str(link)]) == 0
    assert link.is_symlink() and set(graphc_torch.load_tensors(target)) and sorted(tmp_path.iterdir()) == [link, target]


def test_memory_that_is_not_there_is_said(edited: Callable[[Callable[[Any], None]], Path], capsys: pytest.CaptureFixture[str]) -> None:
    def enlarge(plan: Any) -> None:
        program, size = plan["programs"][0], 1 << 60
        program["registers"][-1].update(slot_bytes=size, offset=0, shares=None)
        program["arena_bytes"] = size

    assert f"rank 0, taking {1 << 60} bytes of memory for the plan" in refused(edited(enlarge), capsys)
