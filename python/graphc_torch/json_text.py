"""JSON as graphc reads it: strict, so that both engines judge a text alike.

What Python's own reader takes besides (``NaN``, numbers beyond all bounds, names that stand twice, halves of characters) is an error here.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any, NoReturn

DEEPEST = 127
"""Lists and objects that may lie in each other."""

HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""Where half of a character may stand."""


class Number(float):
    """A floating-point number that remembers how it was written."""

    text: str

    def __new__(cls, text: str) -> Number:
        """The number of a text."""
        number = super().__new__(cls, text)
        if math.isinf(number):
            raise ValueError(f"the number {text[:20]} is out of range")
        number.text = text
        return number


def read_json(text: str) -> Any:
    """The value of a text; numbers that are not whole are :class:`Number`.

    Raises:
        ValueError: where it is no JSON.
    """
    try:
        value = json.loads(text, parse_float=Number, parse_constant=_refuse, object_pairs_hook=_object)
    except RecursionError as error:
        raise _too_deep() from error
    _check_depth(value)
    if HALF.search(text):
        _check_characters(value)
    return value


def write_line(value: Any) -> str:
    """A value on one line, as graphc writes it: a number that is none, or not finite, is ``null``."""
    return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"the field {next(name for name, count in counts.items() if count > 1)!r} stands twice in an object")
    return made


def _check_depth(value: Any) -> None:
    """Level by level, as recursion is what it is to keep from."""
    level = [value]
    for _ in range(DEEPEST):
        items = (item.values() if isinstance(item, dict) else item for item in level if isinstance(item, list | dict))
        level = [child for each in items for child in each if isinstance(child, list | dict)]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"lists and objects lie in each other more than {DEEPEST} deep")


def _check_characters(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("a text holds half of a character") from error
