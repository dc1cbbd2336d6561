"""Losses of a module in ``eval`` mode, by plans without an optimizer: one for each shape of batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import graphc_torch

from .batch import Whole, named
from .job import Job
from .tensors import in_own_words

Weights = Callable[[str], Tensor]
"""The whole content of a tensor of the module, by its name in the graph."""


@dataclass
class _Evaluation:
    """A plan that evaluates, and how new its weights are."""

    session: graphc_torch.Session
    whole: Whole
    variables: tuple[str, ...]
    version: int = -1


class Evaluator:
    """Evaluates a module."""

    def __init__(self, job: Job, weights: Weights) -> None:
        """An evaluator that has not planned yet."""
        self.job, self.weights = job, weights
        self.made: dict[tuple[tuple[str, object], ...], _Evaluation] = {}

    def loss(self, batch: Any, version: int) -> Tensor:
        """The loss of a batch, with weights that are as new as this. All processes call it.

        Raises:
            Error: where the module in ``eval`` mode has no plan.
        """
        whole = Whole.of(batch, self.job.world)
        whole.agree()
        key = whole.key
        if key not in self.made:
            self.made[key] = self._plan(batch, whole)
        found = self.made[key]
        if found.version != version:
            for name in found.variables:
                with in_own_words():
                    found.session.set_variable(name, self.weights(name))
            found.version = version
        with in_own_words():
            return found.session.step(whole.feeds([named(batch)], found.session.device))["loss"].reshape(()).clone()

    def _plan(self, batch: Any, whole: Whole) -> _Evaluation:
        # Some parts of a module may be in `eval` mode while others are trained.
        modes = [(part, part.training) for part in self.job.module.modules()]
        self.job.module.eval()
        try:
            found = self.job.plan_evaluation(batch, whole)
        finally:
            for part, mode in modes:
                part.training = mode
        return _Evaluation(self.job.session(found), whole, tuple(sorted(found.translation.variables)))
