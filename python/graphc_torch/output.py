"""What is said on standard error and printed: escaped, so that no name from a file can steer a terminal."""

from __future__ import annotations

import os
import re
import sys

STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but the ends of lines and tabs, changes of the direction in which text runs, and halves of characters."""


def escaped(text: str) -> str:
    """The text with what steers a terminal as JSON writes it."""
    return STEERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def say(kind: str, text: str) -> None:
    """Says something on standard error: an ``error`` or a ``warning``."""
    print(f"{kind}: {escaped(text)}", file=sys.stderr)


def show(text: str) -> None:
    """Prints a line. A reader that has seen enough (``| head``) is no error."""
    try:
        print(escaped(text), flush=True)
    except BrokenPipeError:
        # What is left in the buffer has no reader either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
