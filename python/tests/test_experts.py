"""Experts that share blocks of places: PyTorch trains a plan as graphc does, with experts whole, in shards, and in 16 and 8 bits."""

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

STEPS = 4

MODEL = """graph @experts {
  %x = input "x" : f32[4, 6, 16]
  %router = variable "router" {init={"normal": {"mean": 0, "std": 0.5}}, trainable=true} : f32[16, 4]
  %up = variable "up" {init={"normal": {"mean": 0, "std": 0.3}}, trainable=true} : f32[4, 16, 16]
  %down = variable "down" {init={"normal": {"mean": 0, "std": 0.3}}, trainable=true} : f32[4, 16, 16]
  %head = variable "head" {init={"normal": {"mean": 0, "std": 0.3}}, trainable=true} : f32[16, 5]
  %1 = matmul %x, %router : f32[4, 6, 4]
  %2, %3 = top_k %1 {count=2, greatest=true} : f32[4, 6, 2], i64[4, 6, 2]
  %4 = softmax %2 {axis=2} : f32[4, 6, 2]
  %5 = dispatch %x, %3 {blocks=2, capacity=CAPACITY, experts=4} : f32[2, 4, CAPACITY, 16]
  %6 = grouped_matmul %5, %up, %3 : f32[2, 4, CAPACITY, 16]
  %7 = unary %6 {function="relu"} : f32[2, 4, CAPACITY, 16]
  %8 = grouped_matmul %7, %down, %3 {transpose_b=true} : f32[2, 4, CAPACITY, 16]
  %9 = combine %8, %3, %4 {experts=4} : f32[4, 6, 16]
  %10 = matmul %9, %head : f32[4, 6, 5]
  return "scores" = %10
}
"""

SPLIT = ("--pin", "up=S(0)", "--pin", "down=S(0)")


@pytest.mark.parametrize("capacity", [12, 5])
@pytest.mark.parametrize(
    ("options", "near"),
    [
        (("--mesh", "1"), 1e-5),
        (("--mesh", "2", *SPLIT), 1e-5),
        (("--mesh", "2", "--strategy", "zero3", "--microbatches", "2"), 1e-5),
        (("--mesh", "1", "--precision", "bf16"), 2e-2),
        (("--mesh", "1", "--precision", "fp8"), 2e-2),
        (("--mesh", "2", *SPLIT, "--precision", "fp8:tensorwise"), 2e-2),
    ],
)
def test_experts_train_as_in_graphc(
    graphc: Callable[..., None], tmp_path: Path, options: tuple[str, ...], near: float, capacity: int
) -> None:
    model, plan, data, metrics = (tmp_path / name for name in ("experts.gir", "plan.json", "data", "losses"))
    model.write_text(MODEL.replace("CAPACITY", str(capacity)))
    torch.manual_seed(0)
    save_file({"x": torch.randn(4 * STEPS, 6, 16), "labels": torch.randint(5, (4 * STEPS, 6))}, data)
    training = ("--loss", "cross_entropy", "--optimizer", "sgd", "--lr", "0.5")
    graphc("compile", model, *training, *options, "-o", plan)
    graphc("train", plan, "--data", data, "--steps", STEPS, "--metrics", metrics)
    if "fp8" in " ".join(options):
        assert '"op":"grouped_matmul","transpose_b":true' in plan.read_text().replace(" ", "")
    expected = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
    assert expected[-1] < expected[0]

    def work(_rank: int) -> list[float]:
        session = graphc_torch.Session(graphc_torch.load(plan), {}, timeout=60)
        batches = Batches(graphc_torch.load_tensors(data), session.inputs, session.samples)
        return [float(session.step(batches.feeds(step))["loss"]) for step in range(STEPS)]

    for losses in run(graphc_torch.load(plan).world_size, work):
        assert losses == pytest.approx(expected, abs=near)
