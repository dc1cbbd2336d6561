"""Plans as graphc writes them: plain dataclasses, read from JSON.

Start with :func:`graphc_torch.reading.load`, then :class:`Plan`, then :class:`Program`. ``docs/plan.md`` of graphc describes every field.
"""

from __future__ import annotations

import base64
import enum
import sys
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .errors import PlanError
from .layout import Layout, Ranks, ReduceKind, Sbp
from .schema import Signed, decode, shown


class Rate(enum.Enum):
    """How often something happens."""

    MICROBATCH = "microbatch"
    STEP = "step"


class TensorKind(enum.Enum):
    """What a tensor is for."""

    PARAMETER = "parameter"
    TABLE = "table"
    INPUT = "input"
    OUTPUT = "output"
    STATE = "state"
    ACTIVATION = "activation"
    GRADIENT = "gradient"


class BoxingKind(enum.Enum):
    """Kinds of changes of layout."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    ALL_TO_ALL = "all_to_all"
    SLICE = "slice"
    MASK = "mask"
    SEND_RECV = "send_recv"


@dataclass(frozen=True)
class Op:
    """One op with its payload."""

    name: str
    """Which one, e.g. ``matmul``."""
    fields: dict[str, Any]
    """Its payload, as the plan has it."""

    @classmethod
    def from_json(cls, value: Any) -> Op:
        """Reads the object of an op, whose ``op`` is its name."""
        if not isinstance(value, dict) or not isinstance(value.get("op"), str):
            raise ValueError(f"an op is an object with its name as `op`, not {shown(value)}")
        return cls(value["op"], {name: item for name, item in value.items() if name != "op"})

    def get(self, name: str, default: Any = None) -> Any:
        """A part of the payload that may be left out."""
        return self.fields.get(name, default)

    def __getitem__(self, name: str) -> Any:
        """A part of the payload.

        Raises:
            PlanError: where there is none of that name.
        """
        if name not in self.fields:
            raise PlanError(f"the op {self.name} has no `{name}`")
        return self.fields[name]

    def number(self, name: str, default: float | None = None) -> float:
        """A number of the payload, which may be infinite or no number."""
        value = self.fields.get(name, default) if default is not None else self[name]
        return scalar(value)


FINITE = int(sys.float_info.max)
"""The greatest number that is one."""


def scalar(value: Any) -> float:
    """A number of a payload: a number, ``"inf"``, ``"-inf"`` or ``"nan"``."""
    if isinstance(value, str) and value in ("inf", "-inf", "nan"):
        return float(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= FINITE:
        return float(value)
    raise PlanError(f"a number is expected in the payload of an op, not {shown(value)}")


@dataclass(frozen=True)
class FusedArg:
    """An operand of a fused step: an operand of the chain, or the value of an earlier step."""

    operand: int | None
    step: int | None

    @classmethod
    def from_json(cls, value: Any) -> FusedArg:
        """Reads ``{"operand": 0}`` or ``{"step": 0}``."""
        if not isinstance(value, dict) or len(value) != 1 or set(value) - {"operand", "step"}:
            raise ValueError(f"an operand or a step is expected, not {shown(value)}")
        ((name, number),) = value.items()
        if type(number) is not int or number < 0:
            raise ValueError(f"the number of an {name} is expected, not {shown(number)}")
        return cls(value.get("operand"), value.get("step"))


@dataclass(frozen=True)
class FusedStep:
    """One op of a chain."""

    op: Op
    args: tuple[FusedArg, ...]


@dataclass(frozen=True)
class FusedOp:
    """A chain of elementwise ops; it may begin with a convolution and end in sums and means."""

    steps: tuple[FusedStep, ...]
    """In order of evaluation."""
    outputs: tuple[int, ...]
    """The steps whose values are results, in the order of the actor's outputs."""


@dataclass(frozen=True)
class Compute:
    """A kernel. Operand i is input n where ``operands[i]`` is n, and update n where it is -1-n."""

    op: Op
    operands: tuple[Signed, ...]


@dataclass(frozen=True)
class Collective:
    """A collective over one mesh axis; with several inputs, all in one message. Input i becomes output i."""

    kind: BoxingKind
    reduce: ReduceKind | None
    axis: int
    sequence: int


@dataclass(frozen=True)
class Local:
    """A local change of layout: slice or mask."""

    kind: BoxingKind


@dataclass(frozen=True)
class Send:
    """Sends this rank's part of a channel."""

    channel: int


