"""Loops over the places at which a condition holds, of which a model computes all while it is captured.

In PyTorch a loop goes round once for each place at which the condition holds, which depends on data. In a graph it goes round for every
place, and what it computes of a place that is not there must change nothing. That is so of rows which :mod:`.selected` puts back where
their condition holds. What else a loop leaves behind, as a counter or a tensor that it computes anew in each round, would be there for all
places, and so it is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from ..command import Error
from .recorded import Unknown

PLAIN = (bool, int, float, complex, str, type(None))
"""Types of variables that are looked at."""

SIZED = (list, dict, set)
"""Types of which it is looked at how much they hold."""

WHY = "and how often it goes round depends on data: compute what all rows have, and use torch.where"
"""The end of what is said of a loop."""


@dataclass(eq=False)
class Round:
    """What happens in one round of a loop."""

    number: Tensor
    """The place of which this round is."""
    frame: FrameType
    """The function in which the loop stands."""
    before: Mapping[str, Any]
    """Plain variables before the round."""
    made: Any = field(default_factory=WeakIdKeyDictionary)
    """Tensors that it computes, and that no condition takes care of."""
    is_used: bool = False
    """Whether anything was computed yet."""

    @property
    def place(self) -> str:
        """The line at which the function is."""
        return f"({self.frame.f_code.co_filename}, line {self.frame.f_lineno})"


class Loops:
    """The loops in which a model is while it is captured."""

    def __init__(self) -> None:
        """None so far."""
        self._open: list[Round] = []
        self._left: Any = WeakIdKeyDictionary()
        """What rounds have computed that have ended, and where the loop stands."""
        self._refused: Error | None = None

    def over(self, numbers: Sequence[Tensor]) -> Iterator[Tensor]:
        """These numbers, one after the other.

        Raises:
            Error: where a round leaves something behind.
        """
        first = _plain(sys._getframe(1))
        ended = False
        try:
            for number in numbers:
                # A generator's caller is whoever goes on with it.
                frame = sys._getframe(1)
                self._open.append(Round(number, frame, _plain(frame)))
                yield number
                self._end(first, _plain(sys._getframe(1)))
            ended = True
        finally:
            if not ended:
                self._give_up()

    def numbers(self) -> list[Tensor]:
        """The places of the rounds that go on."""
        return [own.number for own in self._open]

    def begin(self, operands: Iterable[Any]) -> None:
        """Looks at what is computed next.

        Raises:
            Error: where it takes what a round has left behind, or the loop counts its rounds.
        """
        if any(isinstance(operand, Tensor) and operand in self._left for operand in operands):
            raise Error(f"a tensor that a loop over places of a condition has computed is used after that round, {WHY}")
        for own in self._open:
            if not own.is_used:
                own.is_used = True
                _check_same(own.before, own.before, _plain(own.frame))

    def note(self, found: Any, is_taken_care_of: Callable[[Tensor], bool]) -> None:
        """Keeps what is computed in a round."""
        if self._open:
            for leaf in pytree.tree_leaves(found):
                if isinstance(leaf, Tensor) and not is_taken_care_of(leaf):
                    self._open[-1].made[leaf] = True

    def check_write(self, target: Any) -> None:
        """Checks that what is written to is a round's own.

        Raises:
            Error: where it is not.
        """
        if self._open and isinstance(target, Tensor) and not any(target in own.made for own in self._open):
            raise Error(f"a loop over places of a condition writes to a tensor, {WHY}")

    def check(self, outputs: Iterable[Tensor]) -> None:
        """Checks what a model gives back.

        Raises:
            Error: where a round has left it behind, or a loop has ended early.
        """
        place = next((self._left[tensor] for tensor in outputs if tensor in self._left), None)
        if place is not None:
            raise Error(f"a tensor that a loop over places of a condition has computed is given back, {WHY} {place}")
        if self._refused is not None:
            raise self._refused

    def _end(self, first: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        own = self._open[-1]
        if not own.is_used:
            raise Error(f"a loop over places of a condition does not look at them, {WHY}")
        _check_same(first, own.before, after)
        self._leave()

    def _leave(self) -> None:
        own = self._open.pop()
        for tensor in own.made:
            self._left[tensor] = own.place

    def _give_up(self) -> None:
        """Keeps that a loop has ended before its time: an error that is raised while a generator is closed reaches nobody."""
        if self._open:
            said = f"a loop over places of a condition ends before the last one, {WHY} {self._open[-1].place}"
            self._refused = self._refused or Error(said)
            self._leave()


class Places(Unknown):
    """The places at which a condition holds, to go over."""

    def __init__(self, loops: Loops, numbers: Sequence[Tensor]) -> None:
        """These, of which nobody may count how many there are."""
        super().__init__(f"the places at which a condition holds are counted or taken by their number, {WHY}")
        self._loops, self._numbers = loops, numbers

    def __iter__(self) -> Iterator[Tensor]:  # type: ignore[override]
        return self._loops.over(self._numbers)


def _plain(frame: FrameType) -> dict[str, Any]:
    """The plain variables of a function, and how much its lists hold."""
    found: dict[str, Any] = {name: value for name, value in frame.f_locals.items() if isinstance(value, PLAIN)}
    return found | {name: (type(value), len(value)) for name, value in frame.f_locals.items() if isinstance(value, SIZED)}


def _check_same(names: Iterable[str], before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Checks that variables of these names are as they were.

    Raises:
        Error: where one is not.
    """
    for name in names:
        if name in before and name in after and before[name] != after[name]:
            raise Error(f"a loop over places of a condition changes `{name}`, {WHY}")
