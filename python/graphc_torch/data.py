"""Files of tensors: batches of a data set, weights to begin with, metrics."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from . import onnx
from .epochs import Epochs
from .errors import FeedError, reason
from .files import check_file, read_file, write_whole
from .folded import unfolded
from .json_text import read_json, write_line
from .layout import Layout
from .merged import unmerged
from .ops import TORCH
from .plan import Plan, Samples, WeightsSource

#: Element types of files that plans lack, and what they are read as.
_READ_AS = {
    torch.float64: torch.float32,
    torch.int8: torch.int32,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
}


def load_tensors(path: str | Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, by name.

    Element types that plans lack are read as one that they have, as the Rust engine reads them: float64 as float32, narrow integers as
    wider ones.

    Raises:
        FeedError: where it cannot be read.
    """
    try:
        check_file(path)
        tensors: dict[str, Tensor] = load_file(str(path))
    except (OSError, SafetensorError, ValueError, RuntimeError, KeyError, MemoryError) as error:
        raise FeedError(f"cannot read {path}: {reason(error)}") from error
    if not tensors:
        raise FeedError(f"{path} holds no tensors")
    return {name: tensor.to(_READ_AS.get(tensor.dtype, tensor.dtype)) for name, tensor in tensors.items()}


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes a safetensors file: beside it first, so that it is whole or as it was.

    Raises:
        FeedError: where it cannot be written.
    """
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    try:
        write_whole(path, lambda beside: save_file(whole, str(beside)))
    except (OSError, SafetensorError, ValueError) as error:
        raise FeedError(f"cannot write {path}: {error}") from error


class Batches:
    """A data set in memory: one tensor an input.

    The feeds of step s are the samples [s batch, (s + 1) batch) of each tensor, wrapping, along the dim that counts them, or those of
    its epoch. What has no such dim is the same in every step.
    """

    def __init__(self, tensors: Mapping[str, Tensor], inputs: Mapping[str, Layout], samples: Mapping[str, Samples]) -> None:
        """Batches of these inputs, whose samples lie along these dims; tensors that are none of them are left aside.

        Raises:
            FeedError: where a tensor is missing, or of another type or number of samples.
        """
        self.held = [_Held.of(name, tensors, layout, samples[name]) for name, layout in inputs.items()]
        counts = {held.name: held.samples for held in self.held if held.dim is not None}
        if len(set(counts.values())) > 1:
            raise FeedError("the tensors have different numbers of samples: " + ", ".join(f"{n} {s}" for n, s in counts.items()))
        self.samples = next(iter(counts.values()), 0)
        self.batch = max((held.batch for held in self.held), default=0)
        """Samples of a step; 0 where no input has any."""
        self.epochs: Epochs | None = None

    def in_epochs(self, seed: int | None) -> Batches:
        """The same, in epochs that are shuffled by a seed, or are in the order of the data.

        Raises:
            FeedError: where an epoch has no whole batch.
        """
        self.epochs = Epochs(self.samples, self.batch, seed)
        return self

    def feeds(self, step: int) -> dict[str, Tensor]:
        """What a step is fed."""
        places = None if self.epochs is None else self.epochs.places(step)
        return {held.name: held.feed(step) if places is None else held.taken(places) for held in self.held}


@dataclass(frozen=True)
class _Held:
    """An input, and all that it is fed with."""

    name: str
    tensor: Tensor
    dim: int | None
    """The dim that counts samples."""
    batch: int
    """Samples of a step."""

    @classmethod
    def of(cls, name: str, tensors: Mapping[str, Tensor], layout: Layout, samples: Samples) -> _Held:
        """The tensor of this input's name.

        Raises:
            FeedError: where there is none, or it is of another type.
        """
        dim = samples.dim(len(layout.shape))
        _check(name, tensors, layout, dim)
        return cls(name, tensors[name], dim, 0 if dim is None else layout.shape[dim])

    @property
    def samples(self) -> int:
        return 0 if self.dim is None else self.tensor.shape[self.dim]

    def feed(self, step: int) -> Tensor:
        """The samples of a step: a view of all where they follow each other."""
        if self.dim is None:
            return self.tensor
        begin = step * self.batch % self.samples if self.samples else 0
        if begin + self.batch <= self.samples:
            return self.tensor.narrow(self.dim, begin, self.batch)
        return self.tensor.index_select(self.dim, torch.arange(begin, begin + self.batch) % self.samples)

    def taken(self, places: Tensor) -> Tensor:
        """These samples."""
        return self.tensor if self.dim is None else self.tensor.index_select(self.dim, places)


def _check(name: str, tensors: Mapping[str, Tensor], layout: Layout, dim: int | None) -> None:
    expected = f"{layout.dtype}{list(layout.shape)}"
    if name not in tensors:
        raise FeedError(f"the data has no tensor `{name}` ({expected}); it has {', '.join(sorted(tensors))}")
    found, shape = tensors[name], list(layout.shape)
    if dim is not None and found.dim() == len(shape):
        shape[dim] = found.shape[dim]
    if found.dtype != TORCH[layout.dtype] or list(found.shape) != shape:
        how = "it has no samples, so it is fed whole" if dim is None else f"dim {dim} counts samples"
        raise FeedError(f"the data's `{name}` is {type_of(found)}, and the input is {expected}: {how}")
    if dim is not None and found.shape[dim] == 0 and layout.shape[dim] != 0:
        raise FeedError(f"the data's `{name}` has no sample")


def type_of(tensor: Tensor) -> str:
    """Element type and shape as plans write them: ``f32[2, 3]``."""
    names = {dtype: name for name, dtype in TORCH.items()}
    return f"{names.get(tensor.dtype, tensor.dtype)}{list(tensor.shape)}"


def model_weights(plan: Plan) -> dict[str, Tensor]:
    """The weights that the plan's variables take from the model's file, as far as they are there; none where no variable does.

    Raises:
        FeedError: where the file cannot be read, or has changed since the plan was made.
    """
    wanted = {name: layout.shape for name, (variable, layout) in plan.variables.items() if variable.init.kind == "weights"}
    if not wanted or plan.weights is None:
        return {}
    tensors = _initializers(plan.weights)
    is_onnx = plan.weights.path.endswith(".onnx")
    parts = onnx.folded(plan.weights.path) if is_onnx else {}
    found = {name: unfolded(name, shape, tensors, parts) for name, shape in wanted.items()}
    if is_onnx and any(tensor is None for tensor in found.values()):
        calls = onnx.calls(plan.weights.path)
        for name in [name for name, tensor in found.items() if tensor is None]:
            found[name] = unmerged(name, wanted[name], tensors, parts, calls)
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def other_tensors(plan: Plan) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What a model has besides the plan's variables, as far as its file is there.

    First the author's tensors, which files of weights hold; then those with which the plan was made: what is no floating-point number,
    and buffers that PyTorch does not save.
    """
    try:
        tensors = _initializers(plan.weights) if plan.weights is not None else {}
        own, computed = _authored(plan.weights, tensors) if plan.weights is not None and tensors else (set(), set())
    except (FeedError, OSError, ValueError, MemoryError):
        return {}, {}
    others = {name: tensor for name, tensor in tensors.items() if name not in plan.variables}
    fixed = {name: tensor for name, tensor in others.items() if name in computed or not tensor.is_floating_point()}
    return {name: tensor for name, tensor in others.items() if name in own}, fixed


