"""Batches follow the dim that counts samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from world import root

from graphc_torch.cli import main
from graphc_torch.data import Batches, load_tensors
from graphc_torch.epochs import Epochs
from graphc_torch.errors import FeedError
from graphc_torch.layout import Layout, Ranks, Sbp
from graphc_torch.plan import Samples

FIRST, SECOND, WHOLE = Samples(), Samples(1), Samples(None)


def of(shape: tuple[int, ...]) -> Layout:
    return Layout(shape, "f32", None, Ranks((0,)), (1,), (Sbp(),))


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)


def test_batches_wrap_around_more_than_once() -> None:
    batches = Batches({"x": numbers(3, 2)}, {"x": of((2, 2))}, {"x": FIRST})
    assert [batches.feeds(step)["x"][:, 0].tolist() for step in range(4)] == [[0, 2], [4, 0], [2, 4], [0, 2]]
    large = Batches({"x": numbers(1, 2)}, {"x": of((3, 2))}, {"x": FIRST})
    assert large.feeds(7)["x"].flatten().tolist() == [0, 1, 0, 1, 0, 1]


def test_samples_lie_along_any_dim() -> None:
    inputs = {"state": of((2, 2, 2)), "table": of((5,)), "x": of((2, 1))}
    data = {"state": numbers(2, 3, 2), "table": numbers(5), "x": numbers(3, 1)}
    batches = Batches(data, inputs, {"state": SECOND, "table": WHOLE, "x": FIRST})
    feeds = batches.feeds(1)
    assert batches.samples == 3 and feeds["state"].flatten().tolist() == [4, 5, 0, 1, 10, 11, 6, 7]
    assert torch.equal(feeds["table"], data["table"]) and feeds["x"].flatten().tolist() == [2, 0]


@pytest.mark.parametrize(
    ("tensors", "samples", "said"),
    [
        ({"x": numbers(4, 2), "y": numbers(2, 2)}, (FIRST, FIRST), "different numbers of samples: x 4, y 2"),
        ({"x": numbers(4, 2), "y": numbers(3, 2)}, (FIRST, WHOLE), r"`y` is f32\[3, 2\], and the input is f32\[2, 2\]: it has no samples"),
        ({"x": numbers(4, 2), "y": numbers(4, 2)}, (FIRST, SECOND), r"`y` is f32\[4, 2\].*: dim 1 counts samples"),
        ({"x": numbers(4, 2)}, (FIRST, FIRST), r"the data has no tensor `y` \(f32\[2, 2\]\); it has x"),
        ({"x": numbers(0, 2), "y": numbers(0, 2)}, (FIRST, FIRST), "`x` has no sample"),
    ],
)
def test_what_does_not_fit_is_said(tensors: dict[str, torch.Tensor], samples: tuple[Samples, Samples], said: str) -> None:
    with pytest.raises(FeedError, match=said):
        Batches(tensors, {"x": of((2, 2)), "y": of((2, 2))}, dict(zip("xy", samples, strict=True)))


def test_the_dim_of_samples_is_read_as_plans_write_it() -> None:
    read = [Samples.from_json(value) for value in ("first", "whole", {"dim": 1})]
    assert read == [FIRST, WHOLE, SECOND] and [samples.dim(1) for samples in read] == [0, None, None]
    for wrong in ("last", {"dim": -1}, {"dim": True}, {}, 1):
        with pytest.raises(ValueError, match="the dim of samples is"):
            Samples.from_json(wrong)


def test_epochs_are_those_of_graphc(
    graphc: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root())
    training = ("--batch", 6, "--loss", "cross_entropy", "--optimizer", "sgd", "--lr", 0.1)
    graphc("compile", "tests/refs/mlp/model.onnx", *training, "-o", tmp_path / "plan.json")
    graphc("compile", "tests/refs/mlp/model.onnx", "--batch", 5, *training[2:4], "--measure", "top1,top5", "-o", tmp_path / "eval.json")
    held = ("--eval-data", "tests/refs/mlp/data.safetensors")
    for options in (("--epochs", "2", "--shuffle", "--seed", "7"), ("--steps", "13", "--shuffle", *held)):
        found = []
        for engine in ("rust", "torch"):
            metrics = tmp_path / engine
            words = ["train", tmp_path / "plan.json", "--data", "tests/refs/mlp/data.safetensors", *options, "--metrics", metrics]
            own = ["--eval-plan", tmp_path / "eval.json"] if held[0] in options and engine == "torch" else []
            assert graphc(*words) is None if engine == "rust" else main([str(word) for word in (*words, *own)]) == 0
            found.append([json.loads(line) for line in metrics.read_text().splitlines()])
        assert [(line["step"], line["epoch"]) for line in found[0]] == [(line["step"], line["epoch"]) for line in found[1]]
        assert [line["loss"] for line in found[1]] == pytest.approx([line["loss"] for line in found[0]], abs=1e-5)
        evaluations = [[line["eval"] for line in lines if "eval" in line] for lines in found]
        assert len(evaluations[0]) == len(evaluations[1]) == (2 if held[0] in options else 0)
        for expected, own_line in zip(*evaluations, strict=True):
            assert own_line == pytest.approx(expected, abs=1e-5)
    plan, data = str(tmp_path / "plan.json"), "tests/refs/mlp/data.safetensors"
    assert main(["train", plan, "--data", data, "--steps", "1", *held, "--eval-plan", plan]) == 1
    assert "--eval-plan is no plan of inference with the loss" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", plan, "--data", data, "--steps", "1", *held])
    assert "--eval-data and --eval-plan need each other" in capsys.readouterr().err


def test_an_epoch_takes_every_sample_once_but_for_part_batches() -> None:
    epochs = Epochs(10, 3, 5)
    first, second = ([place for step in steps for place in epochs.places(step).tolist()] for steps in (range(3), range(3, 6)))
    assert len(set(first)) == len(set(second)) == 9
    assert first != second
    assert Epochs(10, 3, None).places(4).tolist() == [3, 4, 5]
    with pytest.raises(FeedError, match="the data has 2 samples, fewer than a batch of 3"):
        Epochs(2, 3, None)
    with pytest.raises(FeedError, match="no inputs to feed with samples, so there are no epochs"):
        Epochs(0, 0, None)


def test_elements_of_other_types_are_read_as_those_of_plans(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    tensors = {
        "floats": torch.tensor([0.1, -2.5], dtype=torch.float64),
        "words": torch.tensor([-1, 300], dtype=torch.int16),
        "bytes": torch.tensor([-1, 127], dtype=torch.int8),
        "ids": torch.tensor([3, 4]),
    }
    save_file(tensors, str(path))
    found = load_tensors(path)
    assert [found[name].dtype for name in tensors] == [torch.float32, torch.int32, torch.int32, torch.int64]
    assert all(torch.equal(found[name], tensors[name].to(found[name].dtype)) for name in tensors)
