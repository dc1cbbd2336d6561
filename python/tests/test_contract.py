"""What both engines judge alike: the cases of ``tests/contract/cases.json``, which ``tests/plans/contract.rs`` goes over for graphc."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from world import root, sealed

from graphc_torch.checkpoint import written
from graphc_torch.cli import main
from graphc_torch.errors import PlanError
from graphc_torch.json_text import read_json
from graphc_torch.ops import UPDATES
from graphc_torch.reading import load, parse

DATA = "tests/refs/mlp/data.safetensors"


def cases(of: str) -> list[Any]:
    found: list[Any] = json.loads((root() / "tests/contract/cases.json").read_text())[of]["cases"]
    return found


def named(of: str) -> Any:
    return pytest.mark.parametrize("case", cases(of), ids=lambda case: case.get("name", " ".join(map(str, case.values()))))


@pytest.fixture(scope="session")
def plan(graphc: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("contract") / "plan.json"
    training = ("--loss", "cross_entropy", "--optimizer", "sgd", "--lr", "0.1")
    graphc("compile", "tests/refs/mlp/model.onnx", "-o", path, "--batch", "16", *training)
    return path


def edited(document: str, case: Any) -> str:
    """A document after the edit of a case."""
    if "deep" in case:
        return "[" * int(case["deep"])
    if "replace" in case:
        assert case["replace"][0] in document
        return document.replace(*case["replace"], 1)
    if "at" not in case:
        return document
    value = of = read_json(document)
    *parents, name = case["at"].split("/")[1:]
    for parent in parents:
        of = of[int(parent) if isinstance(of, list) else parent]
    at = int(name) if isinstance(of, list) else name
    if case.get("removed"):
        del of[at]
    else:
        of[at] = case["value"]
    return written(value)


def accepts(path: Path) -> bool:
    try:
        load(path)
    except PlanError as error:
        assert "\n" not in str(error) and str(error)
        return False
    return True


@named("plans")
def test_plans_are_judged_as_the_cases_say(plan: Path, graphc: Callable[..., None], tmp_path: Path, case: Any) -> None:
    path, whole, accepted = tmp_path / "plan.json", plan.read_text(), case["verdict"] == "accepted"
    text = edited(whole, case)
    path.write_text(text)
    assert accepts(path) == (text == whole)
    if accepted:
        graphc("verify", path, "--seal")
        assert accepts(path)
    else:
        with pytest.raises(AssertionError, match="error: "):
            graphc("verify", path, "--seal")
        assert not accepts(path)
    if case.get("forged"):
        with pytest.raises(PlanError) as failure:
            parse(forged(text))
        assert "seal" not in str(failure.value)


def forged(text: str) -> str:
    """A text with a seal that holds, as far as it is JSON."""
    try:
        return sealed(read_json(text))
    except (ValueError, AttributeError):
        return text


def status(arguments: list[str]) -> int:
    os.chdir(root())
    try:
        return main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


@named("manifests")
def test_manifests_are_judged_as_the_cases_say(
    plan: Path, graphc: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str], case: Any
) -> None:
    saved = tmp_path / "saved"
    graphc("train", plan, "--data", DATA, "--steps", 2, "--save", saved)
    manifest = saved / "step-00000002/manifest.json"
    value = read_json(edited(manifest.read_text(), case)) | {"sha256": ""}
    value["sha256"] = hashlib.sha256(written(value).encode()).hexdigest()
    manifest.write_text(written(value))
    ended = status(["train", str(plan), "--data", DATA, "--steps", "5", "--resume", str(saved)])
    said = capsys.readouterr().err
    assert ended == (0 if case["verdict"] == "accepted" else 1), said
    assert ended == 0 or (said.startswith("error: ") and said.count("\n") == 1), said


@named("files")
def test_what_is_no_file_is_refused(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: Any) -> None:
    before = plan.read_bytes(), (root() / DATA).read_bytes()
    given = {"plan": str(plan), "data": DATA}.get(case["is"]) or put(tmp_path / "given.json", case["is"])
    arguments = {"plan": str(plan), "--data": DATA} | {case["option"]: given}
    options = [word for option in arguments.items() if option[0] != "plan" for word in option]
    assert status(["train", arguments["plan"], "--steps", "1", *options]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1, said
    assert (plan.read_bytes(), (root() / DATA).read_bytes()) == before


def put(path: Path, what: str) -> str:
    """What a case gives in the place of a file."""
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "text":
        path.write_text("a text")
    elif what != "nothing":
        path.symlink_to(what)
    return str(path)


@named("options")
def test_options_are_judged_as_the_cases_say(plan: Path, capsys: pytest.CaptureFixture[str], case: Any) -> None:
    ended = status(["train", str(plan), "--data", DATA, "--steps", "1", *case["options"]])
    said = capsys.readouterr().err
    assert ended == case["status"], said
    assert "\x1b" not in said and "Traceback" not in said


def test_results_take_the_place_of_the_same_operands() -> None:
    listed = {case["op"]: tuple(map(tuple, case["updates"])) for case in cases("updates")}
    assert listed == UPDATES
