"""A plan of a model whose weights PyTorch's exporter has turned, repeated or raised begins with them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from world import root

from graphc_torch.cli import main
from graphc_torch.folded import unfolded
from graphc_torch.merged import unmerged
from graphc_torch.onnx import Calls

#: Those of PyTorch, as `tests/training/exported.rs` has them.
LOSSES = [2.77100, 2.74875, 2.42719, 2.48369, 2.40234, 2.49952]
MERGED = [2.52589, 2.48282, 3.86923, 2.69760, 2.14078, 1.30030]


@pytest.mark.parametrize(("model", "expected"), [("folded", LOSSES), ("folded_dynamic", LOSSES), ("merged", MERGED)])
def test_what_the_exporter_has_folded_or_merged_is_trained(
    model: str, expected: list[float], graphc: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports = root() / "tests" / "exports"
    plan, metrics = tmp_path / "plan.json", tmp_path / "metrics.jsonl"
    training = ["--batch", "4", "--loss", "cross_entropy", "--optimizer", "sgd", "--lr", "0.5"]
    graphc("compile", exports / f"{model}.onnx", *training, "-o", plan)
    monkeypatch.chdir(root())
    assert os.environ.get("WORLD_SIZE", "1") == "1"
    data = exports / f"{model.removesuffix('_dynamic')}.safetensors"
    main(["train", str(plan), "--data", str(data), "--steps", "6", "--metrics", str(metrics)])
    losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
    assert losses == pytest.approx(expected, abs=2e-5)


def test_what_was_written_once_is_found_by_the_functions_that_read_it() -> None:
    square, scale = torch.randn(2, 2), torch.ones(2)
    tensors = {"val_1": square.t(), "a.norm.weight": scale}
    parts = {"val_1": ["a.weight"]}
    placeholders = {f"{name}.{leaf}": f"p_{name}_{leaf}" for name in ("a", "b") for leaf in ("weight", "bias")}
    nodes = [(["x", "val_1"], ["x", "p_b_weight", "p_b_bias"]), (["y", "a.norm.weight"], ["y", "add_3"])]
    calls = Calls(nodes, placeholders)
    found = unmerged("b.weight", [2, 2], tensors, parts, calls)
    assert found is not None and torch.equal(found, square)
    found = unmerged("add_3", [2], tensors, parts, calls)
    assert found is not None and torch.equal(found, scale)
    found = unmerged("b.bias", [2], tensors, parts, calls)
    assert found is not None and torch.equal(found, torch.zeros(2))
    assert unmerged("c.weight", [2, 2], tensors, parts, calls) is None


def test_parameters_are_found_in_what_was_made_of_them() -> None:
    weight, scale = torch.randn(3, 2), torch.tensor([0.5, -1.0])
    table = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    tensors = {"val_1": weight.t(), "neg": -scale.exp(), "embedding": table[torch.tensor([[0, 1, 0], [1, 1, 0]])]}
    parts = {"val_1": ["q.weight"], "neg": ["rate", "exp"], "other": ["nothing"]}
    found = unfolded("q.weight", [3, 2], tensors, parts)
    assert found is not None and torch.equal(found, weight)
    found = unfolded("rate", [2], tensors, parts)
    assert found is not None and torch.allclose(found, scale)
    found = unfolded("embedding", [2, 2], tensors, parts)
    assert found is not None and torch.equal(found, table)
    assert unfolded("nothing", [2], tensors, parts) is None
