"""Files of tensors: batches of a data set, weights to begin with, metrics."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from . import onnx
from .errors import FeedError
from .layout import Layout
from .ops import TORCH
from .plan import Plan


def load_tensors(path: str | Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, by name.

    Raises:
        FeedError: where it cannot be read.
    """
    try:
        tensors: dict[str, Tensor] = load_file(str(path))
    except (OSError, SafetensorError, ValueError) as error:
        raise FeedError(f"cannot read {path}: {error}") from error
    if not tensors:
        raise FeedError(f"{path} holds no tensors")
    return tensors


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes a safetensors file: beside it first, so that it is whole or as it was.

    Raises:
        FeedError: where it cannot be written.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.partial")
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(beside))
        os.replace(beside, path)
    except (OSError, SafetensorError) as error:
        beside.unlink(missing_ok=True)
        raise FeedError(f"cannot write {path}: {error}") from error


class Batches:
    """A data set in memory: one tensor an input, whose first dim counts samples.

    The feeds of step s are the rows [s batch, (s + 1) batch) of each tensor, wrapping. Where the first dims of inputs differ, a
    tensor that is as large as its input is no set of samples but the same in every step.
    """

    def __init__(self, tensors: Mapping[str, Tensor], inputs: Mapping[str, Layout]) -> None:
        """Batches of these inputs; tensors that are none of them are left aside.

        Raises:
            FeedError: where a tensor is missing, or of another type or number of samples.
        """
        for name, layout in inputs.items():
            _check(name, tensors, layout)
        self.tensors = {name: tensors[name] for name in inputs}
        self.shapes = {name: layout.shape for name, layout in inputs.items()}
        firsts = {shape[0] for shape in self.shapes.values() if shape}
        counts = {tensor.shape[0] for tensor in self.tensors.values() if tensor.dim()}
        alike = len(firsts) <= 1 or len(counts) <= 1
        self.sampled = {name for name, shape in self.shapes.items() if shape and (alike or tuple(self.tensors[name].shape) != shape)}
        sizes = {name: self.tensors[name].shape[0] for name in sorted(self.sampled)}
        if len(set(sizes.values())) > 1:
            raise FeedError("the tensors have different numbers of samples: " + ", ".join(f"{n} {s}" for n, s in sizes.items()))
        self.samples = next(iter(sizes.values()), 0)
        self.batch = max((self.shapes[name][0] for name in self.sampled), default=0)
        """Samples of a step; 0 where no input has any."""

    def feeds(self, step: int) -> dict[str, Tensor]:
        """What a step is fed."""
        return {name: self._rows(name, tensor, step) for name, tensor in self.tensors.items()}

    def _rows(self, name: str, tensor: Tensor, step: int) -> Tensor:
        if not self.shapes[name]:
            return tensor
        batch, samples = self.shapes[name][0], tensor.shape[0]
        begin = step * batch % samples if samples else 0
        if begin + batch <= samples:
            return tensor[begin : begin + batch]
        return tensor[torch.arange(begin, begin + batch) % samples]


def _check(name: str, tensors: Mapping[str, Tensor], layout: Layout) -> None:
    expected = f"{layout.dtype}{list(layout.shape)}"
    if name not in tensors:
        raise FeedError(f"the data has no tensor `{name}` ({expected}); it has {', '.join(sorted(tensors))}")
    found = tensors[name]
    if found.dtype != TORCH[layout.dtype] or tuple(found.shape[1:]) != layout.shape[1:] or found.dim() != len(layout.shape):
        raise FeedError(f"the data's `{name}` is {found.dtype}{list(found.shape)}, and the input is {expected}")
    if found.dim() and found.shape[0] == 0 and layout.shape[0] != 0:
        raise FeedError(f"the data's `{name}` has no sample")


def model_weights(plan: Plan) -> dict[str, Tensor]:
    """The weights that the plan's variables take from the model's file, as far as they are there; none where no variable does.

    Raises:
        FeedError: where the file cannot be read, or has changed since the plan was made.
    """
    wanted = [name for name, (variable, _) in plan.variables.items() if variable.init.kind == "weights"]
    if not wanted or plan.weights is None:
        return {}
    path = Path(plan.weights.path)
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise FeedError(f"the plan takes its weights from {path}, which cannot be read: {error}") from error
    if found != plan.weights.sha256:
        raise FeedError(f"{path} has changed since the plan was made: compile again, or give --weights-from")
    if path.suffix != ".onnx":
        return {}
    tensors = onnx.weights(path)
    return {name: tensors[name] for name in wanted if name in tensors}


class Metrics:
    """Lines of JSON in a file, each of them there at once."""

    def __init__(self, path: Path, resumed: int | None) -> None:
        """A new file, or what one holds of the steps before that at which training goes on.

        Raises:
            FeedError: where it cannot be written.
        """
        try:
            kept = _earlier(path, resumed) if resumed is not None and path.is_file() else []
            self.file: IO[str] = path.open("w", encoding="utf-8")
            self.file.writelines(kept)
            self.file.flush()
        except OSError as error:
            raise FeedError(f"cannot write {path}: {error}") from error

    def write(self, line: Mapping[str, Any]) -> None:
        """Writes a line."""
        self.file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self.file.flush()


def _earlier(path: Path, step: int) -> list[str]:
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            number = json.loads(line).get("step")
        except (ValueError, AttributeError):
            continue
        if isinstance(number, int) and number < step:
            kept.append(line)
    return kept
