"""Data of the trainings, made by seed: the same file for both sides. A safetensors file is a length, a header of JSON, and bytes."""

from __future__ import annotations

import json
import random
import struct
from array import array
from pathlib import Path

from kit import model, scratch, sizes


def write(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    """Writes tensors: element type, shape, bytes."""
    header, at = {}, 0
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(content)]}
        at += len(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # A part that is cut off leaves no half of a file to the next one.
    aside = path.with_suffix(".part")
    with aside.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, content in tensors.values():
            file.write(content)
    aside.replace(path)


def tokens(name: str, batch: int, time: int, vocabulary: int, batches: int = 4) -> Path:
    """Tokens, and the next of each as its label."""
    path = Path(scratch()) / f"{name}.safetensors"
    if not path.exists():
        chance = random.Random(1)
        rows = [[chance.randrange(vocabulary) for _ in range(time + 1)] for _ in range(batch * batches)]
        shape = [batch * batches, time]
        bytes_of = lambda first: array("q", [token for row in rows for token in row[first : first + time]]).tobytes()
        write(path, {"tokens": ("I64", shape, bytes_of(0)), "labels": ("I64", shape, bytes_of(1))})
    return path


def images(name: str, batch: int, side: int, classes: int, batches: int = 2) -> Path:
    """Images of noise; each is the same noise from another place on."""
    path = Path(scratch()) / f"{name}.safetensors"
    if not path.exists():
        chance = random.Random(2)
        count = 3 * side * side
        noise = array("f", [chance.gauss(0.0, 1.0) for _ in range(count + 4096)]).tobytes()
        starts = [4 * chance.randrange(4096) for _ in range(batch * batches)]
        content = b"".join(noise[start : start + 4 * count] for start in starts)
        labels = array("q", [chance.randrange(classes) for _ in starts]).tobytes()
        shape = [batch * batches, 3, side, side]
        write(path, {"x": ("F32", shape, content), "labels": ("I64", shape[:1], labels)})
    return path


def of(name: str) -> Path:
    """The data of a model of the kit, which may be those of another one."""
    data = sizes(name)["data"]
    own = sizes(data)
    if own["kind"] == "resnet":
        return images(model(data), own["batch"], own["side"], own["classes"])
    return tokens(model(data), own["batch"], own["time"], own["vocabulary"])
