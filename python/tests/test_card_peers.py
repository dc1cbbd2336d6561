"""PyTorch's side of the kit for cards (``benchmarks/card/peers``), rehearsed on a processor, of the models that graphc trains."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import built
from world import root

CARD = root() / "benchmarks/card"
MODELS = ["gpt2", "resnet50", "llama"]


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As much of the kit as PyTorch's side needs, as ``build.sh`` puts it together, with small data."""
    folder = tmp_path_factory.mktemp("kit")
    (folder / "peers").mkdir()
    for file in CARD.glob("*.py"):
        shutil.copy(file, folder)
    for file in [*(CARD / "peers").glob("*.py"), root() / "benchmarks/peers/torch_models.py"]:
        shutil.copy(file, folder / "peers")
    subprocess.run([built("examples/card_models"), folder / "models"], check=True)
    words = f"import data\nfor name in {MODELS}: data.of(name)"
    subprocess.run([sys.executable, "-c", words], check=True, cwd=folder, env={**os.environ, "CARD_SMALL": "1"})
    return folder


@pytest.fixture
def peers(kit: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Sizes of all models, with the programs of PyTorch's side to be imported."""
    monkeypatch.syspath_prepend(str(kit / "peers"))
    monkeypatch.setenv("CARD_SMALL", "1")
    # As for a process of it, which a test of others may not have.
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    return json.loads((kit / "models/models.json").read_text())


def near_guesses(losses: list[float], classes: int) -> None:
    """A training that has just begun guesses."""
    assert all(abs(loss - math.log(classes)) < 1.0 for loss in losses), losses


def test_a_process_answers_what_it_is_asked(kit: Path) -> None:
    """Each mode has its answer, a mode that fails has its error, and the next one goes on behind it."""
    command = [sys.executable, kit / "peers/train.py", "gpt2", kit / "scratch/gpt2-small.safetensors"]
    asked = "parameters 0\neager 3\nnonsense 1\nupdates 2\ncompile 2\neager 1\n"
    environment = {**os.environ, "CARD_SMALL": "1", "CARD_COMPILER": "aot_eager"}
    done = subprocess.run(command, input=asked, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count, eager, nonsense, updates, compiled, again = (json.loads(line) for line in done.stdout.splitlines())
    sizes = json.loads((kit / "models/models.json").read_text())["gpt2-small"]
    assert count == {"parameters": sizes["parameters"]}
    assert [len(answer["seconds"]) for answer in (eager, updates, compiled, again)] == [3, 2, 2, 1]
    assert all(seconds > 0 for answer in (eager, updates, compiled) for seconds in answer["seconds"])
    assert "nonsense" in nonsense["error"]
    near_guesses(eager["losses"] + compiled["losses"], sizes["vocabulary"])
    # Both begin with the same weights.
    assert eager["losses"][0] == pytest.approx(compiled["losses"][0], rel=1e-2)


@pytest.mark.parametrize("name", ["resnet50", "llama"])
def test_other_models_train(kit: Path, peers: dict[str, Any], name: str) -> None:
    """Steps of a model, and updates alone."""
    import train

    sizes = peers[f"{name}-small"]
    training = train.Training(sizes, "eager", train.read(kit / f"scratch/{name}-small.safetensors"))
    found = training.measure(2)
    assert len(found["seconds"]) == 2 and len(training.measure_updates(2)["seconds"]) == 2
    classes = sizes["classes"] if sizes["kind"] == "resnet" else sizes["vocabulary"]
    near_guesses(found["losses"], classes)


def test_models_have_as_many_parameters_as_those_of_graphc(peers: dict[str, Any]) -> None:
    """Of real sizes too, which are nowhere in memory."""
    import models

    for name, sizes in peers.items():
        with torch.device("meta"):
            made = models.made(sizes)
        assert sum(weight.numel() for weight in made.parameters()) == sizes["parameters"], name
