"""Checkpoints of graphc, read and written: a directory ``step-N`` with a manifest, and a safetensors file a rank.

A manifest says where the elements of each variable are, as rectangles, so that any mesh reads what any other has written, and has the
SHA-256 of each file and of itself. A checkpoint is written beside its name and renamed when it is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .assembly import Assembly, identity
from .errors import CheckpointError, PlanError, reason
from .files import check_file, read_text
from .json_text import Number, read_json
from .layout import Contribution, Layout, Rect, ReduceKind, product
from .ops import TORCH
from .output import say
from .plan import Plan, TensorKind
from .schema import decode, shown
from .session import Session

FORMAT, VERSION, MANIFEST = "graphc checkpoint", 1, "manifest.json"
LONGEST_MANIFEST = 1 << 31
"""Bytes that no manifest has: one of a million pieces has a tenth."""
DTYPES = {dtype: name for name, dtype in TORCH.items()}
SKIPPED = "state.skipped_steps"
"""The state that plans of one setting alone have: 0 where it is missing."""


@dataclass(frozen=True)
class Piece:
    """A rectangle of a variable."""

    file: str
    tensor: str
    origin: tuple[int, ...]
    extent: tuple[int, ...]
    reduce: ReduceKind | None = None

    @property
    def rect(self) -> Rect:
        """Where it lies in the whole."""
        return Rect(self.origin, self.extent)


@dataclass(frozen=True)
class Record:
    """A variable of a checkpoint."""

    kind: TensorKind
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class File:
    """A file of a checkpoint."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    path: Path
    step: int
    """Number of finished steps."""
    seed: int
    model: str
    settings: dict[str, Any] | None
    """What it was trained with."""
    variables: dict[str, Record]
    files: dict[str, File]
    not_finite: tuple[str, ...] = ()
    """Variables that training had made infinite or no number when it was saved all the same."""

    @classmethod
    def open(cls, path: str | Path) -> Checkpoint:
        """The checkpoint at a path, or the latest complete one in a directory.

        Raises:
            CheckpointError: where there is none, or its manifest is damaged or of another version.
        """
        path = Path(path)
        if (path / MANIFEST).is_file():
            return _read(path)
        if not path.is_dir():
            raise CheckpointError(f"there is no checkpoint {path}: no such directory")
        found = complete(path)
        if not found:
            raise CheckpointError(f"{path} holds no complete checkpoint (a directory step-N with a {MANIFEST})")
        return _read(found[-1][1])

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Whole variables, by name, as far as the checkpoint has them."""
        found: dict[str, Tensor] = {}
        checked: set[str] = set()
        for name in names:
            if name in self.variables:
                record = self.variables[name]
                whole = Rect((0,) * len(record.shape), record.shape)
                tensor = self._empty(name, record)
                self._copy(record, whole, tensor, checked)
                found[name] = tensor
        return found

    def fill(self, session: Session) -> None:
        """Sets all variables of a session, whatever mesh wrote the checkpoint; each rank reads what it needs.

        Raises:
            CheckpointError: where the variables are not those of the plan, or a file is damaged.
        """
        self._check(session)
        session.aside.update(self.read(session.aside))
        checked: set[str] = set()
        with torch.no_grad():
            for name, register in session.registers().items():
                layout = session.plan.variables[name][1]
                memory, masked = session.executor.view(register, 0), layout.masked(session.rank)
                if name not in self.variables or session.plan.variables[name][0].role is TensorKind.TABLE:
                    continue
                if masked is not None:
                    memory.fill_(identity(memory.dtype, masked))
                else:
                    self._copy(self.variables[name], layout.rect(session.rank, 0, 1), memory, checked)

    def _check(self, session: Session) -> None:
        """Checks that the variables are those of a plan.

        Which weights are trained may be others, and so may be tables: states of what was frozen in one of both do not matter, and
        what no step changes keeps its value.
        """
        at, plan = f"{self.path} (of model `{self.model}`)", session.plan
        updated, before = plan.updated_variables(), (self.settings or {}).get("trained weights")
        for name, (variable, layout) in plan.variables.items():
            if variable.role is TensorKind.TABLE:
                continue
            record, expected = self.variables.get(name), f"{layout.dtype}{list(layout.shape)}"
            weight = _weight(name)
            was_frozen = before is not None and weight in self.variables and weight not in before
            may_lack = name == SKIPPED or name not in updated or (variable.role is TensorKind.STATE and was_frozen)
            if record is None and not may_lack:
                raise CheckpointError(f"checkpoint {at} lacks variable `{name}` ({expected}): it is of another model or optimizer")
            if record is not None and (record.dtype, record.shape) != (layout.dtype, layout.shape):
                found = f"{record.dtype}{list(record.shape)}"
                raise CheckpointError(f"variable `{name}` is {expected}, but checkpoint {at} has {found}")
        frozen = {name for name in plan.variables if name not in updated}
        passed = {name for name in self.variables if re.fullmatch(r"literal\.\d+", name) or _weight(name) in frozen}
        known = {*plan.variables, *session.aside, *passed, SKIPPED}
        others = [name for name in self.variables if name not in known]
        if others:
            other = f"has variable `{others[0]}`, which the plan lacks: it is of another model or optimizer"
            raise CheckpointError(f"checkpoint {at} {other}")

    def _empty(self, name: str, record: Record) -> Tensor:
        """Memory for a variable, whose files are as long as the manifest says."""
        for file in {piece.file for piece in record.pieces}:
            self._check_size(self.path / file, self.files[file].bytes)
        try:
            return torch.empty(record.shape, dtype=TORCH[record.dtype])
        except (RuntimeError, MemoryError) as error:
            raise CheckpointError(f"taking memory for variable `{name}` of {self.path}: {reason(error)}") from error

    def _copy(self, record: Record, target: Rect, memory: Tensor, checked: set[str]) -> None:
        """Copies a rectangle out of the pieces that overlap it, in their order."""
        parts, values = [], []
        for piece in record.pieces:
            part = piece.rect.intersect(target)
            if part is not None:
                parts.append(Contribution(0, part, piece.reduce))
                values.append(self._piece(piece, part, record.dtype, checked).to(memory.device))
        Assembly(memory, target, parts).run(values)

    def _piece(self, piece: Piece, part: Rect, dtype: str, checked: set[str]) -> Tensor:
        path = self.path / piece.file
        if piece.file not in checked:
            self._check_file(path, self.files[piece.file].bytes, self.files[piece.file].sha256)
            checked.add(piece.file)
        damaged = f"tensor `{piece.tensor}` is not what the manifest says"
        try:
            with safe_open(str(path), framework="pt") as file:
                found = file.get_slice(piece.tensor)
                if tuple(found.get_shape()) != piece.rect.extent:
                    raise _damaged(path, damaged)
                tensor: Tensor = found[part.within(piece.rect)] if piece.rect.extent else file.get_tensor(piece.tensor)
        except (OSError, SafetensorError, RuntimeError, ValueError) as error:
            raise _damaged(path, reason(error)) from error
        if tensor.dtype != TORCH[dtype]:
            raise _damaged(path, damaged)
        return tensor

    def _check_file(self, path: Path, size: int, sha256: str) -> None:
        self._check_size(path, size)
        try:
            if _digest(path) != sha256:
                raise _damaged(path, "its content does not match its SHA-256")
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error}") from error

    def _check_size(self, path: Path, size: int) -> None:
        try:
            found = check_file(path)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"cannot read {path}: {error}") from error
        if found != size:
            raise _damaged(path, f"it has {found} bytes, the manifest says {size}")


def _weight(state: str) -> str:
    """The weight that a state is of: it is called ``state.KIND.WEIGHT``."""
    return re.sub(r"^state\.[^.]*\.", "", state) if state.startswith("state.") else ""


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: {reason}; take another checkpoint, or copy the file again")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def complete(directory: Path) -> list[tuple[int, Path]]:
    """The complete checkpoints of a directory with their steps, ascending; none where there is no directory."""
    entries = directory.iterdir() if directory.is_dir() else ()
    found = [(re.fullmatch(r"step-(\d+)", path.name), path) for path in entries]
    return sorted((int(name[1]), path) for name, path in found if name and (path / MANIFEST).is_file())


def incomplete(directory: str | Path) -> list[tuple[int, Path]]:
    """The directories that are named like checkpoints and have no manifest, in ascending order of their steps."""
    entries = Path(directory).iterdir() if Path(directory).is_dir() else ()
    found = [(re.fullmatch(r"step-(\d+)", path.name), path) for path in entries if path.is_dir()]
    return sorted((int(name[1]), path) for name, path in found if name and not os.path.lexists(path / MANIFEST))


@dataclass(frozen=True)
class _Manifest:
    """The content of a manifest."""

    format: str
    version: int
    step: int
    seed: int
    model: str
    mesh: tuple[int, ...]
    variables: dict[str, Record]
    files: dict[str, File]
    sha256: str
    settings: dict[str, Any] | None = None
    not_finite: tuple[str, ...] = ()


def _read(path: Path) -> Checkpoint:
    manifest = path / MANIFEST
    try:
        text = read_text(manifest, LONGEST_MANIFEST)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {manifest}: {error}") from error
    try:
        value = read_json(text)
    except (ValueError, MemoryError) as error:
        raise CheckpointError(f"{manifest} is no manifest of a checkpoint: {error}") from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise CheckpointError(f'{manifest} is no manifest of a checkpoint: its format is not "{FORMAT}"')
    version = value.get("version")
    if type(version) is not int or version != VERSION:
        raise CheckpointError(f"{manifest} has version {shown(version)}, this package reads {VERSION}: use the build that wrote it")
    try:
        found: _Manifest = decode(_Manifest, value, "manifest")
    except PlanError as error:
        raise CheckpointError(f"{manifest} is no manifest of a checkpoint: {error}") from error
    seal = f'"sha256":"{found.sha256}"}}'
    unsealed = text.rstrip().removesuffix(seal) + '"sha256":""}'
    if not text.rstrip().endswith(seal) or hashlib.sha256(unsealed.encode()).hexdigest() != found.sha256:
        raise _damaged(manifest, "its content does not match its SHA-256")
    return _checkpoint(path, found)


def _checkpoint(path: Path, found: _Manifest) -> Checkpoint:
    variables, files = found.variables, found.files
    left, tensors = {name: file.bytes for name, file in files.items()}, set()
    for name, record in variables.items():
        if record.dtype not in TORCH or not _covered(record):
            raise _damaged(path / MANIFEST, f"the pieces of variable `{name}` are not the whole, each element once")
        for piece in record.pieces:
            # So nothing is larger than the files are, whose sizes are compared before memory is asked for.
            rest = left.get(piece.file, -1) - product(piece.rect.extent) * TORCH[record.dtype].itemsize
            plain = piece.file == os.path.basename(piece.file) and piece.file not in ("", ".", "..")
            if rest < 0 or not plain or (piece.file, piece.tensor) in tensors:
                of = f"of variable `{name}` in {piece.file}"
                raise _damaged(path / MANIFEST, f"the piece `{piece.tensor}` {of} is not what a file holds")
            left[piece.file] = rest
            tensors.add((piece.file, piece.tensor))
    return Checkpoint(path, found.step, found.seed, found.model, found.settings, variables, files, found.not_finite)


def _covered(record: Record) -> bool:
    """Whether the pieces are the whole, each element once: they form a grid, as shards do.

    Of partial values, which are combined with what is there, each part of the grid has equally many.
    """
    copied = [piece.rect for piece in record.pieces if piece.reduce is None]
    added = Counter(piece.rect for piece in record.pieces if piece.reduce is not None)
    rects = set(copied)
    if len(rects) != len(copied) or not _is_grid(rects, record.shape):
        return False
    everywhere = not added or set(added) == rects
    return everywhere and len(set(added.values())) <= 1


def _is_grid(rects: set[Rect], shape: tuple[int, ...]) -> bool:
    """Whether these rectangles are all combinations of ranges that divide each dim of the shape."""
    if 0 in shape:
        return not rects
    if any(len(rect.origin) != len(shape) or len(rect.extent) != len(shape) for rect in rects):
        return False
    combinations = 1
    for dim, whole in enumerate(shape):
        ranges, end = sorted({(rect.origin[dim], rect.extent[dim]) for rect in rects}), 0
        for start, extent in ranges:
            if start != end or extent == 0:
                return False
            end += extent
        combinations *= len(ranges)
        if end != whole or combinations > len(rects):
            return False
    return combinations == len(rects)


class Saver:
    """Saves checkpoints of a training to a directory, and removes those older than are to be kept."""

    def __init__(self, directory: str | Path, keep: int = 2, accept_not_finite: bool = False) -> None:
        """A directory, which is made where there is none; whether variables are saved that training has made infinite or no number."""
        self.directory, self.keep, self.accept_not_finite = Path(directory), max(keep, 1), accept_not_finite
        self._lock: int | None = None

    def save(self, session: Session) -> Path:
        """Saves a session after the steps that it has made, together with the other processes.

        Raises:
            CheckpointError: where it cannot be written; complete ones are as they were.
        """
        step = session.steps
        partial, path = (self.directory / name for name in (f".step-{step:08}.partial", f"step-{step:08}"))
        self._together(session, lambda: self._begin(step, partial) if session.leads else None)
        parts = self._together(session, lambda: write_part(session, partial))
        self._together(session, lambda: self._publish(session, parts, partial, path) if session.leads else None)
        return path

    def _begin(self, step: int, partial: Path) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._claim()
        for entry in self.directory.glob(".step-*.partial"):
            shutil.rmtree(entry, ignore_errors=True)
        for _, entry in incomplete(self.directory):
            aside = next(name for number in count(1) if not os.path.lexists(name := entry.with_suffix(f".incomplete-{number}")))
            entry.rename(aside)
            say("warning", f"{entry} has no {MANIFEST}: it is now {aside}")
        self.check_next(step)
        partial.mkdir()

    def check_next(self, step: int) -> None:
        """Checks that there is no checkpoint of as many steps or more, which would be another run's."""
        found = complete(self.directory)
        if found and found[-1][0] >= step:
            raise CheckpointError(f"{found[-1][1]} is there already: resume from it, or save to another directory")

    def _claim(self) -> None:
        """Keeps other jobs from saving to the same directory while this process lives."""
        if self._lock is None:
            folder = os.open(self.directory, os.O_RDONLY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(folder)
                raise CheckpointError(f"another running job saves its checkpoints to {self.directory}") from error
            self._lock = folder

    def _together(self, session: Session, work: Callable[[], Any]) -> list[Any]:
        """What each process makes, in the order of ranks; an error of one is an error of all."""
        try:
            made: Any = (work(), None)
        except (OSError, SafetensorError) as error:
            made = (None, f"cannot write to {self.directory}: {error}; complete checkpoints there are as they were")
        except CheckpointError as error:
            made = (None, str(error))
        all_of = [made] * session.plan.world_size
        if session.plan.world_size > 1:
            dist.all_gather_object(all_of, made)
        failures = [failure for _, failure in all_of if failure is not None]
        if failures:
            raise CheckpointError(failures[0])
        return [result for result, _ in all_of]

    def _publish(self, session: Session, parts: list[Any], partial: Path, path: Path) -> None:
        ruined = sorted({name for _, _, names in parts for name in names})
        if ruined and not self.accept_not_finite:
            raise CheckpointError(
                f"after {session.steps} steps `{ruined[0]}` is not finite in each element, so no checkpoint is saved, and those before are"
                " as they were: lower the learning rate or clip gradients, and go on from an earlier one"
            )
        text = manifest(session, parts, ruined)
        for _, files, _ in parts:
            for name, entry in files.items():
                if not (partial / name).is_file() or (partial / name).stat().st_size != entry["bytes"]:
                    raise CheckpointError(f"{partial / name} is not there: do all processes see the same directory?")
        with (partial / MANIFEST).open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, path)
        found = complete(self.directory)
        for step, old in found[: max(len(found) - self.keep, 0)]:
            hidden = self.directory / f".step-{step:08}.partial"
            os.rename(old, hidden)
            shutil.rmtree(hidden, ignore_errors=True)


