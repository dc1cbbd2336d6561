"""The weights of an ONNX file: as much of its format as that takes.

An ONNX file is a message of Protocol Buffers: fields, each a number with a kind, one after the other. Of the model only the graph's
initializers are read; data of large models in files beside it are read from there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .errors import FeedError, reason
from .files import check_file, read_file

PRODUCER, GRAPH, NODE, INITIALIZER, INPUT, VALUE_INFO = 2, 7, 1, 5, 11, 13
"""Fields of a model and of a graph."""
GRAPH_METADATA, NODE_METADATA = 16, 9
DESCRIBED = {INITIALIZER: (8, 16), INPUT: (1, 4), VALUE_INFO: (1, 4)}
"""The fields of what describes tensors for its name and its metadata."""
DIMS, TYPE, FLOATS, INTS_32, INTS_64, NAME, RAW, EXTERNAL, LOCATION = 1, 2, 4, 5, 7, 8, 9, 13, 14
"""Fields of a tensor."""

TYPES = {
    1: torch.float32,
    2: torch.uint8,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    16: torch.bfloat16,
}
"""Element types by their numbers."""

LONGEST_MODEL = 1 << 31
"""Bytes of the longest file: what its format may have."""

Fields = list[tuple[int, int | memoryview]]


def weights(path: str | Path) -> dict[str, Tensor]:
    """The initializers of a model, by name, and what are copies of them.

    Raises:
        FeedError: where the file cannot be read or is no ONNX file.
    """
    path = Path(path)
    try:
        model = memoryview(read_file(path, LONGEST_MODEL))
        found = {}
        for graph in _messages(model, GRAPH):
            for entry in _messages(graph, INITIALIZER):
                name, tensor = _tensor(list(_fields(entry)), path)
                found[name] = tensor.float() if tensor.dtype is torch.float64 else tensor
            for node in _messages(graph, NODE):
                # Weights that begin alike are written once.
                source, copy = _text(node, 1), _text(node, 2)
                if _text(node, 4) == "Identity" and source in found:
                    found.setdefault(copy, found[source])
    except OSError as error:
        raise FeedError(f"cannot read the model {path}: {error}") from error
    except (LookupError, ValueError, TypeError, ArithmeticError, RuntimeError, StopIteration, MemoryError) as error:
        raise FeedError(f"{path} is no ONNX file that can be read: {reason(error)}") from error
    return found


def folded(path: str | Path) -> dict[str, list[str]]:
    """The tensors of which the exporter's optimizer has computed each that it has, by name.

    Raises:
        OSError: where the file cannot be read.
        ValueError: where a name is no text.
    """
    found = {}
    name, metadata = DESCRIBED[VALUE_INFO]
    for graph in _messages(memoryview(read_file(Path(path), LONGEST_MODEL)), GRAPH):
        for entry in _messages(graph, VALUE_INFO):
            for pair in _messages(entry, metadata):
                if _text(pair, 1).endswith("optimizer.folded_from"):
                    parts = _text(pair, 2).removeprefix("[").removesuffix("]").split(", ")
                    found[_text(entry, name)] = [part.strip("'\"") for part in parts]
    return found


@dataclass(frozen=True)
class Calls:
    """The functions of PyTorch that a model's nodes stand for."""

    nodes: list[tuple[list[str], list[str]]]
    """The inputs of each node that stands for one, and the names of that function's operands."""
    placeholders: dict[str, str]
    """The names that functions call parameters by, by the parameter."""


def calls(path: str | Path) -> Calls:
    """The functions that nodes stand for, as far as the file says it.

    Raises:
        OSError: where the file cannot be read.
        ValueError: where a name is no text.
    """
    nodes, placeholders = [], {}
    for graph in _messages(memoryview(read_file(Path(path), LONGEST_MODEL)), GRAPH):
        for pair in _messages(graph, GRAPH_METADATA):
            if _text(pair, 1).endswith("ExportedProgram.graph_signature"):
                new = re.findall(r"(\w+): PARAMETER target='([^']*)'", _text(pair, 2))
                old = re.findall(r"PARAMETER[^']*name='(\w+)'[^']*target='([^']*)'", _text(pair, 2))
                placeholders.update({target: name for name, target in new + old})
        for node in _messages(graph, NODE):
            for pair in _messages(node, NODE_METADATA):
                _, _, call = _text(pair, 2).partition("target=torch.ops.aten.")
                if _text(pair, 1).endswith("fx_node") and call:
                    inputs = [bytes(name).decode() for name in _messages(node, 1)]
                    nodes.append((inputs, re.findall(r"%(\w+)", call.partition("](")[2])))
    return Calls(nodes, placeholders)


