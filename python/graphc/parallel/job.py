"""The plans of a module: one that trains it, and others that evaluate it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

import graphc_torch

from . import optimizers
from .batch import Whole
from .capture import Loss, capture
from .names import canonical_names, tensors_of
from .planning import Mesh, Planned, on_first_rank, planned
from .tensors import in_own_words
from .translate import Names, Translation, translate

SHARED = ("cluster", "framework", "precision")
"""Options of a training that its evaluation has too."""


@dataclass(frozen=True)
class Job:
    """What plans of a module are made for."""

    module: nn.Module
    names: Mapping[int, str]
    """The names of its tensors, by their identity."""
    loss: Loss | None
    rank: int
    world: int
    device: torch.device
    timeout: float
    mesh: Mesh
    options: Mapping[str, Any]

    def plan_training(self, example: Any, whole: Whole, optimizer: Optimizer) -> Planned:
        """The plan of a training, which the first rank makes for all.

        Raises:
            Error: where the module cannot be captured, an op has no translation, or there is no plan.
        """

        def work() -> Planned:
            scheduled = "lr_schedule" in self.options
            trained = optimizers.trained(optimizer, self.names)
            optimizers.options(optimizer, self.names, frozenset(), scheduled)
            translation = self._translation(example, whole, trained)
            own = optimizers.options(optimizer, self.names, translation.variables & trained, scheduled)
            state = optimizer.state_dict() if optimizer.state else None
            return self._planned(translation, {**own, **self.options}, state)

        return self._on_first_rank(work)

    def plan_evaluation(self, example: Any, whole: Whole) -> Planned:
        """The plan of a loss of which nothing is learned, which the first rank makes for all.

        Raises:
            Error: where there is none.
        """

        def work() -> Planned:
            options = {name: value for name, value in self.options.items() if name in SHARED}
            return self._planned(self._translation(example, whole, frozenset()), options, None)

        return self._on_first_rank(work)

    def session(self, found: Planned) -> graphc_torch.Session:
        """A session of a plan, with the constants of its graph."""
        with in_own_words():
            session = graphc_torch.Session(graphc_torch.parse(found.plan.content), device=self.device, timeout=self.timeout)
            for name, content in found.translation.constants.items():
                session.set_variable(name, content)
        return session

    def _on_first_rank(self, work: Callable[[], Planned]) -> Planned:
        return on_first_rank(self.world, self.rank, work)

    def _translation(self, example: Any, whole: Whole, trained: frozenset[str]) -> Translation:
        device = next((tensor.device for tensor in tensors_of(self.module).values()), torch.device("cpu"))
        program = capture(self.module, self.loss, whole.example(example, device))
        return translate(program, whole.inputs(), Names(canonical_names(self.module, self.names), trained))

    def _planned(self, translation: Translation, options: dict[str, Any], state: dict[str, Any] | None) -> Planned:
        plan = planned(translation.text, self.world, self.mesh, options)
        held = tensors_of(self.module)
        has_weights = not any(tensor.is_meta for tensor in held.values())
        counted = {name: int(held[name]) if has_weights else 0 for name in translation.counters}
        return Planned(plan, translation, has_weights, counted, state)
