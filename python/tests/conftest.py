"""What tests share: the programs of graphc, as ``cargo build`` leaves them, and plans made with them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from world import root

torch.set_num_threads(1)


def built(name: str) -> Path:
    """A program of graphc, of the profile that ``GRAPHC_PROFILE`` says, or else debug."""
    path = root() / os.environ.get("CARGO_TARGET_DIR", "target") / os.environ.get("GRAPHC_PROFILE", "debug") / name
    if not path.exists():
        pytest.fail(f"{path} is not there: run `cargo build --bin graphc --example random_plans --example card_models` first")
    return path


@pytest.fixture(scope="session")
def exporter() -> None:
    """What of PyTorch a capture needs is imported once, for all processes that are forked from this one."""
    program = torch.export.export(torch.nn.Linear(1, 1), (torch.ones(1, 1),), strict=False)
    program.run_decompositions(torch.export.default_decompositions())


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that the package runs."""
    monkeypatch.setenv("GRAPHC", str(built("graphc")))


@pytest.fixture(scope="session")
def graphc() -> Callable[..., None]:
    """Runs graphc in the project's folder."""

    def run(*arguments: object) -> None:
        command = [str(built("graphc")), *(str(argument) for argument in arguments)]
        done = subprocess.run(command, cwd=root(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture(scope="session")
def compiled(graphc: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Plans of the references of ``tests/refs``, with further options."""
    folder = tmp_path_factory.mktemp("plans")

    def compile_(name: str, *extra: str) -> Path:
        path = folder / f"{name}{''.join(extra).replace('--', '-')}.json"
        if not path.exists():
            arguments = reference(name)["args"]
            at = arguments.index("--steps")
            arguments = arguments[:at] + arguments[at + 2 :]
            if "--batch" not in arguments:
                arguments += ["--batch", str(samples(name))]
            graphc("compile", f"tests/refs/{name}/model.onnx", *arguments, *extra, "-o", path)
        return path

    return compile_


@pytest.fixture(scope="session")
def random_plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of random plans."""
    folder = tmp_path_factory.mktemp("random")
    count = os.environ.get("GRAPHC_RANDOM_PLANS", "300")
    done = subprocess.run([str(built("examples/random_plans")), str(folder), count], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "said.txt").write_text(done.stdout)
    return folder


def samples(name: str) -> int:
    """Rows of a reference's data."""
    data = load_file(root() / "tests/refs" / name / "data.safetensors")
    return int(next(iter(data.values())).shape[0])


def reference(name: str) -> dict[str, list[str]]:
    """What PyTorch reached: arguments of graphc train, losses."""
    found: dict[str, list[str]] = json.loads((root() / "tests/refs" / name / "ref.json").read_text())
    return found
