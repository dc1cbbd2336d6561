"""The references of graphc's own tests: the losses of PyTorch, and the weights of graphc, on every mesh."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import graphc_torch
from conftest import reference
from graphc_torch.data import Batches
from world import root, run

MESHES = [
    ("--mesh", "1"),
    ("--mesh", "2"),
    ("--mesh", "3"),
    ("--mesh", "4"),
    ("--mesh", "2x2"),
    ("--mesh", "2x2", "--stages", "2", "--microbatches", "2"),
    *[("--mesh", "2", "--strategy", strategy) for strategy in ("data", "zero1", "zero2", "zero3", "megatron")],
]
STREAMS = ("--mesh", "2", "--strategy", "zero3", "--cluster", "dgx-a100")
INTERLEAVED = ("--mesh", "2", "--stages", "2", "--microbatches", "4", "--schedule", "interleaved:2")
RECOMPUTED = ("--mesh", "2", "--recompute", "full", "--microbatches", "2")


def cases() -> list[tuple[str, tuple[str, ...]]]:
    found = [(name, mesh) for name in ("mlp", "mlp_mse", "gpt", "resnet") for mesh in MESHES]
    found += [("gpt", STREAMS), ("gpt", INTERLEAVED), ("gpt", RECOMPUTED)]
    # Batch norm has statistics of each microbatch, of which there is no record.
    return [(name, mesh) for name, mesh in found if name != "resnet" or "--microbatches" not in mesh]


def trained(path: Path, name: str, weights: Path | None = None) -> Callable[[int], list[float]]:
    """The losses of a training of as many steps as the reference has."""

    def work(rank: int) -> list[float]:
        os.chdir(root())
        plan = graphc_torch.load(path)
        session = graphc_torch.Session(plan, graphc_torch.model_weights(plan), timeout=60)
        data = graphc_torch.load_tensors(root() / "tests/refs" / name / "data.safetensors")
        batches = Batches(data, session.inputs)
        steps = len(reference(name)["losses"])
        losses = [float(session.step(batches.feeds(step))["loss"]) for step in range(steps)]
        if weights is not None:
            kept = graphc_torch.load_tensors(weights)
            found = {variable: session.variable(variable) for variable in kept}
            differ = {key: float((found[key] - value).abs().max()) for key, value in kept.items()}
            assert rank or max(differ.values()) < 1e-5, differ
        return losses

    return work


@pytest.mark.parametrize(("name", "mesh"), cases(), ids=lambda value: value if isinstance(value, str) else "".join(value))
def test_losses_are_those_of_pytorch(compiled: Callable[..., Path], name: str, mesh: tuple[str, ...]) -> None:
    path = compiled(name, *mesh)
    expected = reference(name)["losses"]
    tolerance = 1e-4 if name == "resnet" else 1e-5
    for losses in run(graphc_torch.load(path).world_size, trained(path, name)):
        assert losses == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("name", ["mlp", "gpt", "resnet"])
def test_weights_are_those_of_graphc(
    compiled: Callable[..., Path], graphc: Callable[..., None], tmp_path: Path, name: str
) -> None:
    path, weights = compiled(name, "--mesh", "2"), tmp_path / "weights.safetensors"
    data, steps = f"tests/refs/{name}/data.safetensors", len(reference(name)["losses"])
    graphc("train", path, "--data", data, "--steps", steps, "--weights", weights)
    for losses in run(2, trained(path, name, weights)):
        assert isinstance(losses, list), losses


def test_statistics_of_microbatches_are_those_of_graphc(
    compiled: Callable[..., Path], graphc: Callable[..., None], tmp_path: Path
) -> None:
    path = compiled("resnet", "--mesh", "2x2", "--stages", "2", "--microbatches", "2")
    weights, steps = tmp_path / "weights.safetensors", len(reference("resnet")["losses"])
    graphc("train", path, "--data", "tests/refs/resnet/data.safetensors", "--steps", steps, "--weights", weights)
    for losses in run(4, trained(path, "resnet", weights)):
        assert isinstance(losses, list), losses
