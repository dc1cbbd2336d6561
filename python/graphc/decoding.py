"""Dataclasses from JSON."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from .command import Error


def decode(form: Any, value: Any, place: str) -> Any:
    """A value of this type; fields that the type does not have are left aside, as a later graphc may say more.

    Raises:
        Error: where a field is missing or of another type.
    """
    if form is Any:
        return value
    if isinstance(form, type) and is_dataclass(form) and isinstance(value, Mapping):
        return form(**{name: decode(hint, _entry(value, name, hint, place), f"{place}.{name}") for name, hint in _hints(form)})
    origin, arguments = get_origin(form), get_args(form)
    if origin is tuple and isinstance(value, list):
        return tuple(_elements(arguments, value, place))
    if origin is dict and isinstance(value, Mapping):
        return {str(key): decode(arguments[1], entry, f"{place}.{key}") for key, entry in value.items()}
    if origin in (Union, types.UnionType):
        return None if value is None else decode(next(part for part in arguments if part is not type(None)), value, place)
    if form is float and type(value) is int:
        return float(value)
    if type(value) is form:
        return value
    raise Error(f"graphc says {str(value)[:80]!r} for {place}: this package reads the output of its own version of graphc")


def _elements(arguments: tuple[Any, ...], value: list[Any], place: str) -> list[Any]:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        arguments = arguments[:1] * len(value)
    if len(arguments) != len(value):
        raise Error(f"graphc says {len(value)} elements for {place}, not {len(arguments)}")
    return [decode(form, entry, f"{place}[{index}]") for index, (form, entry) in enumerate(zip(arguments, value, strict=True))]


def _entry(value: Mapping[str, Any], name: str, hint: Any, place: str) -> Any:
    key = name.rstrip("_")
    if key in value or type(None) in get_args(hint):
        return value.get(key)
    raise Error(f"graphc says no {key} of {place}: this package reads the output of its own version of graphc")


@cache
def _hints(form: Any) -> tuple[tuple[str, Any], ...]:
    known = get_type_hints(form)
    return tuple((field.name, known[field.name]) for field in fields(form))
