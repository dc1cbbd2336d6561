"""Attention with a bias, a window and a soft cap trains as in graphc."""

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

STEPS = 3

MODEL = """graph @attention {
  %x = input "x" : f32[4, 6, 16]
  %seen = input "seen" : f32[4, 1, 1, 6]
  %w = variable "w" {init={"normal": {"mean": 0, "std": 0.4}}, trainable=true} : f32[16, 16]
  %b = variable "b" {init={"normal": {"mean": 0, "std": 1}}, trainable=true} : f32[1, 4, 6, 6]
  %p = matmul %x, %w
  %q = reshape %p {shape=[4, 6, 4, 4]}
  %k = slice %q {starts=[0, 0, 0, 0], ends=[4, 6, 2, 4], steps=[1, 1, 1, 1]}
  %o, %l = attention %q, %k, %k, %b {causal=false, scale=0.5, soft_cap=1.5}
  %r, %m = attention %o, %k, %k {causal=true, scale=0.5, window=2}
  %s, %n = attention %r, %k, %k, %seen {causal=false, scale=0.5}
  %y = reshape %s {shape=[4, 6, 16]}
  return "y" = %y
}
"""


DROPPED = """graph @attention {
  %x = input "x" : f32[4, 6, 16]
  %w = variable "w" {init={"normal": {"mean": 0, "std": 0.4}}, trainable=true} : f32[16, 16]
  %b = variable "b" {init={"normal": {"mean": 0, "std": 1}}, trainable=true} : f32[1, 4, 6, 6]
  %p = matmul %x, %w
  %q = reshape %p {shape=[4, 6, 4, 4]}
  %k = slice %q {starts=[0, 0, 0, 0], ends=[4, 6, 2, 4], steps=[1, 1, 1, 1]}
  %o, %l = attention %q, %k, %k, %b {causal=false, scale=0.5, dropout={"probability": 0.3, "key": 1, "training": true}}
  %r, %m = attention %o, %q, %q {causal=true, scale=0.5, dropout={"probability": 0.2, "key": 2, "training": true}}
  %y = reshape %r {shape=[4, 6, 16]}
  return "y" = %y
}
"""


SHARED = """graph @attention {
  %x = input "x" : f32[4, 16, 16]
  %places = variable "places" {init={"normal": {"mean": 0, "std": 0.4}}, trainable=true} : f32[16, 16]
  %w = variable "w" {init={"normal": {"mean": 0, "std": 0.4}}, trainable=true} : f32[16, 16]
  %a = binary %x, %places {function="add"}
  %p = matmul %a, %w
  %q = reshape %p {shape=[4, 16, 4, 4]}
  %t = rotary %q {base=100}
  %k = slice %t {starts=[0, 0, 0, 0], ends=[4, 16, 2, 4], steps=[1, 1, 1, 1]}
  %o, %l = attention %t, %k, %k {causal=true, scale=0.5, window=9}
  %y = reshape %o {shape=[4, 16, 16]}
  return "y" = %y
}
"""


@pytest.mark.parametrize("strategy", ["data", "megatron"])
@pytest.mark.parametrize("mesh", ["1", "2"])
def test_attention_to_other_scores_trains_as_in_graphc(graphc: Callable[..., None], tmp_path: Path, mesh: str, strategy: str) -> None:
    torch.manual_seed(0)
    seen = torch.zeros(4 * STEPS, 1, 1, 6)
    seen[::2, :, :, 3:] = torch.finfo(torch.float32).min
    seen[3] = -torch.inf
    # Softmax gives all keys the same weight.
    seen[5] = torch.finfo(torch.float32).min
    options = ["--mesh", mesh, "--strategy", strategy]
    trains_as_in_graphc(graphc, tmp_path, MODEL, {"x": torch.randn(4 * STEPS, 6, 16), "seen": seen}, options)


@pytest.mark.parametrize("options", ["--mesh 1", "--mesh 2 --strategy data", "--mesh 2 --strategy megatron", "--mesh 2 --microbatches 2"])
def test_the_weights_that_graphc_drops_are_dropped(graphc: Callable[..., None], tmp_path: Path, options: str) -> None:
    torch.manual_seed(0)
    trains_as_in_graphc(graphc, tmp_path, DROPPED, {"x": torch.randn(4 * STEPS, 6, 16)}, options.split())


@pytest.mark.parametrize("mesh", ["2", "4"])
def test_ranks_that_share_sequences_train_as_in_graphc(graphc: Callable[..., None], tmp_path: Path, mesh: str) -> None:
    torch.manual_seed(0)
    options = ["--mesh", mesh, "--strategy", "data:cp"]
    trains_as_in_graphc(graphc, tmp_path, SHARED, {"x": torch.randn(4 * STEPS, 16, 16)}, options)
    plan = (tmp_path / "plan.json").read_text()
    assert all(f'"op": "{op}"' in plan for op in ("zigzag", "attention", "attention_grad", "rotary"))
    assert plan.count(f'"zigzag": {mesh}') >= 4


def trains_as_in_graphc(graphc: Callable[..., None], folder: Path, text: str, inputs: dict[str, torch.Tensor], options: list[str]) -> None:
    model, plan, data, metrics = (folder / name for name in ("model.gir", "plan.json", "data", "losses"))
    model.write_text(text)
    save_file({**inputs, "target": torch.randn_like(inputs["x"])}, data)
    graphc("compile", model, "--loss", "mse", "--optimizer", "sgd", "--lr", "0.5", *options, "-o", plan)
    graphc("train", plan, "--data", data, "--steps", STEPS, "--metrics", metrics)
    expected = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]

    def work(_rank: int) -> list[float]:
        session = graphc_torch.Session(graphc_torch.load(plan), {}, timeout=60)
        batches = Batches(graphc_torch.load_tensors(data), session.inputs, session.samples)
        return [float(session.step(batches.feeds(step))["loss"]) for step in range(STEPS)]

    for losses in run(int(options[1]), work):
        assert losses == pytest.approx(expected, rel=1e-5)
