"""What a module makes of batches in ``eval`` mode, by plans without an optimizer: one for each shape of batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import graphc_torch

from .batch import Whole, named
from .job import Job
from .outputs import put_together
from .planning import Planned
from .tensors import in_own_words

Weights = Callable[[str], Tensor]
"""The whole content of a tensor of the module, by its name in the graph."""

Plans = Callable[[Any, Whole], Planned]
"""What plans for a batch."""


@dataclass
class _Evaluation:
    """A plan that evaluates, and how new its weights are."""

    session: graphc_torch.Session
    whole: Whole
    variables: tuple[str, ...]
    form: Any
    version: int = -1


class Evaluator:
    """Evaluates a module."""

    def __init__(self, job: Job, weights: Weights) -> None:
        """An evaluator that has not planned yet."""
        self.job, self.weights = job, weights
        self.made: dict[tuple[object, ...], _Evaluation] = {}

    def loss(self, batch: Any, version: int) -> tuple[Tensor, Any]:
        """The loss of a batch and what stands beside it, with weights that are as new as this. All processes call it.

        Raises:
            Error: where the module in ``eval`` mode has no plan.
        """
        made, outputs = self._outputs(batch, version, self.job.plan_evaluation)
        return outputs["loss"].reshape(()).clone(), beside(made.form, outputs, made.whole, self.job.rank)

    def prediction(self, batch: Any, version: int, whole: bool) -> Any:
        """What the module returns for this process's rows, or for those of all. All processes call it.

        Raises:
            Error: where the module in ``eval`` mode has no plan.
        """
        made, outputs = self._outputs(batch, version, self.job.plan_prediction)
        return beside(made.form, outputs, made.whole, None if whole else self.job.rank)

    def _outputs(self, batch: Any, version: int, plan: Plans) -> tuple[_Evaluation, dict[str, Tensor]]:
        whole = Whole.of(batch, self.job.world)
        whole.agree()
        key = (plan.__name__, *whole.key)
        if key not in self.made:
            self.made[key] = self._plan(batch, whole, plan)
        found = self.made[key]
        if found.version != version:
            for name in found.variables:
                with in_own_words():
                    found.session.set_variable(name, self.weights(name))
            found.version = version
        with in_own_words():
            return found, found.session.step(whole.feeds([named(batch)], found.session.device))

    def _plan(self, batch: Any, whole: Whole, plan: Plans) -> _Evaluation:
        # Some parts of a module may be in `eval` mode while others are trained.
        modes = [(part, part.training) for part in self.job.module.modules()]
        self.job.module.eval()
        try:
            found = plan(batch, whole)
        finally:
            for part, mode in modes:
                part.training = mode
        return _Evaluation(self.job.session(found), whole, tuple(sorted(found.translation.variables)), found.form)


def beside(form: Any, outputs: Mapping[str, Tensor], whole: Whole, rank: int | None) -> Any:
    """The numbered outputs of a step in the form that they had: of samples this rank's own, or with ``None`` those of all."""
    count = sum(name.startswith("output.") for name in outputs)
    tensors = [outputs[f"output.{number}"] for number in range(count)]
    return put_together(form, tensors if rank is None else [whole.own_rows(tensor, rank) for tensor in tensors])
