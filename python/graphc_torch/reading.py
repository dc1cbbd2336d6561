"""Plans from files: the seal, the version, the form, and whether all of it holds together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .checking import check
from .errors import PlanError
from .files import read_file
from .json_text import read_json
from .plan import Plan
from .schema import decode, shown
from .seal import check_seal

VERSION = 3
"""The version of plans that this package reads."""

LONGEST_PLAN = 1 << 32
"""Bytes of the longest plan: that of the largest model on the most ranks has a hundredth."""

MOST_LISTED = 1 << 24
"""Ranks that all layouts and tensors of a plan may list."""


def load(path: str | Path) -> Plan:
    """Reads a plan from a file.

    Raises:
        PlanError: where it cannot be read, is of another version, or is not what graphc has sealed.
    """
    try:
        text = read_file(path, LONGEST_PLAN)
    except (OSError, ValueError) as error:
        raise PlanError(f"cannot read the plan {path}: {error}") from error
    try:
        return parse(text)
    except PlanError as error:
        raise PlanError(f"the plan {path} cannot be used: {error}") from error


def parse(text: str | bytes) -> Plan:
    """Reads a plan from the text of its file.

    Raises:
        PlanError: where it is no plan of this version, or not what graphc has sealed.
    """
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    try:
        value = read_json(content.decode("utf-8"))
    except ValueError as error:
        raise PlanError(f"it is no JSON: {error}") from error
    except MemoryError as error:
        raise PlanError(f"there is no memory for what its {len(content)} bytes say") from error
    if not isinstance(value, dict) or "version" not in value:
        raise PlanError("it has no version: is it a plan that graphc compile has written?")
    if type(value["version"]) is not int or value["version"] != VERSION:
        reads = f"this package reads version {VERSION}"
        raise PlanError(f"it has version {shown(value['version'])}, {reads}: compile the model again with the graphc of this package")
    check_seal(content)
    _check_lists(value)
    plan: Plan = decode(Plan, value, "plan")
    check(plan)
    return plan


def _check_lists(value: dict[str, Any]) -> None:
    """Adds up the runs of ranks before they are written out."""
    total = 0
    for part in ("layouts", "tensors"):
        entries = value.get(part)
        for entry in entries if isinstance(entries, list) else ():
            ranks = entry.get("ranks") if isinstance(entry, dict) else None
            total += sum(_listed(item) for item in ranks) if isinstance(ranks, list) else 0
    if total > MOST_LISTED:
        raise PlanError(f"its layouts and tensors list {total} ranks, at most {MOST_LISTED} are possible")


def _listed(item: Any) -> int:
    """How many ranks a number or a run stands for."""
    run = isinstance(item, list) and len(item) == 3 and type(item[1]) is int
    return max(item[1], 0) if run else 1
