"""What can go wrong, said in one line: what, where, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager


class GraphcError(Exception):
    """Any error of this package that is no bug of it."""


class PlanError(GraphcError):
    """A plan that cannot be read or executed."""


class FeedError(GraphcError):
    """Feeds, weights or data that do not fit the plan."""


class CheckpointError(GraphcError):
    """A checkpoint that cannot be read or written."""


class RunError(GraphcError):
    """A step that failed on this rank."""


@contextmanager
def failing(rank: int, doing: str) -> Iterator[None]:
    """Says which rank failed, and at what, where PyTorch does not: a peer that has died, memory that is short.

    Raises:
        RunError: with PyTorch's reason.
    """
    try:
        yield
    except (RuntimeError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise RunError(f"rank {rank}, {doing}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """What an error says in one line, without the place in PyTorch's source."""
    text = f"there is no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
    line = re.sub(r"^\[[^\]]*\.\w+:\d+\] ", "", text.strip().split("\n")[0]).split(" This is typically")[0]
    return f"{line.rstrip('.')}: that rank has ended, and says why" if "by peer" in line else line
