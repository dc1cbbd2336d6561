"""A model that is trained by a plan, on as many processes as there are."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from graphc_torch.session import join_job

from ..command import Error
from .batch import Whole
from .capture import Forward, Loss, check, output_of
from .evaluation import Evaluator, beside
from .job import Job
from .loop import Loop
from .names import canonical_names, device_of, names_of, tensors_of
from .optimizers import AGAIN, Settings, Whatever, bare, parameters_of, parts_of
from .planning import Mesh
from .refreshed import refresh_by
from .shapes import Shapes
from .states import States
from .tensors import Parts, Read, from_first, in_own_words, put
from .watched import Watched

OF_OPTIMIZER = (
    "optimizer",
    "lr",
    "weight_decay",
    "momentum",
    "nesterov",
    "beta1",
    "beta2",
    "eps",
    "alpha",
    "centered",
    "group",
    "adjust_lr",
    "by_adamw",
    "amsgrad",
    "maximize",
    "dampening",
    "decoupled",
    "momentum_decay",
    "lr_decay",
    "initial_accumulator",
    "decay_exponent",
    "least_scale",
    "clip_step",
    "fixed_rate",
    "unscaled",
    "own_counts",
    "plain_momentum",
    "iterations",
    "coefficients",
)
"""Options of ``graphc compile`` that the optimizer says."""


ADVICE = {
    "parameters": "parallelize(.., max_norm=) scales gradients down, and state_dict() has the weights",
    "named_parameters": "state_dict() has the weights by their names",
    "generate": "call update_module(), and then `.module.generate`",
    "clip_grad_norm_": "parallelize(.., max_norm=) scales gradients down",
    "backward": "`loss = model(batch)` makes a step, and `loss.backward()` belongs to it",
    "zero_grad": "there are no gradients to look at: leave it out, or call that of the optimizer",
    "to": "parallelize(.., device=) says where to compute",
}
"""What to do instead of what modules and their wrappers have."""


def parallelize(
    model: nn.Module,
    example_batch: Any,
    *,
    loss: Loss | None = None,
    forward: Forward = output_of,
    optimizer: Optimizer | Sequence[Optimizer],
    mesh: Mesh = "auto",
    accumulate: int = 1,
    max_norm: float | None = None,
    device: str | torch.device | None = None,
    timeout: float = 300.0,
    **options: Any,
) -> Parallel:
    """Plans a model for the processes of this job, which torchrun has started, and makes it ready to train.

    Every process calls it. The first one captures model and loss by ``torch.export``, without computing anything, and plans; all begin
    with its weights, so the model of the others may stand on the device ``meta``.

    Args:
        model: the module, in ``train`` or ``eval`` mode as it is to be trained.
        example_batch: a batch of this process's own rows, as each step has one: a tensor, a tuple whose first element is the model's
            input, or a mapping that names its arguments.
        loss: the loss of the model's output and the batch, a mean over samples; a criterion of ``torch.nn`` takes the output and the
            second of a pair. Without it the output is one, or has one as ``loss``. A function may return a pair: the loss, and whatever
            else is to be seen of each step as ``beside``.
        forward: calls the model with a batch, where that is not ``model(input)`` or ``model(**batch)``.
        optimizer: torch.optim's SGD, Adam, AdamW, RMSprop, Adagrad, Adadelta, Adafactor, Adamax, NAdam or RAdam of the model's parameters,
            or Lion, or a pair of Muon for matrices and AdamW for all else; what it has kept of its steps is the first process's for all.
            Rates of its groups are read at each step, and what else its kind allows, so schedulers of PyTorch have their way.
        mesh: the ranks in a grid, or ``auto``.
        accumulate: how many batches make a step, whose gradients are summed.
        max_norm: the norm, of all gradients together, down to which they are scaled.
        device: where ranks compute; default where the model is.
        timeout: seconds after which a rank that waits for others gives up.
        options: further ones of ``graphc compile``: ``cluster="dgx-h100"``, ``strategy``, ``microbatches``, ``precision``, ``pin``.

    Raises:
        Error: where the model cannot be captured, an op has no translation, or there is no plan.
    """
    place = torch.device(device) if device is not None else device_of(model)
    with in_own_words():
        rank = join_job(place, timeout)
    world = dist.get_world_size() if dist.is_initialized() else 1
    all_options = _options(accumulate, max_norm, options)
    own = bare(optimizer)
    job = Job(model, names_of(model), loss, forward, rank, world, place, timeout, mesh, all_options)
    check(model, loss, example_batch)
    whole = Whole.of(example_batch, world, accumulate)
    whole.agree()
    return Parallel(Shapes(job, job.plan_training(example_batch, whole, own), example_batch, whole, own))


def _trained_by(optimizer: Whatever) -> frozenset[int]:
    """The identities of the parameters that an optimizer changes."""
    return frozenset(id(parameter) for parameter in parameters_of(optimizer) if parameter.requires_grad)


def _options(accumulate: int, max_norm: float | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ``graphc compile``, under its own names."""
    found = dict(options)
    for name in OF_OPTIMIZER:
        if name in found:
            raise Error(f"{name} is what the optimizer says: give it to the optimizer")
    for name, own, value, unset in (("accumulate", "microbatches", accumulate, 1), ("max_norm", "clip_norm", max_norm, None)):
        if value != unset and own in found:
            raise Error(f"{name} and {own} mean the same: give one of them")
        if value != unset:
            found[own] = value
    if type(accumulate) is not int or accumulate < 1:
        raise Error(f"accumulate is {accumulate!r}: let it be a number of batches, of at least 1")
    return found