def write_part(session: Session, partial: Path) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Writes what this rank adds, each rectangle that no rank before it has: its variables, its file, and what of it is not finite."""
    name = f"rank-{session.rank:05}.safetensors"
    records, tensors = {}, {}
    for variable, register in session.registers().items():
        described, layout = session.plan.variables[variable]
        if described.role is TensorKind.TABLE:
            continue
        memory, rect = session.executor.view(register, 0), layout.rect(session.rank, 0, 1)
        pieces = []
        if _first(layout, session.rank) and memory.numel():
            piece: dict[str, Any] = {"file": name, "tensor": variable, "origin": rect.origin, "extent": rect.extent}
            masked = layout.masked(session.rank)
            pieces.append(piece if masked is None else {**piece, "reduce": masked.value})
            tensors[variable] = memory.cpu().contiguous()
        record = {"kind": described.role.value, "dtype": layout.dtype, "shape": layout.shape, "pieces": pieces}
        records[variable] = record
    for variable, tensor in session.aside.items() if session.leads else ():
        piece = {"file": name, "tensor": variable, "origin": [0] * tensor.dim(), "extent": list(tensor.shape)}
        kind, dtype = TensorKind.PARAMETER.value, DTYPES[tensor.dtype]
        records[variable] = {"kind": kind, "dtype": dtype, "shape": list(tensor.shape), "pieces": [piece] if tensor.numel() else []}
        if tensor.numel():
            tensors[variable] = tensor
    if not tensors:
        return records, {}, []
    updated = session.plan.updated_variables()
    ruined = [name for name, tensor in tensors.items() if name in updated and not bool(tensor.isfinite().all())]
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, str(partial / name))
    with (partial / name).open("rb") as file:
        os.fsync(file.fileno())
    return records, {name: {"bytes": (partial / name).stat().st_size, "sha256": _digest(partial / name)}}, ruined


def _first(layout: Layout, rank: int) -> bool:
    """Whether no rank before holds the same."""
    return layout.replicas(rank)[0] == rank


def manifest(session: Session, parts: list[Any], not_finite: list[str]) -> str:
    """The manifest of what all ranks have added, sealed with its SHA-256."""
    variables: dict[str, Any] = {}
    files: dict[str, Any] = {}
    for records, of_rank, _ in parts:
        files.update(of_rank)
        for name, record in records.items():
            known = variables.setdefault(name, {**record, "pieces": []})
            known["pieces"].extend(record["pieces"])
    value = {
        "format": FORMAT,
        "version": VERSION,
        "step": session.steps,
        "seed": session.seed,
        "model": session.plan.name,
        "mesh": session.plan.mesh,
        **({"not_finite": not_finite} if not_finite else {}),
        "settings": settings(session),
        "variables": dict(sorted(variables.items())),
        "files": dict(sorted(files.items())),
        "sha256": "",
    }
    value["sha256"] = hashlib.sha256(written(value).encode()).hexdigest()
    return written(value)


def written(value: Any) -> str:
    """JSON as graphc writes it: compact, numbers as they were read."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{written(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(written(item) for item in value) + "]"
    if isinstance(value, Number):
        return value.text
    return json.dumps(value, ensure_ascii=False)


