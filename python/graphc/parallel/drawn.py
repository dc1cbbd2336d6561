"""Random numbers of which a model makes Python's own, while it is captured: what holds for all of them a branch may depend on."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from .recorded import Unknown

LEAST, GREATEST = 2.0**-24, 1.0 - 2.0**-24
"""Between which ``torch.rand`` draws, but for the 0 that it draws once in 16 million times."""

SAID = "the model branches on a random number, as where it leaves out layers: set that probability (`layerdrop`) to 0"


class Drawn(Unknown):
    """A number that ``torch.rand`` draws."""

    def __init__(self) -> None:
        """Any of them."""
        super().__init__(SAID)

    def _holds(self, compare: Callable[[float, Any], bool], other: Any) -> bool:
        least, greatest = (compare(end, other) for end in (LEAST, GREATEST))
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
