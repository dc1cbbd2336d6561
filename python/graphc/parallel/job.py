"""The plans of a module: one that trains it, and others that evaluate it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import graphc_torch

from ..command import Error, Unplanned
from . import optimizers
from .attributes import are_known, attributes_of, filled
from .batch import Whole
from .capture import Forward, Loss, Predicted, Traced, capture
from .names import canonical_names, tensors_of
from .optimizers import Whatever
from .outputs import check_sent
from .planning import Mesh, Planned, on_first_rank, planned
from .tensors import in_own_words
from .translate import Names, Translation, translate

SHARED = ("cluster", "framework", "precision")
"""Options of a training that its evaluation has too."""


def _check_same(first: Translation, second: Translation, changed: Mapping[tuple[str, str], Any]) -> None:
    """Checks that a second step computes what the first one does, for which a model has changed attributes."""
    same = first.text == second.text
    if not (same and (not are_known(changed) or _have_same_constants(first, second))):
        name = ".".join(filter(None, next(iter(changed))))
        said = f"the model changes its attribute `{name}` in a step, and the next one computes something else"
        raise Error(f"{said}: let it be a buffer (register_buffer), or part of the batch")


def _have_same_constants(first: Translation, second: Translation) -> bool:
    held, others = first.constants, second.constants
    return held.keys() == others.keys() and all(torch.equal(tensor, others[name]) for name, tensor in held.items())


@dataclass(frozen=True)
class Job:
    """What plans of a module are made for."""

    module: nn.Module
    names: Mapping[int, str]
    """The names of its tensors, by their identity."""
    loss: Loss | None
    call: Forward
    """What calls the module with a batch."""
    rank: int
    world: int
    device: torch.device
    timeout: float
    mesh: Mesh
    options: Mapping[str, Any]

    def plan_training(self, example: Any, whole: Whole, optimizer: Whatever, first: Planned | None = None) -> Planned:
        """The plan of a training, which the first rank makes for all; on the mesh of its first plan, where that is another.

        Raises:
            Error: where the module cannot be captured, an op has no translation, or there is no plan.
        """

        def work() -> Planned:
            scheduled = "lr_schedule" in self.options
            trained = optimizers.trained(optimizer, self.names)
            optimizers.options(optimizer, self.names, frozenset(), scheduled)
            translation, form = self._translation(example, whole, trained)
            own = optimizers.options(optimizer, self.names, translation.variables & trained, scheduled)
            state = optimizer.state_dict() if optimizer.state and first is None else None
            counts = first.own_counts if first else optimizers.has_own_counts(optimizer, self.names, translation.variables & trained)
            own |= {"own_counts": True} if counts else {}
            mesh = self.mesh if first is None else first.plan.contents.mesh
            found = self._planned(translation, {**own, **self.options}, mesh, form, state)
            self._check_variables(found, first)
            return found

        return self._on_first_rank(work)

    def computes_the_same(self, example: Any, whole: Whole, optimizer: Whatever, first: Translation) -> bool:
        """Whether a step of the module as it is by now is the one that was planned. No other process is asked.

        Raises:
            Error: where the module cannot be captured any more.
        """
        now, _ = self._translation(example, whole, optimizers.trained(optimizer, self.names))
        return now.text == first.text and _have_same_constants(now, first)

    def plan_evaluation(self, example: Any, whole: Whole) -> Planned:
        """The plan of a loss of which nothing is learned, which the first rank makes for all.

        Raises:
            Error: where there is none.
        """

        def work() -> Planned:
            options = {name: value for name, value in self.options.items() if name in SHARED}
            translation, form = self._translation(example, whole, frozenset())
            return self._planned(translation, options, self.mesh, form)

        return self._on_first_rank(work)

    def plan_prediction(self, example: Any, whole: Whole) -> Planned:
        """The plan of a module's output, which the first rank makes for all.

        Raises:
            Error: where there is none.
        """

        def work() -> Planned:
            forms: list[Any] = []
            predicted = Predicted(self.module, self.call, forms.append)
            options = {name: value for name, value in self.options.items() if name in SHARED}
            return self._planned(self._translated(predicted, example, whole, frozenset()), options, self.mesh, forms[-1])

        return self._on_first_rank(work)

    def session(self, found: Planned, beside: graphc_torch.Session | None = None) -> graphc_torch.Session:
        """A session of a plan, with the constants of its graph; its variables are those of another one, if it is given."""
        with in_own_words():
            plan, own = graphc_torch.parse(found.plan.content), frozenset(found.translation.constants)
            session = graphc_torch.Session(plan, device=self.device, timeout=self.timeout, beside=beside, own=own)
            for name, content in found.translation.constants.items():
                session.set_variable(name, content)
        return session

    def _on_first_rank(self, work: Callable[[], Planned]) -> Planned:
        return on_first_rank(self.world, self.rank, work)

    def _translation(self, example: Any, whole: Whole, trained: frozenset[str]) -> tuple[Translation, Any]:
        """The graph of a loss, and the form of what stands beside it."""
        forms: list[Any] = []
        return self._translated(Traced(self.module, self.loss, self.call, forms.append), example, whole, trained), forms[-1]

    def _translated(self, traced: Traced | Predicted, example: Any, whole: Whole, trained: frozenset[str]) -> Translation:
        device = next((tensor.device for tensor in tensors_of(self.module).values()), torch.device("cpu"))
        names = Names(canonical_names(self.module, self.names), trained)

        def once() -> Translation:
            return translate(capture(traced, whole.example(example, device)), whole.inputs(), names, isinstance(traced, Traced))

        try:
            found, changed = once(), dict(traced.attributes.changed)
            if changed:
                with attributes_of(self.module, filled(changed)):
                    _check_same(found, once(), changed)
        except Error as error:
            raise Unplanned(str(error)) from error
        return found

    @staticmethod
    def _check_variables(found: Planned, first: Planned | None) -> None:
        if first is None or found.translation.variables == first.translation.variables:
            return
        name = min(found.translation.variables ^ first.translation.variables)
        raise Error(f"a batch of this shape and one like the example do not both use `{name}`: give parallelize an example that uses all")

    def _planned(
        self,
        translation: Translation,
        options: dict[str, Any],
        mesh: Mesh,
        form: Any,
        state: dict[str, Any] | list[dict[str, Any]] | None = None,
    ) -> Planned:
        if self.world > 1:
            check_sent(form)
        plan = planned(translation.text, self.world, mesh, options)
        held = tensors_of(self.module)
        has_weights = not any(tensor.is_meta for tensor in held.values())
        counted = {name: int(held[name]) if has_weights else 0 for name in translation.counters}
        return Planned(plan, translation, has_weights, counted, state, "own_counts" in options, form)
