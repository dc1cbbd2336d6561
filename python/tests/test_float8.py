"""Products in 8 bits: PyTorch trains a plan as graphc does, with weights whole, in shards and on two stages."""

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

MODEL = """graph @eight {
  %x = input "x" : f32[16, 32]
  %up = variable "up" {init={"normal": {"mean": 0, "std": 0.3}}, trainable=true} : f32[32, 64]
  %down = variable "down" {init={"normal": {"mean": 0, "std": 0.3}}, trainable=true} : f32[64, 32]
  %head = variable "head" {init={"normal": {"mean": 0, "std": 0.3}}, trainable=true} : f32[32, 16]
  %1 = matmul %x, %up : f32[16, 64]
  %2 = unary %1 {function="relu"} : f32[16, 64]
  %3 = matmul %2, %down : f32[16, 32]
  %4 = matmul %3, %head : f32[16, 16]
  return "scores" = %4
}
"""


@pytest.mark.parametrize(
    "options",
    [
        ("fp8", "--mesh", "1"),
        ("fp8", "--mesh", "2", "--strategy", "zero3"),
        ("fp8", "--mesh", "2", "--stages", "2", "--microbatches", "2"),
        ("fp8:tensorwise", "--mesh", "2", "--strategy", "zero3"),
        ("fp8:tensorwise", "--mesh", "2", "--stages", "2", "--microbatches", "2"),
    ],
)
def test_products_in_8_bits_train_as_in_graphc(graphc: Callable[..., None], tmp_path: Path, options: tuple[str, ...]) -> None:
    model, plan, data, metrics = (tmp_path / name for name in ("eight.gir", "plan.json", "data", "losses"))
    model.write_text(MODEL)
    torch.manual_seed(0)
    save_file({"x": torch.randn(16 * STEPS, 32), "labels": torch.randint(16, (16 * STEPS,))}, data)
    training = ("--loss", "cross_entropy", "--optimizer", "sgd", "--lr", "0.1", "--precision")
    graphc("compile", model, *training, *options, "-o", plan)
    graphc("train", plan, "--data", data, "--steps", STEPS, "--metrics", metrics)
    expected = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
    types = {layout["dtype"] for layout in json.loads(plan.read_text())["layouts"]}
    assert ("f8e4m3" in types, "f8e5m2" in types) == (True, options[0] == "fp8:tensorwise")

    def work(_rank: int) -> list[float]:
        session = graphc_torch.Session(graphc_torch.load(plan), {}, timeout=60)
        batches = Batches(graphc_torch.load_tensors(data), session.inputs, session.samples)
        return [float(session.step(batches.feeds(step))["loss"]) for step in range(STEPS)]

    for losses in run(graphc_torch.load(plan).world_size, work):
        assert losses == pytest.approx(expected, abs=2e-3)


def test_scales_are_powers_of_two_that_keep_numbers_within_448() -> None:
    from graphc_torch.ops.elementwise import cast, float8_scale

    sizes = torch.tensor([448.0, 448.1, 1.75, 1.7500001, 0.02, 1e30, 0.0, float("inf"), float("nan")])
    scales = float8_scale(sizes, torch.float8_e4m3fn).tolist()
    assert scales == [1.0, 0.5, 256.0, 128.0, 16384.0, 2.0**-91, 2.0**48, 1.0, 1.0]
    far = float8_scale(sizes, torch.float8_e5m2).tolist()
    assert far == [scale * 128 if torch.isfinite(size) else 1.0 for scale, size in zip(scales, sizes, strict=True)]
    assert cast(torch.float32, torch.float8_e4m3fn)(torch.tensor([1e9, 0.3])).float().tolist() == [448.0, 0.3125]


def test_rows_are_rounded_by_their_greatest_sizes() -> None:
    from graphc_torch.ops.elementwise import binary

    x = torch.tensor([[1.0, -3.0], [0.001, 0.0003]], dtype=torch.bfloat16)
    sizes = x.abs().amax(1, keepdim=True)
    numbers = binary("round_float8", torch.bfloat16)(x, sizes)
    assert numbers.dtype is torch.float8_e4m3fn
    scales = torch.tensor([[128.0], [2.0**18]])
    assert torch.equal(numbers.float(), (x.float() * scales).to(torch.float8_e4m3fn).float())