def authored(path: str | Path, tensors: dict[str, Tensor]) -> tuple[set[str], set[str]]:
    """The initializers that are the author's, parameters and buffers, and not the exporter's; and buffers that PyTorch does not save.

    Raises:
        OSError: where the file cannot be read.
        ValueError: where a name is no text.
    """
    kinds, names, computed = {}, set(), set()
    model = memoryview(read_file(Path(path), LONGEST_MODEL))
    is_pytorch = _text(model, PRODUCER) == "pytorch"
    for graph in _messages(model, GRAPH):
        for field, (name, metadata) in DESCRIBED.items():
            for entry in _messages(graph, field):
                called = _text(entry, name)
                names |= {called} if field == INITIALIZER else set()
                for pair in _messages(entry, metadata):
                    if _text(pair, 1).endswith("InputSpec.kind"):
                        kinds[called] = _text(pair, 2)
                    if _text(pair, 1).endswith("InputSpec.persistent") and _text(pair, 2) == "False":
                        computed.add(called)
    if names & set(kinds):
        return {name for name in names if kinds.get(name) in ("PARAMETER", "BUFFER")}, computed
    # One number alone is a setting, unless PyTorch has named it.
    named = {name for name in names if not name.startswith("onnx::")}
    return {name for name in named if is_pytorch or (name in tensors and tensors[name].numel() > 1)}, computed


def _text(message: memoryview, number: int) -> str:
    return next((bytes(value).decode() for value in _messages(message, number)), "")


def _messages(message: memoryview, number: int) -> Iterator[memoryview]:
    for field, value in _fields(message):
        if field == number and isinstance(value, memoryview):
            yield value


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        field, kind = tag >> 3, tag & 7
        if kind == 0:
            number, at = _varint(message, at)
            yield field, number
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, at = _varint(message, at)
        if size is None or at + size > len(message):
            raise ValueError("a field is cut off")
        yield field, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while shift < 64:
        byte = message[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
    raise ValueError("a number is longer than any is")


def _tensor(fields: Fields, path: Path) -> tuple[str, Tensor]:
    """A tensor's name and content."""
    shape = _integers(fields, DIMS)
    if any(extent < 0 for extent in shape):
        raise ValueError(f"a weight has the shape {shape}")
    kind = next(value for field, value in fields if field == TYPE)
    name = next((bytes(value).decode() for field, value in fields if field == NAME and not isinstance(value, int)), "")
    dtype = TYPES[int(kind) if isinstance(kind, int) else 0]
    data = _data(fields, path, dtype, math.prod(shape))
    return name, data.view(shape)


def _integers(fields: Fields, number: int) -> list[int]:
    """Numbers that are written one a field, or packed in one."""
    found: list[int] = []
    for field, value in fields:
        if field == number and isinstance(value, int):
            found.append(value)
        elif field == number and isinstance(value, memoryview):
            at = 0
            while at < len(value):
                item, at = _varint(value, at)
                found.append(item)
    return [value - (1 << 64) if value >> 63 else value for value in found]


def _data(fields: Fields, path: Path, dtype: torch.dtype, count: int) -> Tensor:
    raw = next((value for field, value in fields if field == RAW and not isinstance(value, int)), None)
    if any(field == LOCATION and value == 1 for field, value in fields):
        raw = _external(fields, path, count * dtype.itemsize)
    if raw is None and any(field == FLOATS for field, _ in fields):
        raw = memoryview(b"".join(bytes(value) for field, value in fields if field == FLOATS and not isinstance(value, int)))
    if raw is not None:
        if len(raw) != count * dtype.itemsize:
            raise ValueError(f"a weight of {count} elements has {len(raw)} bytes")
        return torch.frombuffer(bytearray(raw), dtype=dtype) if count else torch.empty(0, dtype=dtype)
    numbers = _integers(fields, INTS_64 if dtype is torch.int64 else INTS_32)
    if dtype in (torch.float16, torch.bfloat16):
        return torch.tensor(numbers, dtype=torch.int32).to(torch.int16).view(dtype)
    return torch.tensor(numbers, dtype=torch.int64).to(dtype)


def _external(fields: Fields, path: Path, size: int) -> memoryview:
    """Data in a file beside the model: its name, and where in it they begin."""
    entries = {}
    for field, value in fields:
        if field == EXTERNAL and isinstance(value, memoryview):
            pair = {number: bytes(text).decode() for number, text in _fields(value) if not isinstance(text, int)}
            entries[pair.get(1, "")] = pair.get(2, "")
    file = (path.parent / entries["location"]).resolve()
    if path.parent.resolve() not in file.parents:
        raise ValueError(f"weights in {file}, which is outside of the model's folder")
    begin, held = int(entries.get("offset", "0")), check_file(file)
    if not 0 <= begin <= held - size:
        raise ValueError(f"{size} bytes of a weight lie at {begin} of {file}, which has {held}")
    with file.open("rb") as data:
        data.seek(begin)
        return memoryview(data.read(size))
