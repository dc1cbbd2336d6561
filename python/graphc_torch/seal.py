"""Seals of plans: that a file is what graphc has proven sound, byte by byte.

What graphc proves (registers that are alive at one time do not overlap, ops fit their operands, no rank waits for ever) is not proven
here a second time: a seal says that it was. It is the SHA-256 of all bytes before it and stands last in the file. It keeps mistakes
out, and no deceit.
"""

from __future__ import annotations

import hashlib

from .errors import PlanError

BEFORE, BEHIND, END = b',\n "seal": "', b'"\n}\n', b"\n}\n"
"""What stands before the digits of a seal and behind them, and the end of a text without one."""

ADVICE = "compile the model again, or have it checked with `graphc verify --seal`"
"""What to do about a plan whose seal does not hold."""


def check_seal(text: bytes) -> None:
    """Compares the seal of a text with the text.

    Raises:
        PlanError: where there is none, or the text was changed.
    """
    content, between, digits = text.removesuffix(BEHIND).rpartition(BEFORE)
    if not between or not text.endswith(BEHIND):
        raise PlanError(f"it has no seal of graphc, so nobody has proven it sound: {ADVICE}")
    if hashlib.sha256(content).hexdigest().encode() != digits:
        raise PlanError(f"it was changed after graphc had sealed it: {ADVICE}")
