"""Chains of elementwise ops, and sums of what they give: each becomes one Python function."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import PlanError
from ..plan import FusedArg, FusedOp, FusedStep
from .base import Call, Clock, Port, Run, overlap, same_memory
from .derivatives import DERIVATIVE, derivative, with_derivatives
from .elementwise import Function, function, reduction, result_type
from .image import convolved


@dataclass(slots=True)
class Value:
    """What is known of an operand or of a step's value."""

    name: str
    """In the source."""
    local: tuple[int, ...]
    """Its shape on this rank."""
    whole: tuple[int, ...]
    """The shape of the whole tensor."""
    dtype: torch.dtype
    operand: Tensor | None = None
    """Its memory, of operands alone."""


@dataclass(slots=True)
class Source:
    """The function while it is written."""

    lines: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)

    def bind(self, name: str, value: Any) -> str:
        """A name for something that the function uses."""
        self.names[name] = value
        return name

    def function(self) -> Run:
        """The function. Names are its defaults, which are the fastest to reach."""
        head = ", ".join(f"{name}={name}" for name in self.names)
        text = f"def run({head}):\n" + "\n".join(f"    {line}" for line in self.lines or ["pass"])
        scope = dict(self.names)
        exec(compile(text, "<chain>", "exec"), scope)
        run: Run = scope["run"]
        return run


def prepare_chain(chain: FusedOp, operands: list[Port], results: list[Port], clock: Clock) -> Run:
    """An action that evaluates a chain.

    Raises:
        PlanError: where a step is none that chains may have.
    """
    if len(chain.outputs) != len(results):
        raise PlanError(f"a chain gives {len(chain.outputs)} values for {len(results)} registers")
    return _Chain(with_derivatives(chain), operands, results, clock).prepare()


class _Chain:
    def __init__(self, chain: FusedOp, operands: list[Port], results: list[Port], clock: Clock) -> None:
        self.chain, self.ports, self.clock = chain, operands, clock
        # One value may be several results: it is made in the first and copied to the others.
        self.results: dict[int, Port] = {}
        self.copies: list[tuple[int, Port]] = []
        for step, port in zip(chain.outputs, results, strict=True):
            if self.results.setdefault(step, port) is not port:
                self.copies.append((step, port))
        self.source = Source()
        self.values: list[Value] = []
        self.later: list[str] = []
        self.operands = [self._operand(index, port) for index, port in enumerate(operands)]
        self.last = self._last_uses()

    def prepare(self) -> Run:
        for index, step in enumerate(self.chain.steps):
            self._step(index, step)
        self.source.lines.extend(self.later)
        for number, (of, port) in enumerate(self.copies):
            self.source.lines.append(f"{self.source.bind(f'c{number}', port.tensor)}.copy_({self.values[of].name})")
        return self.source.function()

    def _operand(self, index: int, port: Port) -> Value:
        name = self.source.bind(f"a{index}", port.tensor)
        return Value(name, tuple(port.tensor.shape), port.shape, port.tensor.dtype, port.tensor)

    def _last_uses(self) -> dict[int, int]:
        """By step, the last step that reads it."""
        steps = enumerate(self.chain.steps)
        return {arg.step: index for index, step in steps for arg in step.args if arg.step is not None}

    def _value(self, arg: FusedArg) -> Value:
        of = self.values if arg.operand is None else self.operands
        index = arg.step if arg.operand is None else arg.operand
        if index is None or not 0 <= index < len(of):
            raise PlanError("a step of a chain reads what there is not")
        return of[index]

    def _step(self, index: int, step: FusedStep) -> None:
        args = [self._value(arg) for arg in step.args]
        value, compute = self._typed(index, step, args)
        self.values.append(value)
        name = self.source.bind(f"f{index}", compute)
        call = ", ".join(arg.name for arg in args)
        out = self._out(index, step, args, value)
        self.source.lines.append(f"{value.name} = {name}({call}{out})")

    def _typed(self, index: int, step: FusedStep, args: list[Value]) -> tuple[Value, Function]:
        first, name = args[0], f"v{index}"
        if step.op.name == "reduce":
            compute = reduction(step.op, first.local, first.whole, first.dtype)
            port = self.results.get(index)
            if port is None:
                raise PlanError("a sum of a chain is no result of it")
            return Value(name, tuple(port.tensor.shape), port.shape, first.dtype), compute
        if step.op.name == "convolution":
            return self._convolution(index, step, args)
        dtype = result_type(step.op, [arg.dtype for arg in args])
        local = torch.broadcast_shapes(*(arg.local for arg in args))
        whole = torch.broadcast_shapes(*(arg.whole for arg in args))
        compute = derivative(step.op) if step.op.name == DERIVATIVE else function(step.op, args[-1].dtype)
        return Value(name, tuple(local), tuple(whole), dtype), compute

    def _convolution(self, index: int, step: FusedStep, args: list[Value]) -> tuple[Value, Function]:
        ports = [self.ports[arg.operand] for arg in step.args if arg.operand is not None]
        compute = convolved(Call(step.op, ports, [], self.clock))
        port = next(port for port in self.results.values() if port.tensor.dtype == args[0].dtype)
        shape = tuple(port.tensor.shape)
        return Value(f"v{index}", shape, port.shape, args[0].dtype), lambda *_operands, out=None: compute()

    def _out(self, index: int, step: FusedStep, args: list[Value], value: Value) -> str:
        """Where a step writes: into a result, into a value that it reads last, or anew."""
        port = self.results.get(index)
        if port is not None and step.op.name != "convolution" and self._free(index, args, port.tensor):
            return f", out={self.source.bind(f'o{index}', port.tensor)}"
        if port is not None:
            self.later.append(f"{self.source.bind(f'o{index}', port.tensor)}.copy_({value.name})")
            return ""
        for arg, spent in zip(step.args, args, strict=True):
            dies = arg.step is not None and self.last[arg.step] == index and arg.step not in self.results
            fits = (spent.local, spent.dtype) == (value.local, value.dtype)
            if dies and fits and step.op.name not in ("reduce", "cast") and self._once(step, arg):
                return f", out={spent.name}"
        return ""

    def _once(self, step: FusedStep, arg: FusedArg) -> bool:
        return sum(other == arg for other in step.args) == 1

    def _free(self, index: int, args: list[Value], result: Tensor) -> bool:
        """Whether a result may be written now: nothing that lies there is read later, or out of step by this one."""
        for arg in args:
            if arg.operand is not None and overlap(arg.operand, result) and not same_memory(arg.operand, result):
                return False
        reduces = self.chain.steps[index].op.name == "reduce"
        later = [arg for step in self.chain.steps[index + (not reduces) :] for arg in step.args]
        late = [self.operands[arg.operand].operand for arg in later if arg.operand is not None]
        if any(tensor is not None and overlap(tensor, result) for tensor in late):
            return False
        pending = [port.tensor for step, port in [*self.results.items(), *self.copies] if step != index]
        return not any(overlap(tensor, result) for tensor in pending)
