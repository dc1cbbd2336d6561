"""The package graphc: its command's answers as plain data, without PyTorch."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import built
from world import root

import graphc
from graphc.wording import in_python

GRAPH = """graph @linear {
  %x = input "x" : f32[8, 20]
  %y = input "y" : i64[8]
  %w = variable "w" {init={"normal": {"mean": 0, "std": 0.02}}, trainable=true} : f32[64, 20]
  %logits = matmul %x, %w {transpose_b=true} : f32[8, 64]
  %each, %sums = cross_entropy %logits, %y
  %loss = reduce %each {function="mean", axes=[0]}
  return "loss" = %loss
}
"""


@pytest.fixture(autouse=True)
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHC", str(built("graphc")))


def test_a_plan_answers_for_itself(tmp_path: Path) -> None:
    plan = graphc.compile(GRAPH, mesh=(2,), optimizer="adamw", lr=1e-3, weight_decay=0.0)
    assert (plan.name, plan.world_size, plan.tensors["w"].shape, plan.tensors["w"].kind) == ("linear", 2, (64, 20), "parameter")
    assert plan.predicted.step_seconds == pytest.approx(plan.simulate().step_seconds)
    found = plan.explain("w")
    assert min(other.objective_seconds for other in found.alternatives if other.objective_seconds) == found.objective_seconds
    assert plan.memory().programs[0].bytes == plan.predicted.peak_memory_bytes[0]
    plan.save(tmp_path / "plan.json")
    assert graphc.load(tmp_path / "plan.json") == plan


def test_files_that_are_no_plans_are_named(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    for path, said in ((other, f"{other} is no plan"), (tmp_path / "none.json", "none.json")):
        with pytest.raises(graphc.Error, match=said):
            graphc.load(path)
    with pytest.raises(graphc.Error, match="cannot write the plan"):
        graphc.Plan(b"{}").save(tmp_path / "absent" / "plan.json")


def test_plans_are_compared() -> None:
    before, after = (graphc.compile(GRAPH, mesh="2", optimizer="sgd", strategy=strategy) for strategy in ("auto", "zero3"))
    difference = graphc.diff(before, after)
    assert (difference.inputs["strategy"].before, difference.inputs["strategy"].after) == ("auto", "zero3")
    rows = graphc.compare(GRAPH, ["data", "zero3"], mesh=2, optimizer="sgd")
    assert [row.strategy for row in rows] == ["data", "zero3"]
    assert rows[1].predicted == after.predicted
    assert "<html" in graphc.report(before, after)
    assert before._repr_html_().startswith("<iframe")


def test_options_are_those_of_the_command() -> None:
    plan = graphc.compile(GRAPH, mesh=(2,), optimizer="sgd", momentum=0.9, nesterov=True, pin={"w": "S(0)"}, freeze=None)
    assert plan.tensors["w"].sbp == ("S(0)",)


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        ("nowhere.onnx", {}, "cannot read the model nowhere.onnx"),
        (GRAPH.replace("matmul", "matmull"), {}, "there is no op `matmull`"),
        (GRAPH, {"mesh": (0,)}, "for `mesh`: "),
        (GRAPH, {"optimiser": "sgd"}, "`optimiser`"),
        (GRAPH, {"lr": 0.1}, "lr belongs to an optimizer: say which with optimizer$"),
        (GRAPH, {"pin": {"w": "S"}}, "`S` is no SBP"),
    ],
)
def test_errors_are_graphcs_words(model: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(graphc.Error, match=said) as caught:
        graphc.compile(model, **options)
    assert not str(caught.value).startswith("error: ")
    assert " --" not in str(caught.value).replace(" -->", "")


@pytest.mark.parametrize(
    ("of_command", "of_python"),
    [
        (
            "invalid value '3x' for '--mesh <MESH>': write a mesh as 4 or 2x4\n\nFor more information, try '--help'.",
            "invalid value '3x' for `mesh`: write a mesh as 4 or 2x4",
        ),
        (
            "unexpected argument '--lrr' found\n\n  tip: a similar argument exists: '--lr'\n\nUsage: graphc compile --lr <LR> <MODEL>",
            "unexpected argument `lrr` found\n\n  tip: a similar argument exists: `lr`",
        ),
        ("take a larger batch, or `--recompute auto`", 'take a larger batch, or `recompute="auto"`'),
        ("add --warmup or --clip-norm 1.5, or skip with --on-nan skip", 'add warmup or clip_norm=1.5, or skip with on_nan="skip"'),
        ("give it with --dim time=VALUE; --mesh has 4 ranks", 'give it with dim={"time": VALUE}; mesh has 4 ranks'),
        ("ask with --loss output:loss; it is at `a--b`", 'ask with loss="output:loss"; it is at `a--b`'),
        ("`graphc compile --help` lists them", "`graphc compile --help` lists them"),
    ],
)
def test_options_are_said_as_arguments(of_command: str, of_python: str) -> None:
    assert in_python(of_command) == of_python


def test_a_command_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHC", "/nowhere/graphc")
    with pytest.raises(graphc.Error, match="cannot run /nowhere/graphc"):
        graphc.compile(GRAPH)
    monkeypatch.setenv("GRAPHC", "/bin/echo")
    with pytest.raises(graphc.Error, match="printed no JSON"):
        graphc.Plan(b"").simulate()
    monkeypatch.delenv("GRAPHC")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(graphc.Error, match="name it with GRAPHC="):
        graphc.compile(GRAPH)


def test_other_threads_go_on_while_a_command_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A command that waits for this process to do something else would never end if it were waited for with the lock held."""
    slow, go = tmp_path / "slow", tmp_path / "go"
    slow.write_text(f"#!/bin/sh\nuntil [ -e {go} ]; do sleep 0.02; done\necho '{{\"programs\": []}}'\n")
    slow.chmod(0o755)
    monkeypatch.setenv("GRAPHC", str(slow))
    threading.Thread(target=lambda: (time.sleep(0.05), go.touch())).start()
    assert graphc.Plan(b"").memory().programs == ()


def test_it_needs_no_pytorch() -> None:
    program = "import sys, graphc; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=root() / "python", check=True)
