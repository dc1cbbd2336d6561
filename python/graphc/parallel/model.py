"""A model that is trained by a plan, on as many processes as there are."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

import graphc_torch
from graphc_torch.session import join_job

from ..command import Error
from . import optimizers
from .batch import Whole, named
from .capture import Loss, capture
from .planning import Mesh, Planned, on_first_rank, planned
from .states import OptimizerState
from .tensors import Parts, Read, from_first, in_own_words, put
from .translate import Names, translate


def parallelize(
    model: nn.Module,
    example_batch: Any,
    *,
    loss: Loss | None = None,
    optimizer: Optimizer,
    mesh: Mesh = "auto",
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
        loss: the loss of the model's output and the batch, a mean over samples; without it the output is one, or has one as ``loss``.
        optimizer: SGD, Adam or AdamW of the model's parameters; what it has kept of its steps is the first process's for all.
        mesh: the ranks in a grid, or ``auto``.
        device: where ranks compute; default where the model is.
        timeout: seconds after which a rank that waits for others gives up.
        options: further ones of ``graphc compile``: ``cluster="dgx-h100"``, ``strategy``, ``microbatches``, ``precision``, ``pin``.

    Raises:
        Error: where the model cannot be captured, an op has no translation, or there is no plan.
    """
    place = torch.device(device) if device is not None else _device_of(model)
    with in_own_words():
        rank = join_job(place, timeout)
    world = dist.get_world_size() if dist.is_initialized() else 1
    names = _names(model)

    def work() -> Planned:
        return _plan(model, example_batch, loss, (optimizer, names), world, mesh, options)

    found = on_first_rank(world, rank, work)
    with in_own_words():
        session = graphc_torch.Session(graphc_torch.parse(found.plan.content), device=place, timeout=timeout)
    return Parallel(model, session, found, (optimizer, names), Whole.of(named(example_batch), world))


class Parallel:
    """A model that a plan trains.

    >>> model = graphc.parallelize(model, batch, loss=loss, optimizer=torch.optim.AdamW(model.parameters()))    # doctest: +SKIP
    >>> loss = model.step(batch)                                                                                # doctest: +SKIP
    """

    def __init__(
        self, module: nn.Module, session: graphc_torch.Session, found: Planned, training: tuple[Optimizer, dict[int, str]], whole: Whole
    ) -> None:
        """A session that begins with the weights of the first rank's module."""
        self.module, self.session, self.plan = module, session, found.plan
        self.optimizer, self._names = training
        self._whole, self._found = whole, found
        self._rates = optimizers.rates(self.optimizer)
        self._states = OptimizerState(session, self.optimizer, self._names)
        self._counted = found.counted
        self._ready = found.has_weights
        for name, content in found.translation.constants.items():
            session.set_variable(name, content)
        if found.has_weights:
            self._begin()
        if found.state is not None:
            self._states.load(found.state)

    def step(self, batch: Any) -> Tensor:
        """Takes a step with this process's rows: the loss of the whole batch. All processes call it.

        Raises:
            Error: where the batch is another than the example was, or the learning rate has changed.
        """
        if not self._ready:
            raise Error("the model stands on the device meta, so it has no weights: give it some with load_state_dict")
        if optimizers.rates(self.optimizer) != self._rates:
            advice = 'give parallelize the schedule: lr_schedule="cosine:1000"'
            raise Error(f"the learning rates are {optimizers.rates(self.optimizer)}, and the plan has {self._rates}: {advice}")
        tensors = named(batch)
        self._whole.check(tensors)
        with in_own_words():
            feeds = {name: self._whole.gathered(tensor, self.session.device) for name, tensor in tensors.items()}
            return self.session.step(feeds)["loss"].reshape(()).clone()

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
                found[key] = torch.tensor(self._counted[key] + self._passes, dtype=own.dtype)
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
        for key in own:
            if key in state:
                self._load(key, state[key])
        self._ready = self._ready or not missing

    def _load(self, key: str, value: Any) -> None:
        name, held = self._canonical(key), self._own()[key]
        if isinstance(held, Tensor) and tuple(value.shape) != tuple(held.shape):
            raise Error(f"`{key}` has the shape {list(held.shape)}, and that of the state {list(value.shape)}")
        if key in self._counted:
            self._counted[key] = int(value) - self._passes
        elif name in self._found.translation.variables:
            put(self.session, name, value)
        elif isinstance(held, Tensor) and not held.is_meta:
            held.copy_(value)

    def optimizer_state_dict(self) -> dict[str, Any]:
        """The optimizer's state as its own ``state_dict`` would give it: a plain optimizer of the same parameters takes it.

        All processes call it.
        """
        return self._states.by_index(self._whole_variable)

    def load_optimizer_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes on a state of the optimizer, of which parameters have numbers or names. All processes call it, with the same content.

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

    def _begin(self) -> None:
        """Writes the first rank's weights into the session."""
        own = _tensors(self.module)
        for name in sorted(self._found.translation.variables):
            with in_own_words():
                self.session.set_variable(name, from_first(own[name].detach(), self._whole.world, self.session.device))

    @property
    def _passes(self) -> int:
        """Passes forward so far: what batch norms count."""
        return self.session.executor.begun * max(self.session.plan.microbatches, 1)

    def _own(self) -> dict[str, Any]:
        """The module's own state."""
        return dict(self.module.state_dict())

    def _canonical(self, key: str) -> str:
        return _canonical(self.module, self._names).get(key, key)


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


def _plan(
    model: nn.Module,
    example: Any,
    loss: Loss | None,
    training: tuple[Optimizer, dict[int, str]],
    world: int,
    mesh: Mesh,
    options: dict[str, Any],
) -> Planned:
    """What the first rank does."""
    optimizer, names = training
    trained = optimizers.trained(optimizer, names)
    optimizers.options(optimizer, names, frozenset())
    tensors = named(example)
    whole = Whole.of(tensors, world)
    device = next((tensor.device for tensor in _tensors(model).values()), torch.device("cpu"))
    program = capture(model, loss, whole.example(example, device))
    inputs = {name: whole.samples(tensor) for name, tensor in tensors.items()}
    translation = translate(program, inputs, Names(_canonical(model, names), trained))
    own = optimizers.options(optimizer, names, translation.variables & trained)
    plan = planned(translation.text, world, mesh, own | options)
    has_weights, held = device.type != "meta", _tensors(model)
    counted = {name: int(held[name]) if has_weights else 0 for name in translation.counters}
    state = optimizer.state_dict() if optimizer.state else None
    return Planned(plan, translation, has_weights, counted, state)


def _device_of(model: nn.Module) -> torch.device:
    """Where a model is; one that is nowhere yet goes to a card where there is one."""
    found = next((tensor.device for tensor in _tensors(model).values()), torch.device("cpu"))
    if found.type == "meta":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(found.type)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers, tied ones under each of their names."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}


def _names(model: nn.Module) -> dict[int, str]:
    """The first name of each tensor of a model, by its identity."""
    names: dict[int, str] = {}
    for name, tensor in _tensors(model).items():
        names.setdefault(id(tensor), name)
    return names


def _canonical(model: nn.Module, names: Mapping[int, str]) -> dict[str, str]:
    """The name in the graph of each name of the model."""
    return {name: names[id(tensor)] for name, tensor in _tensors(model).items()}
