"""The command graphc: where it is, and how it is run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .wording import in_python


class Error(Exception):
    """What graphc says is wrong."""


class Unplanned(Error):
    """Why there is no plan of a model."""


def run(*arguments: object) -> str:
    """Runs the command in a process of its own, so other threads of this one go on: what it prints.

    Ctrl-C ends it.

    Raises:
        Error: where it fails.
    """
    command = [find(), *(str(argument) for argument in arguments)]
    try:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            said, wrong = _wait(process)
    except (OSError, ValueError) as error:
        raise Error(f"cannot run {command[0]}: {error}") from error
    if process.returncode != 0:
        raise Error(_reason(wrong, process.returncode))
    return said


def run_json(*arguments: object) -> Any:
    """Runs the command, and reads the JSON that it prints.

    Raises:
        Error: where it fails, or prints something else.
    """
    command, *others = arguments
    text = run(command, "--format", "json", *others)
    try:
        return json.loads(text)
    except ValueError as error:
        raise Error(f"{find()} printed no JSON ({error}): is it graphc?") from error


def find() -> str:
    """Where the command is: what ``GRAPHC`` names, else beside this Python, where the wheel puts it, else on the path.

    Raises:
        Error: where it is nowhere.
    """
    given = os.environ.get("GRAPHC")
    if given:
        return given
    installed = Path(sysconfig.get_path("scripts")) / "graphc"
    found = str(installed) if os.access(installed, os.X_OK) and installed.is_file() else shutil.which("graphc")
    if found is None:
        advice = "install the wheel, or name it with GRAPHC=/path/to/graphc"
        raise Error(f"the command graphc is neither beside this Python nor on the path: {advice}")
    return found


def options_of(options: Mapping[str, Any]) -> list[str]:
    """Options of Python as those of the command line: ``weight_decay=0.1`` is ``--weight-decay 0.1``.

    A mapping is an option for each entry (``pin={"w": "S(0)"}``), a list one for each element; ``True`` is the option alone, and
    ``None`` or ``False`` leave it out.
    """
    found: list[str] = []
    for name, value in options.items():
        option = f"--{name.rstrip('_').replace('_', '-')}"
        if value is True:
            found.append(option)
        elif value is not None and value is not False:
            # With `=` between them a value may begin with a dash.
            found += [f"{option}={text}" for text in _values(name, value)]
    return found


def _values(name: str, value: Any) -> list[str]:
    if name == "mesh" and isinstance(value, Sequence) and not isinstance(value, str):
        return ["x".join(str(extent) for extent in value)]
    if isinstance(value, Mapping):
        return [f"{key}={entry}" for key, entry in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [str(entry) for entry in value]
    return [str(value)]


def _wait(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a process prints, and what it says is wrong; it ends with this call, however that ends."""
    try:
        return process.communicate()
    except BaseException:
        process.kill()
        raise


def _reason(wrong: str, status: int) -> str:
    """What an exit status and a text of error say."""
    text = in_python(wrong.strip().removeprefix("error: "))
    return text or f"graphc ended with exit status {status}, and says nothing"
