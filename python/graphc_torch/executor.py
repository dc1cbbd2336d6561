"""One rank's part of a plan, prepared: an arena, and each step as a list of actions with all that they need bound.

Registers are views of one tensor of bytes, at the plan's offsets. What an action does is worked out when a plan is loaded; a step
calls one function after the other. On an accelerator the plan's streams are its streams, and events stand between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from . import plan as plans
from .assembly import Change, Scope
from .averages import Averages, find_averages
from .boxing import Buffered, collective, local
from .communicator import Communicator
from .errors import GraphcError, PlanError, RunError, reason
from .layout import Layout
from .ops import TORCH, UPDATES, Call, Clock, Port, Run, prepare, prepare_chain
from .order import Action, one_order
from .plan import Actor, Plan, Rate, Register

FAILURES = (GraphcError, RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, MemoryError)
"""What an action may end with."""


@dataclass(frozen=True, slots=True)
class Timed:
    """An action of a step with the actor that does it; ``actor`` is -1 for what only joins streams."""

    actor: int
    microbatch: int
    run: Run


class Executor:
    """A rank's memory and actions."""

    def __init__(
        self,
        plan: Plan,
        rank: int,
        device: torch.device,
        communicator: Communicator,
        fetched: frozenset[str] | None,
        shared: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Takes the memory, but for variables that lie elsewhere already, and prepares the first step.

        Raises:
            PlanError: where an actor cannot be executed as the plan says.
        """
        self.plan, self.rank, self.device, self.communicator = plan, rank, device, communicator
        self.program, self.microbatches = plan.program_of(rank), max(plan.microbatches, 1)
        self.clock, self.fetched = Clock(), fetched
        self.arena = communicator.take_memory(self.program.arena_bytes, device)
        self.shared = [
            (register.offset, register.offset + register.slot_bytes, shared[register.kind.variable.name].reshape(-1).view(torch.uint8))
            for register in self.program.registers
            if shared and register.kind.variable is not None and register.kind.variable.name in shared
        ]
        """Where variables would begin and end in the arena, and where they are."""
        self.order = one_order(self.program)
        self.streams = self._streams()
        self.averages = find_averages(plan, self.program, self.order) if self.streams is None else Averages()
        self.channels: dict[int, Buffered] = {}
        self.begun = 0
        self.phases: dict[int, list[Timed]] = {}
        self.prepared: dict[object, Run] = {}
        self.period = self._period()
        self.step_of(0)

    def _streams(self) -> list[torch.cuda.Stream] | None:
        if self.device.type != "cuda" or len(self.program.streams) < 2:
            return None
        return [torch.cuda.current_stream(self.device), torch.cuda.Stream(self.device)]

    def _period(self) -> int:
        """After how many steps contents lie in the same slots again."""
        period = 1
        for register in self.program.registers:
            if register.slots > 1 and register.kind.variable is None:
                fills = self.microbatches if register.rate is Rate.MICROBATCH else 1
                period = math.lcm(period, register.slots // math.gcd(register.slots, fills))
        return period

    def step_of(self, step: int) -> list[Timed]:
        """The actions of a step of this number, counted from the session's first."""
        phase = step % self.period
        if phase not in self.phases:
            self.phases[phase] = self._listed(phase)
        return self.phases[phase]

    def run(self) -> None:
        """Executes a step.

        Raises:
            RunError: where an action fails.
        """
        actions, at = self.step_of(self.begun), 0
        try:
            for at, action in enumerate(actions):  # noqa: B007
                action.run()
        except FAILURES as error:
            raise self._failure(actions[at], error) from error
        self.begun += 1

    def act(self, action: Timed) -> None:
        """Executes one action.

        Raises:
            RunError: where it fails.
        """
        try:
            action.run()
        except FAILURES as error:
            raise self._failure(action, error) from error

    def _failure(self, action: Timed, error: Exception) -> RunError:
        name = self.program.actors[action.actor].name if action.actor >= 0 else "streams"
        at = f" (microbatch {action.microbatch})" if self.microbatches > 1 else ""
        return RunError(f"rank {self.rank}, step {self.clock.step}, `{name}`{at}: {reason(error)}")

    def _listed(self, phase: int) -> list[Timed]:
        if self.streams is not None:
            return self._on_streams(phase, self.streams)
        return [Timed(action.actor, action.microbatch, self.action(action, phase)) for action in self.order]

    def _on_streams(self, phase: int, streams: list[torch.cuda.Stream]) -> list[Timed]:
        """The actions of two streams: each on its own, with events where one waits for the other."""
        needed = {(1 - action.stream, action.waits - 1) for action in self.order if action.waits}
        events = {place: torch.cuda.Event() for place in needed}
        begin, end = torch.cuda.Event(), torch.cuda.Event()
        join: list[Run] = [lambda: begin.record(streams[0]), lambda: streams[1].wait_event(begin)]
        listed, current = [Timed(-1, 0, run) for run in join], 0
        for action in self.order:
            stream = streams[action.stream]
            if action.stream != current:
                current = action.stream
                listed.append(Timed(-1, 0, _call(torch.cuda.set_stream, stream)))
            if action.waits:
                listed.append(Timed(-1, 0, _call(stream.wait_event, events[1 - action.stream, action.waits - 1])))
            listed.append(Timed(action.actor, action.microbatch, self.action(action, phase)))
            if (action.stream, action.number) in events:
                listed.append(Timed(-1, 0, _call(events[action.stream, action.number].record, stream)))
        last: list[Run] = [lambda: end.record(streams[1]), lambda: streams[0].wait_event(end)]
        last.append(_call(torch.cuda.set_stream, streams[0]))
        return listed + [Timed(-1, 0, run) for run in last]

    def action(self, action: Action, phase: int) -> Run:
        """What an actor does in a microbatch, in the slots of a phase; prepared once for the same memory."""
        actor = self.program.actors[action.actor]
        registers = actor.inputs + actor.outputs + actor.updates
        slots = tuple(self._slot(self.program.registers[index], phase, action.microbatch) for index in registers)
        origins = tuple(self._layout(index).variants(self.microbatches) > 1 for index in registers)
        at = action.microbatch if any(origins) or _takes_turns(actor) else 0
        key = (action.actor, slots, at)
        if key not in self.prepared:
            try:
                self.prepared[key] = self._prepare(action.actor, phase, action.microbatch)
            except PlanError as error:
                raise PlanError(f"rank {self.rank}, actor `{actor.name}`: {error}") from error
            except FAILURES as error:
                raise PlanError(f"rank {self.rank}, actor `{actor.name}` does not fit its registers: {reason(error)}") from error
        return self.prepared[key]

    def _slot(self, register: Register, phase: int, microbatch: int) -> int:
        if register.slots <= 1 or register.kind.variable is not None:
            return 0
        fill = phase if register.rate is Rate.STEP else phase * self.microbatches + microbatch
        return fill % register.slots

    def _layout(self, index: int) -> Layout:
        return self.plan.layouts[self.program.registers[index].layout]

    def view(self, register: Register, slot: int) -> Tensor:
        """A content of a register."""
        dtype = TORCH[self.plan.layouts[register.layout].dtype]
        begin = register.offset + slot * register.slot_bytes
        bytes_of = math.prod(register.shape) * dtype.itemsize
        for first, last, memory in self.shared:
            # What lies within a variable lies there too.
            if bytes_of and first <= begin and begin + bytes_of <= last:
                return memory[begin - first : begin - first + bytes_of].view(dtype).view(register.shape)
        return self.arena[begin : begin + bytes_of].view(dtype).view(register.shape)

    def port(self, index: int, phase: int, microbatch: int) -> Port:
        """A register as an action of a microbatch uses it.

        Raises:
            PlanError: where it has another shape than its layout gives this rank.
        """
        register, layout = self.program.registers[index], self._layout(index)
        rect = layout.rect(self.rank, microbatch, self.microbatches)
        if rect.extent != register.shape:
            shapes = f"{list(register.shape)}, and its layout gives rank {self.rank} {list(rect.extent)}"
            raise PlanError(f"register `{register.name}` is {shapes}")
        return Port(self.view(register, self._slot(register, phase, microbatch)), layout.shape, rect.origin)

    def _prepare(self, index: int, phase: int, microbatch: int) -> Run:
        actor = self.program.actors[index]
        if index in self.averages.done:
            return lambda: None
        inputs, outputs, updates = (
            [self.port(index, phase, microbatch) for index in registers] for registers in (actor.inputs, actor.outputs, actor.updates)
        )
        does = actor.action.does
        if isinstance(does, plans.Compute):
            return self._compute(does, actor, (inputs, outputs, updates))
        if isinstance(does, plans.FusedOp):
            written = self.averages.written.get(index, [])
            outputs += [self.port(register, phase, microbatch) for _, register in written]
            return prepare_chain(replace(does, outputs=does.outputs + tuple(step for step, _ in written)), inputs, outputs, self.clock)
        if isinstance(does, plans.Collective | plans.Local):
            return self._change(does, actor, (inputs, outputs), microbatch)
        if isinstance(does, plans.Send):
            return self._channel(does.channel).send(inputs[0], microbatch)
        if isinstance(does, plans.Receive):
            return self._channel(does.channel).receive(outputs[0], microbatch)
        if isinstance(does, plans.Accumulate):
            return _accumulated(inputs[0].tensor, outputs[0].tensor, microbatch > 0)
        if isinstance(does, plans.Assign):
            return _accumulated(inputs[0].tensor, updates[0].tensor, False)
        if isinstance(does, plans.Feed):
            return self._feed(does.input, outputs[0])
        return self._fetch(does.output, inputs[0])

    def _compute(self, does: plans.Compute, actor: Actor, ports: tuple[list[Port], list[Port], list[Port]]) -> Run:
        inputs, outputs, updates = ports
        operands = [inputs[n] if n >= 0 else updates[-1 - n] for n in does.operands]
        registers = [actor.inputs[n] if n >= 0 else actor.updates[-1 - n] for n in does.operands[:1]]
        first = self.program.registers[registers[0]].name if registers else ""
        at_rest = {result: operands[of] for result, of in UPDATES.get(does.op.name, ()) if _is_update(does.operands, of)}
        results: list[Port] = []
        left = list(outputs)
        while len(results) in at_rest or left:
            results.append(at_rest[len(results)] if len(results) in at_rest else left.pop(0))
        return prepare(Call(does.op, operands, results, self.clock, first))

    def _change(self, does: plans.Collective | plans.Local, actor: Actor, ports: tuple[list[Port], list[Port]], microbatch: int) -> Run:
        layouts = [(self._layout(a), self._layout(b)) for a, b in zip(actor.inputs, actor.outputs, strict=True)]
        pairs = zip(layouts, *ports, strict=True)
        changes = [Change(start, to, operand, result) for (start, to), operand, result in pairs]
        scope = Scope(self.communicator, self.rank, microbatch, self.microbatches)
        if isinstance(does, plans.Local):
            return local(changes[0], scope)
        return collective(does, changes, scope)

    def _channel(self, number: int) -> Buffered:
        if number not in self.channels:
            self.channels[number] = Buffered(self.communicator, number, self.device)
        return self.channels[number]

    def _feed(self, name: str, port: Port) -> Run:
        clock, result, place = self.clock, port.tensor, _place(port)

        def run() -> None:
            result.copy_(clock.feeds[name][place], non_blocking=True)

        return run

    def _fetch(self, name: str, port: Port) -> Run:
        if self.fetched is not None and name not in self.fetched:
            return lambda: None
        clock, source, place = self.clock, port.tensor, _place(port)

        def run() -> None:
            clock.outputs[name][place] = source

        return run


def _place(port: Port) -> tuple[slice, ...]:
    extents = zip(port.origin, port.tensor.shape, strict=True)
    return tuple(slice(origin, origin + extent) for origin, extent in extents)


def _call(function: Callable[..., object], *arguments: object) -> Run:
    def run() -> None:
        function(*arguments)

    return run


def _is_update(operands: tuple[int, ...], index: int) -> bool:
    return index < len(operands) and operands[index] < 0


def _takes_turns(actor: Actor) -> bool:
    """Whether an action is another one in each microbatch, whatever its registers."""
    return isinstance(actor.action.does, plans.Accumulate | plans.Send | plans.Receive)


def _accumulated(operand: Tensor, result: Tensor, add: bool) -> Run:
    """Copies or adds; nothing where both are the same memory."""
    if operand.data_ptr() == result.data_ptr():
        return lambda: None
    operand = operand.view(result.shape)

    def copy() -> None:
        result.copy_(operand)

    def accumulate() -> None:
        torch.add(result, operand, out=result)

    return accumulate if add else copy
