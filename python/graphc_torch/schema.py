"""JSON into dataclasses, by the types of their fields.

Every error names the place in the document (``programs[0].actors[3].rate``), what was expected and what was found. Fields that a
dataclass lacks are errors too: what is not understood is not executed.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any

from .errors import PlanError
from .json_text import Number

Decoder = Callable[[Any, str], Any]


Signed = typing.NewType("Signed", int)
"""A whole number that may be negative: all others count something, or name something by its place."""

GREATEST = 2**64 - 1
"""The greatest whole number of a file."""


def decode(of: Any, value: Any, place: str) -> Any:
    """The value as an instance of a type: a dataclass, a list, a scalar.

    Raises:
        PlanError: where the document is of another form.
    """
    return decoder(of)(value, place)


@cache
def decoder(of: Any) -> Decoder:
    """What reads values of a type."""
    origin = typing.get_origin(of)
    arguments = typing.get_args(of)
    if of is Any:
        return lambda value, _place: value
    if hasattr(of, "from_json"):
        return _custom(of)
    if dataclasses.is_dataclass(of):
        return _dataclass(of)
    if origin is tuple:
        return _list(arguments) if len(arguments) == 2 and arguments[1] is Ellipsis else _tuple(arguments)
    if origin is dict:
        return _dict(arguments[1])
    if origin is types.UnionType or origin is typing.Union:
        return _optional(arguments)
    if isinstance(of, type) and issubclass(of, enum.Enum):
        return _enum(of)
    return _scalar(of)


def wrong(place: str, expected: str, found: Any) -> PlanError:
    """The error of a value of another form."""
    return PlanError(f"{place}: {expected} is expected, not {shown(found)}")


def shown(found: Any) -> str:
    """A value as an error shows it."""
    if isinstance(found, list | dict):
        return f"a list of {len(found)}" if isinstance(found, list) else f"an object of {len(found)} fields"
    text = found.text if isinstance(found, Number) else repr(found)
    return text if len(text) <= 60 else text[:57] + "..."


def _custom(of: Any) -> Decoder:
    def read(value: Any, place: str) -> Any:
        try:
            return of.from_json(value)
        except (ValueError, TypeError, PlanError) as error:
            raise PlanError(f"{place}: {error}") from error

    return read


def _dataclass(of: Any) -> Decoder:
    hints = typing.get_type_hints(of)
    fields = {field.metadata.get("name", field.name): field for field in dataclasses.fields(of)}
    needed = [name for name, field in fields.items() if not _has_default(field)]

    def read(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise wrong(place, f"an object ({of.__name__})", value)
        for name in needed:
            if name not in value:
                raise PlanError(f"{place} has no `{name}`")
        made = {}
        for name, item in value.items():
            field = fields.get(name)
            if field is None:
                raise PlanError(f"{place} has the field `{name}`, which this version does not know")
            made[field.name] = decoder(hints[field.name])(item, f"{place}.{name}")
        return of(**made)

    return read


def _has_default(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def _list(arguments: tuple[Any, ...]) -> Decoder:
    item = decoder(arguments[0])

    def read(value: Any, place: str) -> Any:
        if not isinstance(value, list):
            raise wrong(place, "a list", value)
        return tuple(item(entry, f"{place}[{index}]") for index, entry in enumerate(value))

    return read


def _tuple(arguments: tuple[Any, ...]) -> Decoder:
    items = [decoder(argument) for argument in arguments]

    def read(value: Any, place: str) -> Any:
        if not isinstance(value, list) or len(value) != len(items):
            raise wrong(place, f"a list of {len(items)}", value)
        pairs = enumerate(zip(items, value, strict=True))
        return tuple(item(entry, f"{place}[{index}]") for index, (item, entry) in pairs)

    return read


def _dict(of: Any) -> Decoder:
    item = decoder(of)

    def read(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise wrong(place, "an object", value)
        return {name: item(entry, f"{place}.{name}") for name, entry in value.items()}

    return read


def _optional(arguments: tuple[Any, ...]) -> Decoder:
    inner = decoder(next(argument for argument in arguments if argument is not type(None)))
    return lambda value, place: None if value is None else inner(value, place)


def _enum(of: type[enum.Enum]) -> Decoder:
    names = {member.value: member for member in of}

    def read(value: Any, place: str) -> Any:
        if not isinstance(value, str) or value not in names:
            raise wrong(place, "one of " + ", ".join(names), value)
        return names[value]

    return read


def _scalar(of: Any) -> Decoder:
    if of is int or of is Signed:
        return _whole(-GREATEST if of is Signed else 0)
    takes: dict[Any, tuple[type, ...]] = {float: (int, float), str: (str,), bool: (bool,)}
    expected = takes[of]
    words = {float: "a number", str: "a text", bool: "true or false"}[of]

    def read(value: Any, place: str) -> Any:
        if not isinstance(value, expected) or (of is not bool and isinstance(value, bool)):
            raise wrong(place, words, value)
        return value if not isinstance(value, int | float) or abs(value) <= GREATEST else _real(value, place)

    return read


def _whole(least: int) -> Decoder:
    words = f"a whole number of at least {least}, and at most {GREATEST},"

    def read(value: Any, place: str) -> Any:
        if type(value) is not int or not least <= value <= GREATEST:
            raise wrong(place, words if type(value) is int else "a whole number", value)
        return value

    return read


def _real(value: float, place: str) -> float:
    """A number that is whole and large as one that is not."""
    try:
        return value if isinstance(value, float) else float(value)
    except OverflowError as error:
        raise PlanError(f"{place}: a number is out of range") from error
