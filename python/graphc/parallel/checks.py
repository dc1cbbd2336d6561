"""Checks of a model that do no more than to raise, as assertions do, or to warn: whether they hold is no part of a graph."""

from __future__ import annotations

import dis
import itertools
from typing import Any

BETWEEN = {"CACHE", "TO_BOOL", "NOT_TAKEN", "PRECALL"}
"""Instructions of Python that stand between a value and the jump that depends on it."""

ENDS = {"RAISE_VARARGS", "RETURN_VALUE", "RETURN_CONST", "RERAISE", "YIELD_VALUE"}
"""Instructions behind which others are not reached, or not at once."""


def passed_check(frame: Any) -> bool | None:
    """What a frame must read for a check to be passed that does no more than to raise or to warn; ``None`` where it is none.

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
    return jumps.get(ahead[at].opname.rpartition("_IF_")[2]) if raises or _warns(ahead[at], ahead[at + 1 :]) else None


def _warns(jump: Any, behind: list[Any]) -> bool:
    """Whether a jump passes over a call of ``warnings.warn``, and over nothing else."""
    passed = list(itertools.takewhile(lambda code: code.offset != jump.argval, behind))
    names = [code.argval for code in passed if code.opname.startswith(("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD"))]
    is_one = bool(passed) and passed[-1].opname == "POP_TOP" and sum(code.opname == "POP_TOP" for code in passed) == 1
    changes = any(code.opname.startswith("STORE") or "JUMP" in code.opname or code.opname in ENDS for code in passed)
    return is_one and names[:2] == ["warnings", "warn"] and not changes