@dataclass(frozen=True)
class Receive:
    """Receives this rank's part of a channel."""

    channel: int


@dataclass(frozen=True)
class Accumulate:
    """Adds each microbatch's input into the step-rate output; the first overwrites."""


@dataclass(frozen=True)
class Assign:
    """Copies the input into the variable that it updates."""


@dataclass(frozen=True)
class Samples:
    """Which dim of what is fed, or given back, counts samples."""

    at: int | None = 0
    """The dim; ``None`` where the whole tensor belongs to every step."""

    @classmethod
    def from_json(cls, value: Any) -> Samples:
        """Reads ``"first"``, ``"whole"`` or ``{"dim": 1}``."""
        if value in ("first", "whole"):
            return cls(0 if value == "first" else None)
        if isinstance(value, dict) and list(value) == ["dim"] and type(value["dim"]) is int and value["dim"] >= 0:
            return cls(value["dim"])
        raise ValueError(f'the dim of samples is "first", "whole" or {{"dim": 1}}, not {shown(value)}')

    def dim(self, rank: int) -> int | None:
        """The dim of a tensor of so many dims; ``None`` where it has none that counts samples."""
        return self.at if self.at is not None and self.at < rank else None


@dataclass(frozen=True)
class Feed:
    """Copies this rank's shard of what the user feeds into the output."""

    input: str
    samples: Samples = Samples()
    """The dim of the input that counts samples."""


@dataclass(frozen=True)
class Fetch:
    """Gives this rank's shard of an output to the user."""

    output: str
    samples: Samples = Samples()
    """The dim of the output that counts samples, in a plan of inference."""


ACTIONS: dict[str, Any] = {
    "compute": Compute,
    "fused": FusedOp,
    "collective": Collective,
    "local": Local,
    "send": Send,
    "receive": Receive,
    "accumulate": Accumulate,
    "assign": Assign,
    "feed": Feed,
    "fetch": Fetch,
}
"""The actions, by their names in plans."""


def _named(value: Any, known: dict[str, Any], what: str) -> Any:
    """The value of an enum in a file: a name, or an object with the name of one and its fields."""
    name: str | None = value if isinstance(value, str) else None
    fields: Any = {}
    if isinstance(value, dict) and len(value) == 1:
        name, fields = next(iter(value.items()))
    if name not in known:
        raise ValueError(f"{shown(value if name is None else name)} is no {what} that this version knows: " + ", ".join(known))
    return decode(known[name], fields, str(name))


@dataclass(frozen=True)
class Action:
    """What an actor does: ``does`` is one of :data:`ACTIONS`."""

    does: Any

    @classmethod
    def from_json(cls, value: Any) -> Action:
        """Reads an action."""
        return cls(_named(value, ACTIONS, "action"))


@dataclass(frozen=True)
class Init:
    """The first content of a variable."""

    kind: str
    """``weights`` (read by name from the model), ``table``, ``fill``, ``normal`` or ``uniform``."""
    a: float = 0.0
    """The value of fill, the mean of normal, the least of uniform."""
    b: float = 0.0
    """The deviation of normal, one past the greatest of uniform."""
    table: bytes = b""
    """The elements of a table."""

    @classmethod
    def from_json(cls, value: Any) -> Init:
        """Reads any of the five."""
        if value == "weights":
            return cls("weights")
        if isinstance(value, dict) and len(value) == 1:
            kind, fields = next(iter(value.items()))
            if kind == "table":
                return cls("table", table=base64.b64decode(fields, validate=True))
            if kind == "fill":
                return cls("fill", scalar(fields))
            if kind == "normal":
                return cls("normal", *_pair(fields, "mean", "std"))
            if kind == "uniform":
                return cls("uniform", *_pair(fields, "low", "high"))
        raise ValueError(f"{shown(value)} is no first content of a variable")


def _pair(fields: Any, first: str, second: str) -> tuple[float, float]:
    """Two numbers of an object that has these alone."""
    if not isinstance(fields, dict) or set(fields) != {first, second}:
        raise ValueError(f"an object of `{first}` and `{second}` is expected, not {shown(fields)}")
    return scalar(fields[first]), scalar(fields[second])


@dataclass(frozen=True)
class Variable:
    """What a register holds from step to step."""

    name: str
    init: Init
    role: TensorKind


