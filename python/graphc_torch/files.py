"""Files that are files, and files that are whole or not there."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from .errors import FeedError


def check_file(path: str | Path) -> int:
    """Checks that a path leads to a file: the file's size in bytes.

    What is none (a device, a pipe, a folder) is an error: to open a pipe waits for a writer, and a device may have no end.

    Raises:
        OSError: where it does not.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is no file")
    return found.st_size


def read_file(path: str | Path, most: int) -> bytes:
    """The content of a file that has at most so many bytes: what its format may have at most.

    Raises:
        OSError: where it cannot be read, is no file, is longer, or there is no memory for it.
    """
    size = check_file(path)
    if size > most:
        raise OSError(f"it has {size} bytes, and at most {most} make sense")
    try:
        with open(path, "rb") as file:
            # Some files of the system have a size of 0 and a content; others grow.
            content = file.read(most + 1) if size == 0 else file.read(size + 1)
    except MemoryError as error:
        raise OSError(f"there is no memory for its {size} bytes") from error
    if len(content) > most:
        raise OSError(f"at most {most} bytes make sense, and it has more")
    return content


def read_text(path: str | Path, most: int) -> str:
    """The text of a file of at most so many bytes.

    Raises:
        OSError: where it cannot be read.
        ValueError: where it is no text.
    """
    return read_file(path, most).decode("utf-8")


def write_whole(path: str | Path, write: Callable[[Path], object]) -> None:
    """Writes a file by its path: beside it first, then renamed, so that it is whole or as it was before.

    A link stays a link; what is no file (a device, a pipe) is written to, not replaced.

    Raises:
        OSError: where it cannot be written; nothing half-written is left.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise OSError("it is a folder")
    if target.exists() and not target.is_file():
        _write_through(target, write)
        return
    # As for any new file: what the user's mask leaves.
    mask = os.umask(0)
    os.umask(mask)
    number, name = tempfile.mkstemp(prefix=f"{target.name}.", suffix=".part", dir=target.parent)
    os.close(number)
    try:
        os.chmod(name, 0o666 & ~mask)
        write(Path(name))
        with open(name, "rb") as file:
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _write_through(target: Path, write: Callable[[Path], object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        beside = Path(folder) / "content"
        write(beside)
        with beside.open("rb") as source, target.open("wb") as file:
            _copy(source, file)


def _copy(source: IO[bytes], file: IO[bytes]) -> None:
    while block := source.read(1 << 20):
        file.write(block)


Named = tuple[str, Path | None]
"""A file of the command line, with what names it."""


def check_distinct(inputs: Iterable[Named], outputs: Iterable[Named]) -> None:
    """Refuses outputs that would overwrite an input or each other. Devices may be written to twice.

    Raises:
        FeedError: for the first that would.
    """
    taken = [(name, path) for name, path in inputs if path is not None]
    for name, path in outputs:
        if path is None:
            continue
        for other, theirs in taken:
            if os.path.realpath(path) == os.path.realpath(theirs) and not (path.exists() and not path.is_file()):
                raise FeedError(f"{name} would overwrite {theirs} ({other}): choose another file")
        taken.append((name, path))
