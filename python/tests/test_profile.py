"""What graphc_torch measures and logs is read by graphc."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from world import root, run

import graphc_torch
from graphc_torch.cli import main

DATA = "tests/refs/mlp/data.safetensors"


@pytest.mark.parametrize(
    ("name", "mesh"),
    [("mlp", ("--mesh", "1")), ("mlp", ("--mesh", "2", "--microbatches", "2")), ("gpt", ("--mesh", "2", "--stages", "2"))],
    ids=lambda value: value if isinstance(value, str) else "".join(value),
)
def test_graphc_reads_what_is_measured(
    compiled: Callable[..., Path], graphc: Callable[..., None], tmp_path: Path, name: str, mesh: tuple[str, ...]
) -> None:
    path, measured = compiled(name, *mesh), tmp_path / "measured.json"

    def work(_rank: int) -> int:
        os.chdir(root())
        return main(["profile", str(path), "-o", str(measured), "--steps", "2"])

    world = graphc_torch.load(path).world_size
    assert run(world, work) == [0] * world
    graphc("report", path, "-o", tmp_path / "page.html", "--measured", measured)
    graphc("simulate", path, "--measured", measured)
    graphc("calibrate", "--from", measured, "-o", tmp_path / "there.toml")
    model = f"tests/refs/{name}/model.onnx"
    graphc("compile", model, "--batch", "8", "--cluster", tmp_path / "there.toml", "-o", tmp_path / "plan.json")


def test_a_loss_that_is_no_number_is_null_in_metrics(compiled: Callable[..., Path], graphc: Callable[..., None], tmp_path: Path) -> None:
    os.chdir(root())
    path, metrics = compiled("mlp", "--mesh", "1"), tmp_path / "metrics.jsonl"
    data = graphc_torch.load_tensors(DATA)
    data["input"][0, 0] = torch.nan
    graphc_torch.save_tensors(tmp_path / "data", data)
    options = ("--data", str(tmp_path / "data"), "--steps", "2", "--on-nan", "ignore")
    assert main(["train", str(path), *options, "--metrics", str(metrics)]) == 0
    ours = metrics.read_text()
    assert [json.loads(line)["loss"] for line in ours.splitlines()] == [None, None]
    graphc("report", path, "-o", tmp_path / "page.html", "--metrics", metrics)
    graphc("train", path, *options, "--metrics", metrics)
    assert metrics.read_text() == ours