@dataclass(frozen=True)
class RegisterKind:
    """What a register holds: a variable, or else an activation."""

    variable: Variable | None

    @classmethod
    def from_json(cls, value: Any) -> RegisterKind:
        """Reads ``"activation"`` or ``{"variable": {..}}``."""
        if value == "activation":
            return cls(None)
        return cls(_named(value, {"variable": Variable}, "kind of register"))


@dataclass(frozen=True)
class Register:
    """A buffer of a fixed shape at a fixed offset of the arena."""

    name: str
    """The tensor's name, for reports."""
    layout: int
    """The tensor's layout: index into ``Plan.layouts``."""
    shape: tuple[int, ...]
    """Extents of the shard."""
    offset: int
    """Bytes from the arena's start to slot 0."""
    slot_bytes: int
    """Bytes from slot to slot."""
    slots: int
    """How many contents exist at once; the content of fill n lies in slot n % slots."""
    rate: Rate
    """How often it is filled."""
    kind: RegisterKind
    """What it holds."""
    shares: int | None
    """The register whose memory it shares because its producer writes in place."""


@dataclass(frozen=True)
class Actor:
    """One physical op."""

    name: str
    """For reports: op and tensor."""
    action: Action
    """What it does."""
    inputs: tuple[int, ...]
    """Registers that it reads."""
    outputs: tuple[int, ...]
    """Registers that it fills."""
    updates: tuple[int, ...]
    """Variables that it reads and overwrites."""
    rate: Rate
    """How often it acts."""
    seconds: float
    """Seconds that it takes by the cost model, per action."""
    after: int | None = None
    """An actor of another stream that acts before it."""
    flops: float = 0.0
    """Floating-point operations of one action."""
    bytes: float = 0.0
    """Bytes of device memory that one action moves."""


@dataclass(frozen=True)
class StreamItem:
    """A block for a microbatch."""

    block: int
    microbatch: int


@dataclass(frozen=True)
class Stream:
    """A worker's order."""

    blocks: tuple[tuple[int, ...], ...]
    """Lists of actors."""
    order: tuple[StreamItem, ...]
    """What runs in one step, in order."""

    def actions(self) -> list[tuple[int, int]]:
        """Actors with their microbatches, in order."""
        return [(actor, item.microbatch) for item in self.order for actor in self.blocks[item.block]]


@dataclass(frozen=True)
class Program:
    """What ranks that do the same execute."""

    stage: int
    """Its pipeline stage."""
    arena_bytes: int
    """Bytes of the arena."""
    live_bytes: int
    """The greatest number of bytes of registers alive at one time."""
    registers: tuple[Register, ...]
    """Buffers."""
    actors: tuple[Actor, ...]
    """Physical ops."""
    streams: tuple[Stream, ...]
    """Who executes what in which order."""


@dataclass(frozen=True)
class Channel:
    """A buffered exchange between two layouts of one tensor."""

    tensor: str
    """The tensor's name."""
    start: int = field(metadata={"name": "from"})
    """Layout of those who send: index into ``Plan.layouts``; ``from`` in the file."""
    to: int
    """Layout of those who receive."""
    slots: int
    """Contents under way at once."""
    rate: Rate
    """How often."""
    sequence: int
    """Place of the send in the order of all communication."""


@dataclass(frozen=True)
class WeightsSource:
    """A weights file by path and content."""

    path: str
    sha256: str


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor of the logical graph lies."""

    name: str
    kind: TensorKind
    shape: tuple[int, ...]
    dtype: str
    ranks: Ranks
    hierarchy: tuple[int, ...]
    sbp: tuple[Sbp, ...]
    stage: int


@dataclass(frozen=True)
class BoxingEntry:
    """One inserted step of communication, or a local slice."""

    tensor: str
    """The tensor's name."""
    start: tuple[Sbp, ...] = field(metadata={"name": "from"})
    """Layout before; ``from`` in the file."""
    to: tuple[Sbp, ...]
    """Layout after."""
    kind: BoxingKind
    """What the step does."""
    axis: int | None
    """The mesh axis, for single-axis steps."""
    bytes: int
    """Bytes that the busiest rank sends or copies."""
    rate: Rate
    """How often."""


@dataclass(frozen=True)
class RecomputedOp:
    """An op that is computed again in the backward pass."""

    place: int
    """Its place among the ops of its block that may be computed again."""
    op: str
    """Its name."""


