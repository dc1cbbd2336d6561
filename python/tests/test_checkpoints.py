"""Checkpoints go from graphc to PyTorch and back, whatever mesh wrote them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from world import root, run

import graphc_torch
from graphc_torch.cli import main

DATA = ("--data", "tests/refs/mlp/data.safetensors")


def train(path: Path, *arguments: object) -> None:
    """graphc_torch train, on as many ranks as the plan has."""

    def work(_rank: int) -> int:
        os.chdir(root())
        data = () if "--data" in arguments else DATA
        return main(["train", str(path), *data, *(str(argument) for argument in arguments)])

    world = graphc_torch.load(path).world_size
    assert run(world, work) == [0] * world


def difference(one: Path, other: Path) -> float:
    a, b = graphc_torch.load_tensors(one), graphc_torch.load_tensors(other)
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("mesh", [("--mesh", "1"), ("--mesh", "2", "--strategy", "zero3"), ("--mesh", "3")])
def test_both_engines_go_on_from_each_other(
    compiled: Callable[..., Path], graphc: Callable[..., None], tmp_path: Path, mesh: tuple[str, ...]
) -> None:
    one, path = compiled("mlp", "--mesh", "1"), compiled("mlp", *mesh)
    whole, there, back = (tmp_path / f"{name}.safetensors" for name in ("whole", "there", "back"))
    graphc("train", one, *DATA, "--steps", 9, "--weights", whole)
    train(path, "--steps", 4, "--save", tmp_path / "torch")
    graphc("train", one, *DATA, "--steps", 9, "--resume", tmp_path / "torch", "--weights", there)
    graphc("train", one, *DATA, "--steps", 4, "--save", tmp_path / "graphc")
    train(path, "--steps", 9, "--resume", tmp_path / "graphc", "--weights", back)
    assert difference(whole, there) < 1e-6 and difference(whole, back) < 1e-6
    manifests = [json.loads((tmp_path / name / "step-00000004/manifest.json").read_text()) for name in ("torch", "graphc")]
    assert manifests[0]["settings"] == manifests[1]["settings"]


def test_a_restart_goes_on_where_the_last_checkpoint_is(compiled: Callable[..., Path], tmp_path: Path) -> None:
    path, folder, metrics = compiled("mlp", "--mesh", "2"), tmp_path / "saved", tmp_path / "metrics.jsonl"
    loop = ("--save", folder, "--save-every", 2, "--resume", folder, "--metrics", metrics)
    train(path, "--steps", 3, *loop)
    train(path, "--steps", 6, *loop)
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == list(range(6))
    assert sorted(entry.name for entry in folder.iterdir()) == ["step-00000004", "step-00000006"]


def test_a_checkpoint_without_its_manifest_is_passed_over_and_set_aside(
    compiled: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, folder = compiled("mlp", "--mesh", "1"), tmp_path / "saved"
    loop = ("--save", folder, "--save-every", 3, "--resume", folder)
    train(path, "--steps", 6, *loop)
    (folder / "step-00000006/manifest.json").unlink()
    capfd.readouterr()
    train(path, "--steps", 8, *loop)
    said = capfd.readouterr().err
    assert f"{folder}/step-00000006 has no manifest.json and is passed over for {folder}/step-00000003" in said
    assert f"it is now {folder}/step-00000006.incomplete-1" in said
    assert (folder / "step-00000008/manifest.json").is_file()


def diverging(graphc: Callable[..., None], path: Path, *extra: object) -> Path:
    """A plan whose first step ruins the weights."""
    own = ("--batch", 16, "--loss", "cross_entropy", "--optimizer", "sgd")
    graphc("compile", "tests/refs/mlp/model.onnx", *own, *extra, "-o", path)
    return path


def test_what_is_not_finite_is_not_saved(graphc: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.chdir(root())
    path, folder = diverging(graphc, tmp_path / "plan.json", "--lr", "1e39"), tmp_path / "saved"
    own = ["train", str(path), *DATA, "--steps", "1"]
    assert main([*own, "--save", str(folder)]) == 1
    assert "so no checkpoint is saved" in capsys.readouterr().err
    assert not list(folder.glob("step-*"))
    weights = tmp_path / "w.safetensors"
    assert main([*own, "--weights", str(weights)]) == 1 and not weights.exists()
    folder = tmp_path / "ignored"
    assert main([*own, "--save", str(folder), "--on-nan", "ignore"]) == 0
    # Both engines know of such a checkpoint that it is of no use.
    capsys.readouterr()
    assert main(["train", str(path), *DATA, "--steps", "2", "--resume", str(folder)]) == 1
    assert "weights that are not finite" in capsys.readouterr().err
    with pytest.raises(AssertionError, match="weights that are not finite"):
        graphc("train", path, *DATA, "--steps", 2, "--resume", folder)
    graphc("train", path, *DATA, "--steps", 2, "--resume", folder, "--on-nan", "ignore")


def test_a_training_of_f16_ends_where_one_of_f32_does(
    graphc: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.chdir(root())
    half = ("--lr", "1e30", "--precision", "f16")
    path = diverging(graphc, tmp_path / "plan.json", *half)
    assert main(["train", str(path), *DATA, "--steps", "30"]) == 1
    assert "weights after it are of no use" in capsys.readouterr().err
    path = diverging(graphc, tmp_path / "skips.json", *half, "--on-nan", "skip")
    assert main(["train", str(path), *DATA, "--steps", "30", "--max-skips", "4"]) == 1
    assert "5 steps in a row up to step 5 have changed nothing" in capsys.readouterr().err
    metrics = tmp_path / "metrics.jsonl"
    path = tmp_path / "plan.json"
    assert main(["train", str(path), *DATA, "--steps", "60", "--on-nan", "ignore", "--metrics", str(metrics)]) == 0
    assert min(json.loads(line)["loss_scale"] for line in metrics.read_text().splitlines()) == 1.0


@pytest.mark.slow
def test_torchrun_starts_again_what_is_killed(compiled: Callable[..., Path], tmp_path: Path) -> None:
    path, folder, metrics = compiled("mlp", "--mesh", "2"), tmp_path / "saved", tmp_path / "metrics.jsonl"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    loop = ["--save", str(folder), "--save-every", "100", "--resume", str(folder), "--metrics", str(metrics)]
    command = [*torchrun, "-m", "graphc_torch", "train", str(path), *DATA, "--steps", "1500", *loop]
    environment = {**os.environ, "PYTHONPATH": str(root() / "python"), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=root(), env=environment, stderr=subprocess.DEVNULL) as job:
        until(lambda: (folder / "step-00000200").is_dir())
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        assert job.wait(120) == 0
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == list(range(1500))


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


def test_damage_is_found(compiled: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, folder = compiled("mlp", "--mesh", "1"), tmp_path / "saved"
    train(path, "--steps", 2, "--save", folder)
    manifest, shards = (folder / "step-00000002" / name for name in ("manifest.json", "rank-00000.safetensors"))
    content, text = bytearray(shards.read_bytes()), manifest.read_text()
    content[-1] ^= 1
    shards.write_bytes(content)
    os.chdir(root())
    resume = ["train", str(path), *DATA, "--steps", "3", "--resume", str(folder)]
    assert main(resume) == 1
    assert "rank-00000.safetensors is damaged: its content does not match its SHA-256" in capsys.readouterr().err
    manifest.write_text(text.replace('"step":2', '"step":1'))
    assert main(resume) == 1
    assert "manifest.json is damaged" in capsys.readouterr().err


def test_the_api_reads_and_writes_variables(compiled: Callable[..., Path]) -> None:
    os.chdir(root())
    plan = graphc_torch.load(compiled("mlp", "--mesh", "1"))
    assert str(plan.tensors["layers.0.weight"].sbp[0]) == "B" and plan.predicted.step_seconds > 0.0
    session = graphc_torch.Session(plan, graphc_torch.model_weights(plan))
    session.set_variable("layers.2.bias", torch.ones(10))
    assert torch.equal(session.variable("layers.2.bias"), torch.ones(10))
    with pytest.raises(graphc_torch.FeedError, match=r"`layers\.2\.bias` is f32"):
        session.set_variable("layers.2.bias", torch.ones(3))
    with pytest.raises(graphc_torch.FeedError, match=r"the input `input` .* is not fed"):
        session.step({})


def export(name: str) -> str:
    return f"tests/exports/{name}"


def test_tables_are_a_part_of_plans_and_of_no_file(graphc: Callable[..., None], tmp_path: Path) -> None:
    torch.manual_seed(0)
    plan, data = tmp_path / "plan.json", tmp_path / "data.safetensors"
    graphc_torch.save_tensors(data, {"x": torch.randn(4, 24, 8), "labels": torch.randint(4, (4, 24))})
    options = ("--batch", 4, "--dim", "t=24", "--loss", "cross_entropy", "--optimizer", "adam", "--lr", 1e-2, "--mesh", 2)
    graphc("compile", export("tables.onnx"), *options, "-o", plan)
    both = {name: tmp_path / f"{name}.safetensors" for name in ("rust", "torch")}
    saved = {name: tmp_path / f"{name}.saved" for name in both}
    graphc("train", plan, "--data", data, "--steps", 3, "--weights", both["rust"], "--save", saved["rust"])
    train(plan, "--data", data, "--steps", 3, "--weights", both["torch"], "--save", saved["torch"])
    assert difference(both["rust"], both["torch"]) < 1e-5
    assert set(graphc_torch.load_tensors(both["torch"])) == {"q.weight", "q.bias", "o.weight", "o.bias"}
    manifests = [json.loads((folder / "step-00000003/manifest.json").read_text()) for folder in saved.values()]
    assert manifests[0]["variables"].keys() == manifests[1]["variables"].keys()
    assert not any("literal" in name for name in manifests[0]["variables"])
    last = tmp_path / "last.safetensors"
    train(plan, "--data", data, "--steps", 4, "--resume", saved["rust"], "--weights", last)
    graphc("train", plan, "--data", data, "--steps", 4, "--resume", saved["torch"], "--weights", both["rust"])
    assert difference(both["rust"], last) < 1e-5


def test_frozen_weights_are_saved_and_may_be_trained_later(graphc: Callable[..., None], tmp_path: Path) -> None:
    model, data = export("frozen.onnx"), export("frozen.safetensors")
    options = ("--batch", 8, "--loss", "cross_entropy", "--optimizer", "adam", "--lr", 1e-3)
    frozen, free = tmp_path / "frozen.json", tmp_path / "free.json"
    graphc("compile", model, *options, "--freeze", "g", "-o", frozen)
    graphc("compile", model, *options, "-o", free)
    other, after = root() / export("frozen_weights.safetensors"), tmp_path / "after.safetensors"
    train(frozen, "--data", data, "--steps", 2, "--weights-from", other, "--weights", after, "--save", tmp_path / "frozen")
    given, left = graphc_torch.load_tensors(other), graphc_torch.load_tensors(after)
    assert set(given) <= set(left)
    assert torch.equal(given["g"], left["g"])
    train(free, "--data", data, "--steps", 4, "--resume", tmp_path / "frozen", "--weights", after, "--save", tmp_path / "free")
    thawed = graphc_torch.load_tensors(after)["g"]
    assert not torch.equal(given["g"], thawed)
    train(frozen, "--data", data, "--steps", 6, "--resume", tmp_path / "free", "--weights", after)
    assert torch.equal(graphc_torch.load_tensors(after)["g"], thawed)


def test_a_file_may_lack_what_is_not_trained(
    graphc: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root())
    plan, data, part = (tmp_path / name for name in ("plan.json", "data.safetensors", "part.safetensors"))
    graphc_torch.save_tensors(data, {"x": torch.randn(4, 6), "labels": torch.randint(5, (4,))})
    options = ("--batch", 4, "--loss", "cross_entropy", "--optimizer", "sgd", "--lr", 0)
    graphc("compile", export("buffers.onnx"), *options, "-o", plan)
    train(plan, "--data", data, "--steps", 1, "--weights", part)
    tensors = graphc_torch.load_tensors(part)
    assert set(tensors) == {"freq", "l.bias", "l.weight", "mean", "std", "zeros"}
    freq = tensors.pop("freq")
    graphc_torch.save_tensors(part, {**tensors, "literal.0": torch.zeros(3)})
    train(plan, "--data", data, "--steps", 1, "--weights-from", part, "--weights", tmp_path / "after.safetensors")
    assert torch.equal(graphc_torch.load_tensors(tmp_path / "after.safetensors")["freq"], freq)
    del tensors["l.weight"]
    graphc_torch.save_tensors(part, tensors)
    assert main(["train", str(plan), "--data", str(data), "--steps", "1", "--weights-from", str(part)]) != 0
    assert "has no `l.weight`" in capsys.readouterr().err
