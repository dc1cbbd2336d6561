"""What all ops share: ports, the clock, the table of ops by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import PlanError
from ..plan import Op

Run = Callable[[], None]
"""One action, with all that it needs bound."""

TORCH = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "u8": torch.uint8,
    "bool": torch.bool,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
}
"""Element types as PyTorch names them."""

HALVES = (torch.float16, torch.bfloat16)

EIGHTS = (torch.float8_e4m3fn, torch.float8_e5m2)

MOVED_AS_BYTES = (torch.bool, *EIGHTS)
"""Types that collectives do not have: their bytes are sent."""


@dataclass(slots=True)
class Clock:
    """What changes from step to step."""

    seed: int = 0
    step: int = 0
    feeds: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    settings: dict[str, dict[str, float]] = field(default_factory=dict)
    """Numbers of optimizers that stand in the place of the plan's, by the tensors that they change."""
    scratch: dict[tuple[int, torch.dtype], Tensor] = field(default_factory=dict)
    """Memory for values that an action makes and none reads after it, by number and type: one action at a time has it."""

    def spare(self, number: int, dtype: torch.dtype, count: int) -> Tensor:
        """So many elements of memory for values within an action of a processor, of which each has another number."""
        found = self.scratch.get((number, dtype))
        if found is None or found.numel() < count:
            found = self.scratch[number, dtype] = torch.empty(count, dtype=dtype)
        return found[:count]


@dataclass(frozen=True, slots=True)
class Port:
    """A register as an action uses it: its memory, and where that lies in the whole tensor."""

    tensor: Tensor
    """The shard: a view of the rank's arena."""
    shape: tuple[int, ...]
    """Extents of the whole tensor."""
    origin: tuple[int, ...]
    """First element of the shard in each dim."""

    @property
    def whole(self) -> bool:
        """Whether the shard is the whole tensor."""
        return tuple(self.tensor.shape) == self.shape


@dataclass(frozen=True, slots=True)
class Call:
    """An op on its ports."""

    op: Op
    operands: list[Port]
    results: list[Port]
    clock: Clock
    first: str = ""
    """The name of the tensor that the first operand is, or is a part of."""

    def numbers(self, *names: str) -> Callable[[], tuple[float, ...]]:
        """Numbers of the op as they are by then: the plan's, or those that stand in their place."""
        given = tuple(self.op.number(name) for name in names)

        def now() -> tuple[float, ...]:
            own = self.clock.settings.get(self.first)
            return given if own is None else tuple(own.get(name, value) for name, value in zip(names, given, strict=True))

        return now

    def operand(self, index: int) -> Tensor:
        """The memory of an operand."""
        return self.operands[index].tensor

    def result(self, index: int = 0) -> Tensor:
        """The memory of a result."""
        return self.results[index].tensor


Prepare = Callable[[Call], Run]
"""What does once all that can be done before the first step."""

TABLE: dict[str, Prepare] = {}
"""The ops by their names in plans."""

UPDATES: dict[str, tuple[tuple[int, int], ...]] = {}
"""The results of an op that take the place of an operand, as (result, operand), where it has any."""


def op(name: str, updates: tuple[tuple[int, int], ...] = ()) -> Callable[[Prepare], Prepare]:
    """Enters a function in :data:`TABLE`, and in :data:`UPDATES` the results that take the place of an operand."""

    def enter(prepare: Prepare) -> Prepare:
        TABLE[name] = prepare
        if updates:
            UPDATES[name] = updates
        return prepare

    return enter


def prepare(call: Call) -> Run:
    """An action that computes an op.

    Raises:
        PlanError: where there is no such op, or its payload is not what it needs.
    """
    if call.op.name == "custom":
        raise PlanError(
            f"the op `{call.op['name']}` is a program's own, and its kernel is in that program alone: "
            "a session of graphc there executes the plan"
        )
    found = TABLE.get(call.op.name)
    if found is None:
        raise PlanError(f"the op `{call.op.name}` is none that this version has: {len(TABLE)} are known")
    if all(port.tensor.numel() == 0 for port in call.results):
        return lambda: None
    return found(call)


def zigzag_positions(extent: int, pairs: int, device: torch.device) -> Tensor:
    """The places in a sequence of elements that lie in pairs of chunks: the first beside the last, the second beside the last but one."""
    order = torch.arange(extent, device=device).view(2 * pairs, -1)
    return torch.stack([order[:pairs], order[pairs:].flip(0)], 1).flatten()


def sequence_places(op: Op, port: Port, dim: int) -> Tensor:
    """The places in the sequence of the elements of a shard along a dim, which an op may say to lie in pairs of chunks."""
    first, extent, device = port.origin[dim], port.tensor.shape[dim], port.tensor.device
    pairs = op.get("zigzag")
    if pairs is None:
        return torch.arange(first, first + extent, device=device)
    return zigzag_positions(port.shape[dim], pairs, device)[first : first + extent]


def into(result: Tensor, compute: Callable[[], Tensor]) -> Run:
    """Computes anew and copies, rounding once."""

    def run() -> None:
        result.copy_(compute())

    return run


def wide(tensor: Tensor) -> Tensor:
    """The same numbers, halves as f32."""
    return tensor.float() if tensor.dtype in HALVES else tensor


CACHED = 1 << 18
"""Elements that the caches of a core of a processor keep from one pass over them to the next."""


def blocks_of(rows: Tensor) -> Iterator[slice]:
    """Parts of the rows of a matrix over which several passes are made: such that a processor's cache keeps one, or all of them."""
    count, columns = rows.shape
    step = max(CACHED // max(columns, 1), 1) if rows.device.type == "cpu" else max(count, 1)
    return (slice(begin, min(begin + step, count)) for begin in range(0, count, step))


BLOCK = 1 << 15
"""Elements of which a processor makes all passes of an elementwise action before it goes on, where there are more."""

MOST_BLOCKS = 256
"""In how many blocks an action is made at most."""


def block_length(count: int) -> int:
    """The elements of a block of so many: a multiple of those that a processor takes at once, so that it takes the same ones together."""
    even = -(-count // MOST_BLOCKS)
    return max(BLOCK * torch.get_num_threads(), -(-even // 64) * 64)


def in_blocks(tensor: Tensor, length: int) -> tuple[Tensor, ...]:
    """The blocks of this length of a tensor, one behind the other."""
    found: tuple[Tensor, ...] = tensor.view(-1).split(length)
    return found


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two contiguous tensors have some memory in common."""
    first, second = a.data_ptr(), b.data_ptr()
    return first < second + b.numel() * b.element_size() and second < first + a.numel() * a.element_size()


def same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are one, of the same shape and type."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.dtype == b.dtype


def dim_of(port: Port, axis: int) -> int:
    """A dim of a port.

    Raises:
        PlanError: where it has none such.
    """
    if not 0 <= axis < len(port.shape):
        raise PlanError(f"there is no dim {axis} in {list(port.shape)}")
    return axis
