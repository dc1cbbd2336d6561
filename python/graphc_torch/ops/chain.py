"""Chains of elementwise ops, and sums of what they give: each becomes one Python function.

On a processor a chain of many elements alone is made block by block: what a step leaves is still in the cache for the next one, and
values that are no results lie in memory that all chains share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import PlanError
from ..plan import FusedArg, FusedOp, FusedStep
from .base import Call, Clock, Port, Run, block_length, in_blocks, overlap, same_memory
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

    def function(self, given: tuple[str, ...] = ()) -> Callable[..., None]:
        """The function of what is given. Other names are its defaults, which are the fastest to reach."""
        head = ", ".join([*given, *(f"{name}={name}" for name in self.names if name not in given)])
        text = f"def run({head}):\n" + "\n".join(f"    {line}" for line in self.lines or ["pass"])
        scope = dict(self.names)
        exec(compile(text, "<chain>", "exec"), scope)
        run: Callable[..., None] = scope["run"]
        return run


def prepare_chain(chain: FusedOp, operands: list[Port], results: list[Port], clock: Clock) -> Run:
    """An action that evaluates a chain.

    Raises:
        PlanError: where a step is none that chains may have.
    """
    if len(chain.outputs) != len(results):
        raise PlanError(f"a chain gives {len(chain.outputs)} values for {len(results)} registers")
    chain = with_derivatives(chain)
    length = _block_length(chain, operands, results)
    if length is None:
        return _Chain(chain, operands, results, clock).prepare()
    first = [[replace(port, tensor=_block(port.tensor, length)) for port in ports] for ports in (operands, results)]
    return _Blocks(chain, first[0], first[1], clock).over([port.tensor for port in (*operands, *results)], length)


def _block_length(chain: FusedOp, operands: list[Port], results: list[Port]) -> int | None:
    """The elements of the blocks in which a chain is made; none where it is made whole."""
    made = [port.tensor for port in results]
    if not made:
        return None
    shape, count = made[0].shape, made[0].numel()
    full = [port.tensor for port in (*operands, *results) if port.tensor.dim()]
    length = block_length(count)
    if made[0].device.type != "cpu" or count <= length or any(tensor.shape != shape for tensor in (*full, *made)):
        return None
    if any(step.op.name in ("reduce", "convolution") for step in chain.steps):
        return None
    # What a block writes no other one reads.
    pairs = ((a, b) for number, b in enumerate(made) for a in (*made[:number], *(port.tensor for port in operands)))
    apart = all(not overlap(a, b) or same_memory(a, b) for a, b in pairs)
    return length if apart else None


def _block(tensor: Tensor, length: int) -> Tensor:
    return in_blocks(tensor, length)[0] if tensor.dim() else tensor


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
        self._write()
        return self.source.function()

    def _write(self) -> None:
        for index, step in enumerate(self.chain.steps):
            self._step(index, step)
        self.source.lines.extend(self.later)
        for number, (of, port) in enumerate(self.copies):
            self.source.lines.append(f"{self.source.bind(f'c{number}', port.tensor)}.copy_({self.values[of].name})")

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
                return self._over(spent, value)
        return self._anew(index, value)

    def _over(self, spent: Value, _value: Value) -> str:
        """Writes into a value that no later step reads."""
        return f", out={spent.name}"

    def _anew(self, _index: int, _value: Value) -> str:
        """Writes into memory of its own."""
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


class _Blocks(_Chain):
    """A chain of a block. Values that are no results lie in spare memory, which is free again once they are read for the last time."""

    def __init__(self, chain: FusedOp, operands: list[Port], results: list[Port], clock: Clock) -> None:
        super().__init__(chain, operands, results, clock)
        self.spare: dict[str, int] = {}
        """The numbers of spare memory that values lie in."""

    def over(self, whole: list[Tensor], length: int) -> Run:
        """The chain of all blocks, of the tensors whose first ones it has been given."""
        self._write()
        blocks = {(tensor.data_ptr(), tensor.dtype): in_blocks(tensor, length) for tensor in whole if tensor.dim()}
        count = max(len(parts) for parts in blocks.values())
        changing = tuple(name for name, bound in self.source.names.items() if isinstance(bound, Tensor) and bound.dim())
        rows = [tuple(self._part(name, blocks, at) for name in changing) for at in range(count)]
        compute = self.source.function(changing)

        def run() -> None:
            for row in rows:
                compute(*row)

        return run

    def _part(self, name: str, blocks: dict[tuple[int, torch.dtype], tuple[Tensor, ...]], at: int) -> Tensor:
        """A tensor of the function in a block."""
        bound: Tensor = self.source.names[name]
        parts = blocks.get((bound.data_ptr(), bound.dtype))
        if parts is not None:
            return parts[at]
        return bound[: next(iter(blocks.values()))[at].numel()]

    def _over(self, spent: Value, value: Value) -> str:
        if spent.name in self.spare:
            self.spare[value.name] = self.spare.pop(spent.name)
        return super()._over(spent, value)

    def _anew(self, index: int, value: Value) -> str:
        if not value.local:
            return ""
        self.spare = {name: number for name, number in self.spare.items() if self.last.get(int(name[1:]), -1) >= index}
        number = next(number for number in range(len(self.spare) + 1) if number not in self.spare.values())
        self.spare[value.name] = number
        memory = self.clock.spare(number, value.dtype, value.local[0])
        return f", out={self.source.bind(f's{index}', memory)}"