@dataclass(frozen=True)
class RecomputedOps:
    """Ops of blocks that are computed again in the backward pass."""

    blocks: tuple[int, ...]
    """The numbers of the blocks, in the order of the graph over all stages."""
    ops: tuple[RecomputedOp, ...]
    """The ops, in order."""


@dataclass(frozen=True)
class PlannerReport:
    """What the planner reached."""

    status: str
    gap: float
    objective_seconds: float
    bound_seconds: float
    variables: int
    constraints: int
    tied_axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class PipelineReport:
    """A choice of stages and microbatches."""

    stages: int
    microbatches: int
    layers: tuple[int, ...]
    seconds: float
    bound_seconds: float


@dataclass(frozen=True)
class Predicted:
    """What the null device predicts for one step."""

    step_seconds: float
    """Seconds per step."""
    bubble_fraction: float
    """Share of rank time that pipeline stages wait."""
    peak_memory_bytes: tuple[int, ...]
    """Peak bytes of each program's arena."""


@dataclass(frozen=True)
class RankEntry:
    """A rank's part in the plan."""

    program: int


@dataclass(frozen=True)
class Plan:
    """A compiled job."""

    version: int
    name: str
    """The graph's name."""
    world_size: int
    """Number of ranks."""
    mesh: tuple[int, ...]
    """All ranks, row-major."""
    stages: int
    """Number of pipeline stages."""
    microbatches: int
    """Parts of a step's batch."""
    training: bool
    """Whether it trains (updates variables)."""
    options: dict[str, Any]
    """What the plan was compiled with."""
    cluster: dict[str, Any]
    """The machines that it was planned for."""
    graph: tuple[str, ...]
    """The logical graph as the user wrote it, line by line."""
    weights: WeightsSource | None
    """Where the weights of ``weights`` variables come from."""
    tensor_list: tuple[TensorEntry, ...] = field(metadata={"name": "tensors"})
    """Parameters, inputs and activations of the logical graph; ``tensors`` in the file."""
    boxing: tuple[BoxingEntry, ...]
    """Every inserted communication step."""
    planner: PlannerReport
    """What the planner reached."""
    predicted: Predicted
    """What the null device predicts."""
    layouts: tuple[Layout, ...]
    """Layouts that registers refer to."""
    channels: tuple[Channel, ...]
    """Buffered point-to-point exchanges."""
    programs: tuple[Program, ...]
    """What ranks execute."""
    ranks: tuple[RankEntry, ...]
    """The program of each rank."""
    recomputed: tuple[RecomputedOps, ...] = ()
    """The ops that are computed again in the backward pass, where that was the compiler's choice."""
    regathered: bool = False
    """Whether memory was short, so that tensors have a layout of their own for the backward pass."""
    cross_entropy: str = "auto"
    """Whether cross entropy is one op in it, where that was the compiler's choice."""
    padded: bool = False
    """Whether logits, and the weights that make them, lie padded in memory."""
    pipeline: PipelineReport | None = None
    """What the choice of stages and microbatches was made by, where it was the compiler's."""
    seal: str | None = None
    """The digits that graphc has sealed the file with."""

    @cached_property
    def tensors(self) -> dict[str, TensorEntry]:
        """The tensors of the logical graph, by name."""
        return {entry.name: entry for entry in self.tensor_list}

    @cached_property
    def variables(self) -> dict[str, tuple[Variable, Layout]]:
        """The variables of all ranks with their layouts, by name."""
        found = {}
        for program in self.programs:
            for register in program.registers:
                if register.kind.variable is not None:
                    variable = register.kind.variable
                    found[variable.name] = (variable, self.layouts[register.layout])
        return dict(sorted(found.items()))

    def updated_variables(self) -> set[str]:
        """The names of the variables that steps change: parameters that are trained, states, running statistics."""
        found = set()
        for program in self.programs:
            for number in (number for actor in program.actors for number in actor.updates):
                variable = program.registers[number].kind.variable
                if variable is not None:
                    found.add(variable.name)
        return found

    def program_of(self, rank: int) -> Program:
        """What a rank executes."""
        return self.programs[self.ranks[rank].program]

    def learning_rate(self, step: int) -> float | None:
        """The learning rate at a step, from 0; ``None`` without an optimizer."""
        from .learning_rate import factor

        optimizer = self.options.get("optimizer")
        if optimizer is None:
            return None
        return float(optimizer["lr"]) * factor(self.options.get("lr_schedule", "constant"), step)
