"""Checks of a model that do no more than to raise, as assertions do: whether they hold is no part of a graph."""

from __future__ import annotations

import dis
import itertools
from typing import Any

BETWEEN = {"CACHE", "TO_BOOL", "NOT_TAKEN", "PRECALL"}
"""Instructions of Python that stand between a value and the jump that depends on it."""

ENDS = {"RAISE_VARARGS", "RETURN_VALUE", "RETURN_CONST", "RERAISE", "YIELD_VALUE"}
"""Instructions behind which others are not reached, or not at once."""


def passed_check(frame: Any) -> bool | None:
    """What a frame must read for a check that does no more than to raise, as an assertion does, to be passed; ``None`` where it is none.

    Whether a check holds is no part of a graph: it is taken to.
    """
    ahead = [code for code in dis.get_instructions(frame.f_code) if code.offset >= frame.f_lasti and code.opname not in BETWEEN]
    at = next((place for place, code in enumerate(ahead[:2]) if code.opname.startswith("POP_JUMP")), None)
    if at is None:
        return None
    behind = itertools.takewhile(lambda code: not (code.is_jump_target or "JUMP" in code.opname or code.opname in ENDS), ahead[at + 1 :])
    last = ahead[at + 1 + len(list(behind)) :][:1]
    raises = bool(last) and last[0].opname == "RAISE_VARARGS" and not last[0].is_jump_target
    jumps = {"TRUE": True, "FALSE": False}
    return jumps.get(ahead[at].opname.rpartition("_IF_")[2]) if raises else None
