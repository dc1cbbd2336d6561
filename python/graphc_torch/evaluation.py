"""Loss and metrics over a whole data set, by a second plan, of inference, with the weights that a training has by now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .data import Batches, load_tensors
from .errors import FeedError, PlanError
from .plan import Plan, TensorKind
from .session import Session

IGNORED = -100
"""The label that counts for nothing."""

SHARES = ("top1", "top5")
"""Metrics of which a plan gives how many labels they are true of."""


class Evaluation:
    """A plan that evaluates, and the data that it is asked about."""

    def __init__(self, plan: Plan, training: Session, data: Path, timeout: float) -> None:
        """Loads the plan beside that of a training.

        Raises:
            PlanError: where it is no inference plan of the same model, with its loss.
            FeedError: where the data does not fit it.
        """
        own, given = plan.options.get("loss"), training.plan.options.get("loss")
        if plan.training or own is None or (given is not None and own != given):
            raise PlanError(
                f"--eval-plan is no plan of inference with the loss {given}: compile the model with --loss, without --optimizer"
            )
        wanted = {name for name, (variable, _) in plan.variables.items() if variable.role is TensorKind.PARAMETER}
        missing = sorted(wanted - set(training.plan.variables))
        if missing:
            raise PlanError(f"--eval-plan has the weight `{missing[0]}`, which the plan has not: it is of another model")
        weights = {name: training.variable(name) for name in sorted(wanted)}
        self.session = Session(plan, weights, training.device, seed=training.seed, timeout=timeout)
        self.training, self.names = training, sorted(wanted)
        self.batches = Batches(load_tensors(data), self.session.inputs, self.session.samples)
        self._check(data)

    def run(self) -> dict[str, Any]:
        """What the weights of now reach, as metrics say it. All processes call it."""
        for name in self.names:
            self.session.set_variable(name, self.training.variable(name))
        loss, sums, labels = 0.0, dict.fromkeys(self._shares(), 0.0), 0.0
        for step in range(-(-self.batches.samples // self.batches.batch)):
            count = min(self.batches.batch, self.batches.samples - step * self.batches.batch)
            found = {name: float(value) for name, value in self.session.step(self._feeds(step, count)).items() if value.numel() == 1}
            held = found.get("samples", float(count))
            loss += found["loss"] * held if held else 0.0
            labels += held
            sums = {name: total + found[name] for name, total in sums.items()}
        line = {"loss": loss / max(labels, 1.0), **{name: total / max(labels, 1.0) for name, total in sums.items()}}
        return {**line, "samples": int(labels)}

    def _shares(self) -> list[str]:
        return [name for name in SHARES if name in self.session.outputs]

    def _feeds(self, step: int, count: int) -> Mapping[str, Tensor]:
        """A batch, behind whose samples the others are wrapped ones with labels that count for nothing."""
        feeds = self.batches.feeds(step)
        if count < self.batches.batch:
            dim = self.session.samples["labels"].dim(feeds["labels"].dim())
            rest = torch.arange(count, self.batches.batch)
            feeds["labels"] = feeds["labels"].index_fill(dim or 0, rest, IGNORED)
        return feeds

    def _check(self, data: Path) -> None:
        batch, samples = self.batches.batch, self.batches.samples
        if batch == 0 or samples == 0:
            raise FeedError(f"{data} has no samples to evaluate on")
        labelled = "samples" in self.session.outputs and "labels" in self.session.inputs
        if not labelled and "labels" in self.session.inputs:
            raise PlanError("--eval-plan does not say how many labels count: compile it with --measure top1,top5")
        if not labelled and samples % batch:
            advice = "take a --batch that divides them"
            raise FeedError(f"{data} has {samples} samples, and batches of {batch} leave {samples % batch}: {advice}")