_FOLDER = "hf:"
"""What the path of a model begins with that is a folder as transformers saves it."""


def _authored(weights: WeightsSource, tensors: dict[str, Tensor]) -> tuple[set[str], set[str]]:
    if weights.path.startswith(_FOLDER):
        return set(tensors), set()
    return onnx.authored(weights.path, tensors)


def _of_folder(folder: Path) -> dict[str, Tensor]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return load_tensors(single)
    if not index.exists():
        return {}
    try:
        files = sorted(set(read_json(read_file(index, _LONGEST_INDEX).decode())["weight_map"].values()))
        names = [str(file) for file in files]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FeedError(f"cannot read {index}: {reason(error)}") from error
    if any(Path(name).name != name for name in names):
        raise FeedError(f"{index} names a file that is not beside it")
    return {name: tensor for file in names for name, tensor in load_tensors(folder / file).items()}


_LONGEST_INDEX = 1 << 27
"""More bytes than an index has."""


def _initializers(weights: WeightsSource) -> dict[str, Tensor]:
    folder = Path(weights.path[len(_FOLDER) :]) if weights.path.startswith(_FOLDER) else None
    path = Path(weights.path) if folder is None else folder / "config.json"
    try:
        check_file(path)
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        raise FeedError(f"the plan takes its weights from {path}, which cannot be read: {error}") from error
    if found != weights.sha256:
        raise FeedError(f"{path} has changed since the plan was made: compile again, or give --weights-from")
    if folder is not None:
        return _of_folder(folder)
    if path.suffix != ".onnx":
        return {}
    return onnx.weights(path)


LONGEST_METRICS = 1 << 40
"""More bytes than lines of metrics have."""


class Metrics:
    """Lines of JSON in a file, each of them there at once."""

    def __init__(self, path: Path, resumed: int | None) -> None:
        """A new file, or what one holds of the steps before that at which training goes on.

        Raises:
            FeedError: where it cannot be written.
        """
        self.path = path
        try:
            if resumed is not None and path.is_file():
                kept = b"".join(_earlier(path, resumed))
                write_whole(path, lambda beside: beside.write_bytes(kept))
            self.file: IO[bytes] = path.open("wb" if resumed is None else "ab", buffering=0)
        except (OSError, ValueError) as error:
            raise FeedError(f"cannot write {path}: {error}") from error

    def write(self, line: Mapping[str, Any]) -> None:
        """Writes a line.

        Raises:
            FeedError: where it cannot be written.
        """
        text = (write_line(line) + "\n").encode()
        before = self.path.stat().st_size if self.path.is_file() else None
        try:
            while text:
                text = text[self.file.write(text) :]
        except OSError as error:
            if before is not None:
                # Where even this fails a reader finds a line without an end, which a training that is resumed takes away.
                with contextlib.suppress(OSError):
                    self.file.truncate(before)
            raise FeedError(f"cannot write {self.path}: {error}") from error


def _earlier(path: Path, step: int) -> list[bytes]:
    """The lines of earlier steps. A line that was cut off goes with those of later ones."""
    kept = []
    for line in read_file(path, LONGEST_METRICS).splitlines(keepends=True):
        try:
            value = read_json(line.decode("utf-8"))
        except ValueError:
            continue
        number = value.get("step") if isinstance(value, dict) else None
        if type(number) is int and 0 <= number < step and line.endswith(b"\n"):
            kept.append(line)
    return kept