class Parallel:
    """A model that a plan trains.

    >>> model = graphc.parallelize(model, batch, loss=loss, optimizer=torch.optim.AdamW(model.parameters()))    # doctest: +SKIP
    >>> loss = model.step(batch)                                                                                # doctest: +SKIP
    """

    def __init__(self, shapes: Shapes) -> None:
        """A session that begins with the weights of the first rank's module."""
        job, found, optimizer = shapes.job, shapes.found, shapes.optimizer
        self.module, self.plan, self.optimizer = job.module, found.plan, optimizer
        self.session = shapes.first.session
        self.training = True
        """Whether a call with a batch makes a step of training."""
        self._names, self._shapes, self._found = job.names, shapes, found
        self._rank, self._world = job.rank, job.world
        self._first, self._trained = Settings.of(optimizer, "lr_schedule" in job.options), _trained_by(optimizer)
        self._is_cast = "precision" in job.options
        self._states = States(self.session, optimizer, self._names)
        self._counted, self._per_pass = found.counted, found.translation.counters
        self._ready = found.has_weights
        self._loop = Loop(optimizer, job.module, lambda: Settings.of(optimizer, self._first.scheduled))
        self._evaluator = Evaluator(job, self._content)
        self._changes: list[str] = []
        """Attributes of the module that have changed since its last step."""
        self._version = 0
        """How often the weights have changed."""
        self._is_behind = False
        """Whether the module has other weights than the plan."""
        self._has_warned = False
        """Whether that was said of a module that was called in train mode."""
        refresh_by(job.module, None)
        self.norm: Tensor | None = None
        """The norm of the last step's gradients before they were scaled down, where ``max_norm`` is given."""
        self.beside: Any = None
        """What the loss had beside it at the last step: of samples those of this process, all else of the whole batch."""
        if found.has_weights:
            self._begin(job)
        if found.state is not None:
            self._states.load(found.state)
        self._watched = Watched(job.module, found.translation.variables)

    def step(self, *batches: Any) -> Tensor:
        """Takes a step with this process's rows: the loss of the whole batch. All processes call it.

        Args:
            batches: one batch, or as many as ``accumulate`` says. Those of a step are of one shape, which may differ from the
                example's in extents: each shape is planned when it is there for the first time.

        Raises:
            Error: where a batch is another than the example was, or the optimizer has changed in what is part of the plan.
        """
        self._check_ready()
        self._watched.check()
        self._check_attributes()
        parts = self._shapes.first.whole.parts
        if len(batches) != parts:
            raise Error(f"a step is made of {parts} batches, as accumulate says, and {len(batches)} are given")
        shape, outputs = self._shapes.step(batches, self._settings())
        self.norm = outputs["grad_norm"].reshape(()).clone() if "grad_norm" in outputs else None
        self.beside = beside(shape.form, outputs, shape.whole, self._rank)
        loss = outputs["loss"].reshape(()).clone()
        self._change()
        # Schedulers warn where an optimizer has made no step of its own.
        for part in parts_of(self.optimizer):
            setattr(part, "_opt_called", True)  # noqa: B010
        return loss

    def __call__(self, batch: Any) -> Tensor:
        """The loss of the whole batch: in training with the step that belongs to it, else in the module's ``eval`` mode.

        In training ``loss.backward()`` and ``optimizer.step()`` must follow, though the step is made by then. All processes call it.

        Raises:
            Error: as :meth:`step` does, and where the last step was not followed by these.
        """
        if not self.training:
            self._check_ready()
            self._see_attributes()
            with _without_gradients():
                loss, self.beside = self._evaluator.loss(batch, self._version)
            return loss
        self._loop.check()
        return self._loop.begin(self.step(batch))

    def __getattr__(self, name: str) -> Any:
        """Says where to find what modules have, and this is none.

        Raises:
            AttributeError: always.
        """
        advice = ADVICE.get(name, f"`.module.{name}` is that of the module, whose weights are those of before until update_module()")
        raise AttributeError(f"a model that a plan trains has no `{name}`: {advice}")

    def train(self, mode: bool = True) -> Parallel:
        """Makes steps of training of what follows, or evaluations."""
        self.training = mode
        if mode:
            self._watched.put_modes_back()
        return self

    def eval(self) -> Parallel:
        """Evaluates what follows, as the module does in its ``eval`` mode: batches of each shape have a plan of their own."""
        return self.train(False)

    def predict(self, batch: Any, whole: bool = False) -> Any:
        """What the module returns in its ``eval`` mode, with the weights and buffers of now. All processes call it.

        The module's own structure is kept: tuples, mappings, dataclasses. Each shape of batches has a plan; they need no labels.

        Args:
            batch: this process's rows.
            whole: whether to give the rows of all processes to each, in the order of ranks. Else each has those of its own batch of all
                tensors whose first dim counts samples, once or several times; other tensors are of the whole batch.

        Raises:
            Error: where the module in ``eval`` mode has no plan.
        """
        self._check_ready()
        self._see_attributes()
        with _without_gradients():
            return self._evaluator.prediction(batch, self._version, whole)

    def state_dict(self) -> dict[str, Any]:
        """What the module's own would be, whole, in the host's memory. All processes call it.

        What no step reads is this process's module's own, and so without content where that stands on the device ``meta``.
        """
        return self._state(self._whole_variable)

    def _state(self, read: Read) -> dict[str, Any]:
        """The module's state of variables that are read in this way."""
        found: dict[str, Any] = {}
        known: dict[str, Tensor] = {}
        for key, own in self._own().items():
            name = self._canonical(key)
            if key in self._counted:
                found[key] = torch.tensor(self._counted[key] + self._passes * self._per_pass[key], dtype=own.dtype)
            elif name in self._found.translation.variables:
                known[name] = known[name] if name in known else read(name)
                found[key] = known[name]
            else:
                found[key] = own
        return found

    def _whole_variable(self, name: str) -> Tensor:
        with in_own_words():
            return self.session.variable(name)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Overwrites the model's tensors. All processes call it, with the same content.

        Raises:
            Error: where names are missing or too many, and it is strict, or a tensor has another shape.
        """
        own = self._own()
        missing, others = [key for key in own if key not in state], [key for key in state if key not in own]
        if strict and (missing or others):
            said = f"it has no `{missing[0]}`" if missing else f"it has `{others[0]}`, which the model has not"
            raise Error(f"the state is another model's: {said}; strict=False takes what fits")
        given = [key for key in own if key in state]
        for key in given:
            self._load(key, state[key])
        self._watched.look(self._canonical(key) for key in given)
        self._ready = self._ready or not missing
        self._change()

    def _load(self, key: str, value: Any) -> None:
        name, held = self._canonical(key), self._own()[key]
        if isinstance(held, Tensor) and tuple(value.shape) != tuple(held.shape):
            raise Error(f"`{key}` has the shape {list(held.shape)}, and that of the state {list(value.shape)}")
        if key in self._counted:
            self._counted[key] = int(value) - self._passes * self._per_pass[key]
        elif name in self._found.translation.variables:
            put(self.session, name, value)
        elif isinstance(held, Tensor) and not held.is_meta:
            held.copy_(value)

    def optimizer_state_dict(self) -> Any:
        """The optimizer's state as its own ``state_dict`` would give it: a plain optimizer of the same parameters takes it.

        Of a pair it is a list of both.

        All processes call it.
        """
        return self._states.by_index(self._whole_variable)

    def load_optimizer_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Takes on a state of the optimizer, of which parameters have numbers or names; of a pair a list of both.

        All processes call it, with the same content.

        Raises:
            Error: where it is another optimizer's.
        """
        self._states.load(state)

    def training_state(self) -> TrainingState:
        """Model and optimizer for ``torch.distributed.checkpoint``, whose ``save`` and ``load`` take it in a state dict."""
        return TrainingState(self)

    def update_module(self) -> None:
        """Writes the weights into the module, in place, for whoever goes on with it. All processes call it.

        Raises:
            Error: where the module stands on the device ``meta`` and has no place for them.
        """
        state = self.state_dict()
        if any(isinstance(own, Tensor) and own.is_meta for own in self._own().values()):
            raise Error("the module stands on the device meta: move it with to_empty first, or take state_dict()")
        self.module.load_state_dict(state)
        self._is_behind = self._has_warned = False
        refresh_by(self.module, None)
        self._watched.look()

    def save_pretrained(self, folder: str | PathLike[str], **options: Any) -> None:
        """Saves as the model of transformers does, by the first process; ``from_pretrained`` reads it. All processes call it.

        Raises:
            Error: where the module is none of transformers'.
        """
        save = getattr(self.module, "save_pretrained", None)
        if save is None:
            raise Error(f"{type(self.module).__name__} has no save_pretrained: torch.save(model.state_dict(), path) saves any model")
        state = self.state_dict()
        if self.session.leads:
            save(folder, state_dict=state, **options)
        with in_own_words():
            self.session.barrier()

    def _change(self) -> None:
        """Takes note of other weights than the module has."""
        self._version += 1
        if not self._is_behind:
            self._is_behind = True
            refresh_by(self.module, self._refresh)

    def _refresh(self) -> None:
        """Writes the weights into the module before it is called to evaluate, where this process can do so alone.

        Raises:
            Error: where it cannot.
        """
        parameters = list(self.module.parameters())
        # With other tensors, as `functional_call` lends them, a call has nothing to do with the plan.
        if any(parameter.is_meta or id(parameter) not in self._names for parameter in parameters):
            return
        said = "the module was called, and its weights are those of before the steps that were made"
        if self.module.training:
            # Whoever trains it beside its plan may mean these.
            if not self._has_warned:
                warnings.warn(f"{said}: call update_module() first, if they are to be those of now", stacklevel=6)
            self._has_warned = True
            return
        if self._world > 1:
            raise Error(f"{said}: call update_module() on all processes first, or eval() or predict() of what parallelize has returned")
        with _without_gradients():
            self.update_module()

    def _check_ready(self) -> None:
        if not self._ready:
            raise Error("the model stands on the device meta, so it has no weights: give it some with load_state_dict")

    def _see_attributes(self) -> None:
        """Forgets plans that evaluate a module with attributes that it has no more."""
        changes = self._watched.changes()
        if changes:
            self._changes += changes
            self._evaluator.made.clear()

    def _check_attributes(self) -> None:
        """Checks that attributes that have changed, as most do, are none that a step depends on.

        Raises:
            Error: where the module would compute something else.
        """
        self._see_attributes()
        if self._changes and not self._shapes.still_computes():
            said = f"the module's {self._changes[0]}, and a step computes something else by now"
            raise Error(f"{said}: let it be a tensor of the batch, or {AGAIN}")
        self._changes.clear()

    def _settings(self) -> dict[str, dict[str, float]]:
        """The optimizer's numbers of now, which the plans take for theirs."""
        now = Settings.of(self.optimizer, self._first.scheduled)
        now.check_after(self._first)
        for changed in _trained_by(self.optimizer) ^ self._trained:
            name = self._names.get(changed, "a parameter")
            raise Error(f"requires_grad of `{name}` has changed, but which weights are trained is part of the plan: {AGAIN}")
        if not self._is_cast and any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
            warnings.warn("torch.autocast changes nothing of a plan: give parallelize precision='bf16'", stacklevel=4)
        return now.of_variables(self.optimizer, self._names, self._found.translation.variables)

    def _content(self, name: str) -> Tensor:
        """The content of a tensor that evaluation needs, by its name in the graph."""
        if name in self._found.translation.variables:
            return self._whole_variable(name)
        return from_first(tensors_of(self.module)[name].detach(), self._world, self.session.device)

    def _begin(self, job: Job) -> None:
        """Writes the first rank's weights into the session."""
        own = tensors_of(self.module)
        for name in sorted(self._found.translation.variables):
            with in_own_words():
                self.session.set_variable(name, from_first(own[name].detach(), job.world, job.device))

    @property
    def _passes(self) -> int:
        """Passes forward so far: what batch norms count."""
        return self._shapes.passes

    def _own(self) -> dict[str, Any]:
        """The module's own state."""
        return dict(self.module.state_dict())

    def _canonical(self, key: str) -> str:
        return canonical_names(self.module, self._names).get(key, key)


@contextmanager
def _without_gradients() -> Iterator[None]:
    """Evaluates in no inference mode, as the tensors that are made there could be changed nowhere else."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class TrainingState:
    """Model and optimizer in the form that ``torch.distributed.checkpoint`` saves and loads, on any number of processes.

    What ranks hold parts of stands as ``DTensor`` over the plan's own memory, all else as whole tensors; parameters have their names.
    """

    def __init__(self, model: Parallel) -> None:
        """The state of a model in training."""
        self.model, self._parts = model, Parts(model.session)

    def state_dict(self) -> dict[str, Any]:
        """Model and optimizer. All processes call it."""
        read, own = self._parts.read, self.model._state
        held = {name: tensor for name, tensor in own(read).items() if not (isinstance(tensor, Tensor) and tensor.is_meta)}
        return {"model": held, "optimizer": self.model._states.by_name(read)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes on what was loaded. All processes call it."""
        self.model._states.load(state["optimizer"])
        self.model.load_state_dict(state["model"], strict=False)
        self.model._ready = True
