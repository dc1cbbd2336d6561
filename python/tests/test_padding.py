"""Logits that lie padded in memory: the classes that are real are trained as graphc trains them, and padding has no part in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from world import run

import graphc_torch
from graphc_torch.data import Batches

CLASSES, STEPS = 101, 4

MODEL = f"""graph @odd {{
  %x = input "x" : f32[8, 16]
  %w = variable "w" {{init={{"normal": {{"mean": 0, "std": 0.5}}}}, trainable=true}} : f32[{CLASSES}, 16]
  %2 = matmul %x, %w {{transpose_b=true}} : f32[8, {CLASSES}]
  return "scores" = %2
}}
"""

# Odd rows at half the rate, and slowly enough that a small product counts.
MACHINES = """name = "slow"
[device]
kind = "cpu"
memory = "1GiB"
flops = { f32 = 1e7 }
matmul_unaligned = 0.5
bandwidth = 1e10
launch = 1e-6
[[level]]
latency = 1e-6
bandwidth = 1e10
"""


@pytest.mark.parametrize("mesh", ["1", "2"])
def test_padded_classes_train_as_in_graphc(graphc: Callable[..., None], tmp_path: Path, mesh: str) -> None:
    model, machines, plan, data, metrics = (tmp_path / name for name in ("odd.gir", "slow.toml", "plan.json", "data", "losses"))
    model.write_text(MODEL)
    machines.write_text(MACHINES)
    torch.manual_seed(0)
    labels = torch.randint(CLASSES, (8 * STEPS,))
    labels[::5], labels[1] = -100, CLASSES - 1
    save_file({"x": torch.randn(8 * STEPS, 16), "labels": labels}, data)
    training = ("--loss", "cross_entropy", "--optimizer", "sgd", "--lr", "0.1", "--precision", "bf16", "--measure", "top1")
    graphc("compile", model, *training, "--cluster", machines, "--mesh", mesh, "-o", plan)
    graphc("train", plan, "--data", data, "--steps", STEPS, "--metrics", metrics)
    expected = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
    assert graphc_torch.load(plan).padded

    def work(_rank: int) -> list[float]:
        session = graphc_torch.Session(graphc_torch.load(plan), {}, timeout=60)
        batches = Batches(graphc_torch.load_tensors(data), session.inputs, session.samples)
        return [float(session.step(batches.feeds(step))["loss"]) for step in range(STEPS)]

    for losses in run(int(mesh), work):
        assert losses == pytest.approx(expected, rel=5e-3)
