"""Sessions: a plan that has been loaded and takes step after step, on this process's rank."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import plan as plans
from .assembly import combine, identity
from .boxing import sources
from .communicator import Communicator
from .data import type_of
from .errors import FeedError, GraphcError, PlanError, failing
from .executor import Executor
from .layout import Layout, Rect, ReduceKind
from .ops import TORCH
from .plan import Plan, Register, Samples, TensorKind, Variable
from .random import Stream, blocks, draw, key_of, positions

Part = tuple[Rect, Rect, ReduceKind | None]


class Session:
    """A loaded plan: an arena filled with variables, and what each action does.

    Every process of the job makes one, runs the same steps, and reads and writes the same variables, in the same order. Feeds are
    whole tensors, the same on all.

    >>> plan = graphc_torch.load("plan.json")                                # doctest: +SKIP
    >>> session = graphc_torch.Session(plan, weights, "cpu")                 # doctest: +SKIP
    >>> session.step({"input": x, "labels": y})["loss"]                      # doctest: +SKIP
    """

    def __init__(
        self,
        plan: Plan,
        weights: Mapping[str, Tensor] | None = None,
        device: str | torch.device = "cpu",
        *,
        seed: int = 0,
        first_step: int = 0,
        outputs: Iterable[str] | None = None,
        timeout: float = 300.0,
        beside: Session | None = None,
        own: frozenset[str] = frozenset(),
    ) -> None:
        """Loads a plan.

        Args:
            plan: the plan, of as many ranks as the job has processes.
            weights: what variables that take their content from a file begin with, whole, by name.
            device: where this rank computes.
            seed: of initial parameters, dropout and random numbers.
            first_step: the number of the first step: not 0 where a training is resumed.
            outputs: the outputs that steps give; default all.
            timeout: seconds after which a rank that waits for others gives up.
            beside: a session whose memory of variables is this one's too, where they lie alike in both plans; ``apart`` are the others.
            own: variables that are of this plan alone, whatever another one has by these names.

        Raises:
            GraphcError: where the job has another number of processes, a weight is missing or of another type, or an actor
                cannot be executed.
        """
        self.plan, self.seed, self.first_step = plan, seed, first_step
        self.apart: tuple[str, ...] = ()
        """Variables that another session has too, and that lie otherwise there."""
        self.rank = joined(plan, device, timeout)
        self.device = own_device(device)
        agree(plan, seed, first_step)
        sockets, all_outputs = _sockets(plan)
        self.inputs = {name: socket.layout for name, socket in sockets.items()}
        self.samples = {name: socket.samples for name, socket in sockets.items()}
        chosen = all_outputs if outputs is None else {name: all_outputs[name] for name in outputs if name in all_outputs}
        self.outputs = dict(sorted(chosen.items()))
        with torch.no_grad():
            with failing(self.rank, "joining groups of ranks"):
                communicator = Communicator(plan, self.rank, self.device, timeout)
            shared = {} if beside is None else self._shared(beside, own)
            self.executor = Executor(plan, self.rank, self.device, communicator, frozenset(self.outputs), shared)
            self.executor.clock.seed = seed
            self._ways = {name: self._way(layout) for name, layout in self.outputs.items()}
            self._fill(weights or {}, frozenset(shared))
        self.aside: dict[str, Tensor] = {}
        """Tensors of the model that the plan has no variables for; checkpoints hold them as they are."""

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which prints and writes."""
        return self.rank == 0

    @property
    def steps(self) -> int:
        """The number of the next step."""
        return self.first_step + self.executor.begun

    def use_settings(self, settings: Mapping[str, Mapping[str, float]]) -> None:
        """Takes these numbers of the optimizer in the place of the plan's from now on. All processes call it, with the same numbers.

        Args:
            settings: for each variable that is trained some of ``lr``, ``weight_decay``, ``momentum``, ``beta1``, ``beta2``, ``epsilon``.

        Raises:
            PlanError: where there is no such variable.
        """
        registers = (register for program in self.plan.programs for register in program.registers)
        called = {register.kind.variable.name: register.name for register in registers if register.kind.variable is not None}
        for name in settings:
            self._known(name)
        self.executor.clock.settings = {called[name]: dict(numbers) for name, numbers in settings.items()}

    def go_on_from(self, step: int) -> None:
        """Makes this number the next step's, as where a training is resumed. All processes call it."""
        self.first_step = step - self.executor.begun

    def step(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Takes a step: the graph's outputs by name, whole, on this rank's device.

        Raises:
            FeedError: where the feeds are not the graph's inputs.
            RunError: where an action fails.
        """
        clock = self.executor.clock
        clock.feeds, clock.step = self._checked(feeds), self.steps
        clock.outputs = {name: self._empty(name, layout) for name, layout in self.outputs.items()}
        with torch.no_grad():
            self.executor.run()
            for name, way in self._ways.items():
                if way is not None:
                    with failing(self.rank, f"step {clock.step}, output `{name}`"):
                        self._gather(clock.outputs[name], way)
        return clock.outputs

    def variables(self) -> dict[str, tuple[TensorKind, str, tuple[int, ...]]]:
        """All variables, by name: what they are for, element type, shape of the whole."""
        found = self.plan.variables.items()
        return {name: (variable.role, layout.dtype, layout.shape) for name, (variable, layout) in found}

    def variable(self, name: str) -> Tensor:
        """The content of a variable, whole, in the host's memory. All ranks call it.

        Raises:
            PlanError: where there is none of that name.
        """
        _, layout = self._known(name)
        with torch.no_grad():
            whole = self._empty(name, layout)
            register = self.registers().get(name)
            if register is not None:
                place = layout.rect(self.rank, 0, 1).slices
                whole[place] = self.executor.view(register, 0)
            way = self._way(layout)
            if way is not None:
                with failing(self.rank, f"reading the variable `{name}`"):
                    self._gather(whole, way)
        return whole.cpu()

    def set_variable(self, name: str, value: Tensor) -> None:
        """Overwrites a variable with a whole tensor.

        Raises:
            PlanError: where there is none of that name, or it has another type.
        """
        _, layout = self._known(name)
        if tuple(value.shape) != layout.shape or value.dtype != TORCH[layout.dtype]:
            raise FeedError(f"variable `{name}` is {_type(layout)}, not {type_of(value)}")
        register = self.registers().get(name)
        if register is not None:
            with torch.no_grad():
                self._write(register, layout, lambda rect, _flat: value[rect.slices])

    def registers(self) -> dict[str, Register]:
        """The registers of variables that this rank holds, by name."""
        found = self.executor.program.registers
        return {register.kind.variable.name: register for register in found if register.kind.variable is not None}

    def barrier(self) -> None:
        """Returns when all processes have called it."""
        if self.plan.world_size > 1:
            with failing(self.rank, "waiting for the others"):
                dist.barrier()

    def _known(self, name: str) -> tuple[Variable, Layout]:
        if name not in self.plan.variables:
            raise PlanError(f"the plan has no variable `{name}`")
        return self.plan.variables[name]

    def _empty(self, name: str, layout: Layout) -> Tensor:
        with failing(self.rank, f"taking memory for `{name}` ({_type(layout)})"):
            return torch.empty(layout.shape, dtype=TORCH[layout.dtype], device=self.device)

    def _checked(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        for name, layout in self.inputs.items():
            if name not in feeds:
                raise FeedError(f"the input `{name}` ({_type(layout)}) is not fed")
            if tuple(feeds[name].shape) != layout.shape or feeds[name].dtype != TORCH[layout.dtype]:
                raise FeedError(f"the input `{name}` is {_type(layout)}, and {type_of(feeds[name])} is fed")
        known = {*self.inputs, *(name for name, entry in self.plan.tensors.items() if entry.kind is TensorKind.INPUT)}
        for name in feeds:
            if name not in known:
                raise FeedError(f"there is no input `{name}`: they are {', '.join(self.inputs)}")
        return dict(feeds)

    def _shared(self, beside: Session, own: frozenset[str]) -> dict[str, Tensor]:
        """The memory of variables of another session that lie alike here."""
        here, there = self.plan.variables, beside.plan.variables
        common = [name for name in here if name in there and name not in own]
        alike = {name for name in common if here[name][1] == there[name][1]}
        self.apart = tuple(name for name in common if name not in alike)
        return {name: beside.executor.view(register, 0) for name, register in beside.registers().items() if name in alike}

    def _fill(self, weights: Mapping[str, Tensor], shared: frozenset[str]) -> None:
        """Writes the first content of this rank's variables."""
        for name, (variable, layout) in self.plan.variables.items():
            if name in shared:
                continue
            if variable.init.kind == "weights":
                if name not in weights:
                    raise FeedError(f"there is no weight for `{name}` ({_type(layout)}): give it with --weights-from")
                self.set_variable(name, weights[name])
            elif variable.init.kind == "table":
                self.set_variable(name, _table(variable.init.table, layout))
            elif name in self.registers():
                self._begin(self.registers()[name], variable, layout)

    def _begin(self, register: Register, variable: Variable, layout: Layout) -> None:
        init, stream = variable.init, Stream(self.seed, key_of(variable.name), 0)

        def content(rect: Rect, memory: Tensor) -> Tensor | float:
            if init.kind == "fill":
                return init.a
            places = positions(layout.shape, rect.origin, rect.extent, self.device).reshape(-1)
            for part, elements in blocks(places):
                memory.view(-1)[part] = draw(init.kind, init.a, init.b, stream, elements)
            return memory

        self._write(register, layout, content)

    def _write(self, register: Register, layout: Layout, content: object) -> None:
        """Writes this rank's part of a variable; of partial values what changes nothing, but for the first rank."""
        memory, masked = self.executor.view(register, 0), layout.masked(self.rank)
        if masked is not None:
            memory.fill_(identity(memory.dtype, masked))
            return
        value = content(layout.rect(self.rank, 0, 1), memory)  # type: ignore[operator]
        if isinstance(value, Tensor):
            memory.copy_(value)
        else:
            memory.fill_(value)

    def _way(self, layout: Layout) -> dict[int, list[Part]] | None:
        """How ranks come to the whole of a tensor; ``None`` where each of them has it."""
        split = any(not sbp.broadcast for sbp in layout.sbp)
        if not split and len(layout.ranks.list) == self.plan.world_size:
            return None
        microbatches = max(self.plan.microbatches, 1)
        return sources(layout, microbatches, layout.variants(microbatches))

    def _gather(self, whole: Tensor, way: dict[int, list[Part]]) -> None:
        """Takes in the parts of a tensor from those who have them, one after the other."""
        if self.plan.world_size == 1:
            return
        own = [whole[part.slices].reshape(-1).clone() for part, _, _ in way.get(self.rank, ())]
        for source, parts in way.items():
            size = sum(part.elements for part, _, _ in parts)
            flat = torch.cat(own) if source == self.rank else whole.new_empty(size)
            dist.broadcast(flat.view(torch.uint8) if flat.dtype is torch.bool else flat, source)
            pieces = flat.split([part.elements for part, _, _ in parts])
            for (part, _, kind), piece in zip(parts, pieces, strict=True):
                value = piece.view(part.extent)
                if kind is None:
                    whole[part.slices] = value
                else:
                    combine(kind, whole[part.slices], value, whole[part.slices])


def _table(elements: bytes, layout: Layout) -> Tensor:
    """A table of a plan."""
    dtype = TORCH[layout.dtype]
    if len(elements) != math.prod(layout.shape) * dtype.itemsize:
        raise PlanError(f"a table of {_type(layout)} has {len(elements)} bytes")
    return torch.frombuffer(bytearray(elements), dtype=dtype).view(layout.shape)


def joined(plan: Plan, device: str | torch.device, timeout: float) -> int:
    """Joins the job that torchrun, or whoever set its variables, has begun: this process's rank.

    Raises:
        PlanError: where the job has another number of processes than the plan has ranks.
    """
    world = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
    if world != plan.world_size:
        advice = f"start it with torchrun and {plan.world_size} processes, or compile the model with --mesh {world}"
        raise PlanError(f"the plan is for {plan.world_size} ranks, and the job has {world} processes: {advice}")
    return join_job(device, timeout)


def join_job(device: str | torch.device, timeout: float) -> int:
    """Joins the job, of however many processes: this process's rank.

    Raises:
        RunError: where the others cannot be reached.
    """
    if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return 0
    if not dist.is_initialized():
        backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
        if backend == "nccl":
            torch.cuda.set_device(own_device(device))
        with failing(int(os.environ.get("RANK", "0")), "joining the job"):
            _begin(backend, int(os.environ["WORLD_SIZE"]), timedelta(seconds=timeout))
    return dist.get_rank()


def _begin(backend: str, world: int, timeout: timedelta) -> None:
    """Makes the group of all processes.

    On one machine torchrun gives restarted processes the store of those before them, where the addresses of the dead still stand: so
    each attempt has names of its own there. Of several machines each counts restarts by itself, but there the store is new.
    """
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restarts == "0" or os.environ.get("LOCAL_WORLD_SIZE") != str(world):
        dist.init_process_group(backend, timeout=timeout)
        return
    of: Any = dist
    store, rank, world = next(of.rendezvous("env://", timeout=timeout))
    prefixed = of.PrefixStore(f"graphc-{restarts}", store)
    dist.init_process_group(backend, store=prefixed, rank=rank, world_size=world, timeout=timeout)


def own_device(device: str | torch.device) -> torch.device:
    """This process's device: of several on one machine that of its local rank.

    Raises:
        GraphcError: where there is none.
    """
    found = torch.device(device)
    if found.type != "cuda":
        return found
    if not torch.cuda.is_available():
        raise GraphcError("PyTorch finds no GPU: use --device cpu")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", local if found.index is None else found.index)


def agree(plan: Plan, seed: int, first_step: int) -> None:
    """Checks that all processes run the same plan with the same seed from the same step.

    Raises:
        PlanError: where they do not.
    """
    if plan.world_size == 1:
        return
    words = hashlib.sha256(repr(plan).encode()).hexdigest(), seed, first_step
    all_of: list[tuple[str, int, int] | None] = [None] * plan.world_size
    with failing(dist.get_rank(), "comparing its plan with the others'"):
        dist.all_gather_object(all_of, words)
    for name, index in (("plan", 0), ("seed", 1), ("first step", 2)):
        differs = [rank for rank, other in enumerate(all_of) if other is not None and other[index] != all_of[0][index]]  # type: ignore[index]
        if differs:
            raise PlanError(f"rank {differs[0]} has another {name} than rank 0")


@dataclass(frozen=True)
class Socket:
    """Where a tensor enters or leaves a plan."""

    layout: Layout
    samples: Samples
    """The dim of it that counts samples."""


def _sockets(plan: Plan) -> tuple[dict[str, Socket], dict[str, Layout]]:
    """What the plan's actors feed and fetch, by name."""
    inputs, outputs = {}, {}
    for program in plan.programs:
        for actor in program.actors:
            does = actor.action.does
            if isinstance(does, plans.Feed):
                inputs[does.input] = Socket(plan.layouts[program.registers[actor.outputs[0]].layout], does.samples)
            elif isinstance(does, plans.Fetch):
                outputs[does.output] = plan.layouts[program.registers[actor.inputs[0]].layout]
    return dict(sorted(inputs.items())), outputs


def _type(layout: Layout) -> str:
    return f"{layout.dtype}{list(layout.shape)}"
