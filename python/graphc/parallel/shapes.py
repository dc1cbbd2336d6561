"""Steps for batches of other shapes than the example: each shape has a plan of its own, and all plans have the same variables.

The last batch of an epoch may be smaller, and texts differ in length. A plan is made with the first batch of a shape. Its variables lie
in the memory of the first plan's, where both lay them out alike; the others are copied before such a step and behind it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import graphc_torch

from ..command import Error
from .batch import Whole, named, plain
from .job import Job
from .optimizers import Whatever
from .planning import Planned
from .tensors import in_own_words

Settings = dict[str, dict[str, float]]

MANY = 8
"""Shapes of which so many are said to be many."""


@dataclass
class Shape:
    """A plan for batches of one shape."""

    session: graphc_torch.Session
    whole: Whole
    variables: frozenset[str]
    """The model's own that it has."""
    form: Any
    """What stands beside its loss."""
    settings: Settings | None = None
    """The optimizer's numbers that it was told last."""


class Shapes:
    """The plans of a training."""

    def __init__(self, job: Job, found: Planned, example: Any, whole: Whole, optimizer: Whatever) -> None:
        """The plan of the example's shape."""
        self.job, self.found, self.optimizer = job, found, optimizer
        self.example = pytree.tree_map_only(Tensor, lambda tensor: torch.empty_like(tensor, device="meta"), plain(example))
        self.first = Shape(job.session(found), whole, found.translation.variables, found.form)
        self.made = {whole.key: self.first}

    def still_computes(self) -> bool:
        """Whether the module's step is still the one that was planned first."""
        return self.job.computes_the_same(self.example, self.first.whole, self.optimizer, self.found.translation)

    @property
    def passes(self) -> int:
        """Passes forward so far."""
        sessions = [shape.session for shape in self.made.values()]
        return sum(session.executor.begun * max(session.plan.microbatches, 1) for session in sessions)

    def step(self, batches: tuple[Any, ...], settings: Settings) -> tuple[Shape, dict[str, Tensor]]:
        """A step's outputs, and the shape of its batches. All processes call it, with batches of one shape.

        Raises:
            Error: where batches differ from the example in more than their extents, or there is no plan.
        """
        shape = self._shape(batches)
        own = {name: numbers for name, numbers in settings.items() if name in shape.variables}
        tensors = [named(batch) for batch in batches]
        _check_no_gradients(tensors)
        feeds = shape.whole.feeds(tensors, shape.session.device)
        with in_own_words():
            if shape.settings != own:
                shape.session.use_settings(own)
                shape.settings = own
            return shape, shape.session.step(feeds) if shape is self.first else self._aside(shape.session, feeds)

    def _aside(self, session: graphc_torch.Session, feeds: dict[str, Tensor]) -> dict[str, Tensor]:
        """A step by another plan, after which the first one's variables are as new."""
        first = self.first.session
        for name in session.apart:
            session.set_variable(name, first.variable(name))
        session.go_on_from(first.steps)
        outputs = session.step(feeds)
        first.go_on_from(session.steps)
        for name in session.apart:
            first.set_variable(name, session.variable(name))
        return outputs

    def _shape(self, batches: tuple[Any, ...]) -> Shape:
        whole = Whole.of(batches[0], self.job.world, len(batches))
        whole.check_kind(self.first.whole)
        whole.agree()
        if whole.key not in self.made:
            self.made[whole.key] = self._planned(batches[0], whole)
        return self.made[whole.key]

    def _planned(self, example: Any, whole: Whole) -> Shape:
        if len(self.made) == MANY:
            advice = "pad them to few sizes (`pad_to_multiple_of`), or leave out those that are not whole (`drop_last=True`)"
            warnings.warn(f"each shape of batches has a plan and memory of its own, and this is the {MANY + 1}th: {advice}", stacklevel=4)
        found = self.job.plan_training(example, whole, self.optimizer, self.found)
        session = self.job.session(found, self.first.session)
        return Shape(session, whole, found.translation.variables, found.form)


def _check_no_gradients(batches: Sequence[Mapping[str, Tensor]]) -> None:
    """Checks that nobody waits for gradients of a batch, as a plan has those of its own weights alone.

    Raises:
        Error: where one of its tensors is to have one.
    """
    found = next((name for batch in batches for name, tensor in batch.items() if tensor.requires_grad), None)
    if found is not None:
        advice = "let what it is computed from be a part of the model, or detach it"
        raise Error(f"`{found}` is to have a gradient, and a plan has none of batches: {advice}")