def settings(session: Session) -> dict[str, Any]:
    """What decides what a step does to variables, whatever the mesh, as graphc records it."""
    options, found = session.plan.options, {}
    for name, value in (options.get("optimizer") or {}).items():
        found["optimizer" if name == "name" else name] = value
    found["loss"] = options.get("loss")
    found["label smoothing"] = options.get("label_smoothing", 0.0)
    found["learning-rate schedule"] = options.get("lr_schedule", "constant")
    found["maximize"] = options.get("maximize", False)
    found["clip norm"], found["clip value"] = options.get("clip_norm"), options.get("clip_value")
    found["parameter groups"] = options.get("groups", [])
    found["kept statistics"] = options.get("keep_statistics", [])
    found["sums over microbatches"] = options.get("accumulation", "f32")
    for name, layout in session.inputs.items():
        found[f"input `{name}`"] = f"{layout.dtype}{list(layout.shape)}"
    found["microbatches"] = session.plan.microbatches
    found["precision"] = options.get("precision") or "the model's"
    found["trained weights"] = trained(session.plan)
    return dict(sorted(found.items()))


def trained(plan: Plan) -> list[str]:
    """The variables that the graph's text says are trained."""
    pattern = re.compile(r'= variable ("(?:[^"\\]|\\.)*") \{(.*)\} :')
    found = (pattern.search(line) for line in plan.graph)
    return [json.loads(match[1]) for match in found if match and "trainable=true" in match[2]]


def changes(session: Session, before: dict[str, Any] | None) -> list[str]:
    """In which settings a session differs from the one that saved a checkpoint."""
    now = settings(session)
    pairs = [(name, (before or {}).get(name), value) for name, value in now.items() if name in (before or {})]
    return [f"{name} was {_shown(was)}, and is {_shown(value)} now" for name, was, value in pairs if was != value]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else written(value)
