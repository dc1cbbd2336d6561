"""Random numbers of which a model makes Python's own, while it is captured: what holds for all of them a branch may depend on."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .recorded import Unknown

LEAST, GREATEST = 2.0**-24, 1.0 - 2.0**-24
"""Between which ``torch.rand`` draws, but for the 0 that it draws once in 16 million times."""

SAID = "the model branches on a random number, as where it leaves out layers: set that probability (`layerdrop`) to 0"


OTHERS = (
    "the model draws random numbers by `random` or numpy, and they would be the same at each step: draw them by torch, or leave that out "
    "(`apply_spec_augment=False` of models of sounds)"
)


class Drawn(Unknown):
    """A number that ``torch.rand`` draws, or Python's ``random``."""

    def __init__(self, said: str = SAID, ends: tuple[float, float] = (LEAST, GREATEST)) -> None:
        """Any number between these ends."""
        super().__init__(said)
        self.ends = ends

    def _holds(self, compare: Callable[[float, Any], bool], other: Any) -> bool:
        least, greatest = (compare(end, other) for end in self.ends)
        return least if least == greatest else bool(self._refuse())

    def __lt__(self, other: Any) -> bool:
        """Whether all are less."""
        return self._holds(operator.lt, other)

    def __le__(self, other: Any) -> bool:
        """Whether none is greater."""
        return self._holds(operator.le, other)

    def __gt__(self, other: Any) -> bool:
        """Whether all are greater."""
        return self._holds(operator.gt, other)

    def __ge__(self, other: Any) -> bool:
        """Whether none is less."""
        return self._holds(operator.ge, other)


@contextmanager
def drawn_by_python() -> Iterator[None]:
    """Lets Python's ``random`` give numbers of which it is known alone between which they lie."""
    own = random.random, random.uniform

    def uniform(a: float, b: float) -> Any:
        return Drawn(OTHERS, (a + (b - a) * LEAST, a + (b - a) * GREATEST))

    random.random, random.uniform = lambda: uniform(0.0, 1.0), uniform
    try:
        yield
    finally:
        random.random, random.uniform = own
