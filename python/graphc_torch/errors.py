"""What can go wrong, said in one line: what, where, and what to do."""

from __future__ import annotations


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
