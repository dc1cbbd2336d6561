"""The table of ops that have a translation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from . import complex_numbers, elementwise, experts, fourier, images, losses, movement, normalize, products, reduce, scatter, sources
from .call import Call, Result
from .complex_numbers import Handler


@cache
def table() -> dict[str, Callable[[Call], Result]]:
    """ATen's name of each op, whatever its overload, and what translates it."""
    rooms = (elementwise, experts, images, losses, movement, normalize, products, reduce, scatter, sources)
    return {name: handler for room in rooms for name, handler in room.TABLE.items()}


@cache
def complex_table() -> dict[str, Handler]:
    """The same of ops that take or give complex numbers."""
    return {**complex_numbers.TABLE, **fourier.TABLE}
