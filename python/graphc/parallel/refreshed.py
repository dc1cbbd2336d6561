"""Calls of a module whose plan has newer weights than the module itself: they would be made with those of before, without a word."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class Refresher:
    """What stands before each part of a module from the first step on, until the module has the plan's weights again."""

    asleep = 0
    """Above 0 while modules are called for their graphs, not for what they compute."""

    def __init__(self, refresh: Callable[[], None] | None = None) -> None:
        """Calls a method, as long as its object is there; without one nothing is done."""
        self._refresh = None if refresh is None else weakref.WeakMethod(refresh)

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        """Brings the weights of now, before a part of the module computes with them."""
        refresh = None if self._refresh is None else self._refresh()
        if refresh is not None and not Refresher.asleep:
            refresh()

    def __deepcopy__(self, memo: Any) -> Refresher:
        """A copy of a module is a module of its own."""
        return Refresher()

    def __reduce__(self) -> tuple[type[Refresher], tuple[()]]:
        """What is saved of a module is without its plan."""
        return Refresher, ()


@contextmanager
def unrefreshed() -> Iterator[None]:
    """Lets modules be called as they are."""
    Refresher.asleep += 1
    try:
        yield
    finally:
        Refresher.asleep -= 1


def refresh_by(module: nn.Module, refresh: Callable[[], None] | None) -> None:
    """Lets a method be called before the module or a part of it is, instead of that of another plan; ``None`` lets none be called."""
    for part in module.modules():
        for key in [key for key, hook in part._forward_pre_hooks.items() if isinstance(hook, Refresher)]:
            del part._forward_pre_hooks[key]
        if refresh is not None:
            part.register_forward_pre_hook(Refresher(refresh))
