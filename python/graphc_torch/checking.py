"""What a plan says by itself: numbers that name something name something that is there, and counts are such as memory and time allow.

graphc proves more (see :mod:`graphc_torch.seal`). This is what the rest of the package takes for granted when it reads a plan, so that
whatever a file says ends in an error with the place in it.
"""

from __future__ import annotations

from collections import Counter

from . import plan as plans
from .errors import PlanError
from .layout import MOST_BYTES, Layout, product
from .learning_rate import factor
from .plan import FINITE, Actor, Channel, Plan, Program, Rate, Register, Stream

DTYPES = {"f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "u8": 1, "bool": 1, "f8e4m3": 1, "f8e5m2": 1}
"""Element types, with their bytes."""

FEW_MICROBATCHES = 1024
"""Microbatches that a plan may have although nothing is done for each of them."""


def check(plan: Plan) -> None:
    """Checks a plan.

    Raises:
        PlanError: for the first thing that does not hold.
    """
    _check_head(plan)
    _check_options(plan)
    for number, layout in enumerate(plan.layouts):
        _check_layout(plan, layout, f"layouts[{number}]")
    for number, channel in enumerate(plan.channels):
        _check_channel(plan, channel, f"channels[{number}]")
    used = {entry.program for entry in plan.ranks}
    for number, program in enumerate(plan.programs):
        _require(number in used, f"programs[{number}]", "no rank runs it")
        _check_program(plan, program, f"programs[{number}]")


def _require(holds: bool, place: str, wrong: str) -> None:
    if not holds:
        raise PlanError(f"{place}: {wrong}")


def _index(index: int, of: tuple[object, ...], place: str) -> None:
    if not 0 <= index < len(of):
        raise PlanError(f"{place} is {index}, and there are {len(of)}")


def _check_head(plan: Plan) -> None:
    if len(plan.ranks) != plan.world_size or plan.world_size < 1:
        raise PlanError(f"it has {len(plan.ranks)} ranks and says that they are {plan.world_size}")
    _require(product(plan.mesh) == plan.world_size, "mesh", f"{list(plan.mesh)} is none of {plan.world_size} ranks")
    most = max((len(stream.order) for program in plan.programs for stream in program.streams), default=0)
    _require(1 <= plan.microbatches <= max(most, FEW_MICROBATCHES), "microbatches", f"is {plan.microbatches}, which no program makes")
    for rank, entry in enumerate(plan.ranks):
        _index(entry.program, plan.programs, f"ranks[{rank}].program")


def _check_options(plan: Plan) -> None:
    """Those options that are looked at here: of a plan that trains they make its lines of metrics and its checkpoints."""
    options = plan.options
    optimizer, metrics, schedule = options.get("optimizer"), options.get("metrics", []), options.get("lr_schedule", "constant")
    named = optimizer is None or (isinstance(optimizer, dict) and isinstance(optimizer.get("name"), str))
    rate = optimizer.get("lr") if isinstance(optimizer, dict) else 0.0
    _require(named and _is_number(rate), "options.optimizer", "it is no optimizer with a name and a number `lr`")
    known = isinstance(metrics, list) and all(isinstance(name, str) for name in metrics)
    _require(known, "options.metrics", "they are a list of names")
    for name in ("precision", "loss"):
        _require(isinstance(options.get(name, ""), str | None), f"options.{name}", "it is a name")
    _require(isinstance(schedule, str), "options.lr_schedule", "it is a text")
    try:
        factor(schedule, 0)
    except ArithmeticError as error:
        raise PlanError(f"options.lr_schedule: `{schedule}` cannot be computed: {error}") from error


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= FINITE


def _check_layout(plan: Plan, layout: Layout, place: str) -> None:
    ranks = layout.ranks.list
    fits = product(layout.hierarchy) == len(ranks) > 0 and len(layout.sbp) == len(layout.hierarchy)
    _require(fits, place, f"ranks, mesh {list(layout.hierarchy)} and layout do not fit each other")
    _require(layout.dtype in DTYPES, place, f"`{layout.dtype}` is no element type")
    if any(rank >= plan.world_size for rank in ranks):
        raise PlanError(f"{place} names a rank that the job lacks")
    _require(len(set(ranks)) == len(ranks), place, "it names a rank twice")
    dims = [sbp.split for sbp in layout.sbp] + [layout.microbatch_dim]
    if any(dim is not None and dim >= len(layout.shape) for dim in dims):
        raise PlanError(f"{place} splits a dim that its tensor {list(layout.shape)} lacks")
    # A dim of extent 0 does not make the others harmless: strides are products of these.
    size = product(max(extent, 1) for extent in layout.shape) * DTYPES[layout.dtype]
    _require(size < MOST_BYTES, place, f"{list(layout.shape)} is larger than any memory")
    dim = layout.microbatch_dim
    divided = dim is None or layout.shape[dim] % plan.microbatches == 0
    _require(divided, place, f"{plan.microbatches} microbatches do not cut dim {dim} of {list(layout.shape)}")


def _check_channel(plan: Plan, channel: Channel, place: str) -> None:
    _index(channel.start, plan.layouts, f"{place}.from")
    _index(channel.to, plan.layouts, f"{place}.to")
    start, to = plan.layouts[channel.start], plan.layouts[channel.to]
    same = (start.shape, start.dtype, start.microbatch_dim) == (to.shape, to.dtype, to.microbatch_dim)
    _require(same, place, "the two layouts are of different tensors")
    # Two steps may be under way.
    most = 2 * (1 if channel.rate is Rate.STEP else plan.microbatches)
    _require(1 <= channel.slots <= most, place, f"it has {channel.slots} slots, of 1 to {most}")


def _check_program(plan: Plan, program: Program, place: str) -> None:
    _require(bool(program.streams), place, "it has no stream")
    for number, register in enumerate(program.registers):
        _check_register(plan, program, register, f"{place}.registers[{number}]")
    needed = max((register.offset + register.slots * register.slot_bytes for register in program.registers), default=0)
    most = -(-needed // 64) * 64
    _require(program.arena_bytes <= most, place, f"its arena has {program.arena_bytes} bytes, its registers need {needed}")
    for number, actor in enumerate(program.actors):
        _check_actor(plan, program, actor, f"{place}.actors[{number}]")
    _check_fills(program, place)
    for number, stream in enumerate(program.streams):
        _check_stream(plan, program, stream, f"{place}.streams[{number}]")
    stands = Counter(actor for stream in program.streams for block in stream.blocks for actor in block)
    for number, actor in enumerate(program.actors):
        _require(stands[number] == 1, f"{place}.actors[{number}]", f"`{actor.name}` stands {stands[number]} times in blocks")


def _check_register(plan: Plan, program: Program, register: Register, place: str) -> None:
    _index(register.layout, plan.layouts, f"{place}.layout")
    layout = plan.layouts[register.layout]
    _require(len(register.shape) == len(layout.shape), place, f"its shape is {list(register.shape)}, its tensor's {list(layout.shape)}")
    size = product(register.shape) * DTYPES[layout.dtype]
    variable = register.kind.variable is not None
    most = 1 if variable or register.rate is Rate.STEP else plan.microbatches
    _require(1 <= register.slots <= most, place, f"it has {register.slots} slots, of 1 to {most}")
    _require(not variable or register.rate is Rate.STEP, place, "it is a variable, but not kept for the step")
    aligned = register.offset % 64 == 0 and register.slot_bytes % 64 == 0 and register.slot_bytes >= size
    last = register.offset + register.slots * register.slot_bytes
    if not aligned or last > program.arena_bytes:
        raise PlanError(f"{place} (`{register.name}`) does not fit into the arena of {program.arena_bytes} bytes")


COUNTS: dict[type, tuple[int, int, int]] = {
    plans.Local: (1, 1, 0),
    plans.Send: (1, 0, 0),
    plans.Receive: (0, 1, 0),
    plans.Accumulate: (1, 1, 0),
    plans.Assign: (1, 0, 1),
    plans.Feed: (0, 1, 0),
    plans.Fetch: (1, 0, 0),
}
"""Inputs, outputs and updates of the actions that have the same number of them always."""


def _check_actor(plan: Plan, program: Program, actor: Actor, place: str) -> None:
    for register in actor.inputs + actor.outputs + actor.updates:
        _index(register, program.registers, f"{place}, a register")
    if actor.after is not None:
        _index(actor.after, program.actors, f"{place}.after")
    does = actor.action.does
    if isinstance(does, plans.Send | plans.Receive):
        _index(does.channel, plan.channels, f"{place}, its channel")
    found = len(actor.inputs), len(actor.outputs), len(actor.updates)
    if isinstance(does, plans.Collective):
        expected = len(actor.inputs), len(actor.inputs), 0
        _require(found == expected and bool(actor.inputs), place, "a collective has one output for each input")
    elif isinstance(does, plans.Compute):
        known = all(-len(actor.updates) <= operand < len(actor.inputs) for operand in does.operands)
        _require(known, place, "an operand is neither an input nor an update")
    elif type(does) in COUNTS:
        said = "it cannot have {} inputs, {} outputs and {} updates".format(*found)
        _require(found == COUNTS[type(does)], place, said)


def _check_fills(program: Program, place: str) -> None:
    """Every activation is filled by one actor, every variable updated by one at most."""
    fills = Counter(register for actor in program.actors for register in actor.outputs)
    updates = Counter(register for actor in program.actors for register in actor.updates)
    for number, register in enumerate(program.registers):
        variable = register.kind.variable is not None
        holds = (fills[number] == 0 and updates[number] <= 1) if variable else (fills[number], updates[number]) == (1, 0)
        said = f"{fills[number]} actors fill it and {updates[number]} update it"
        _require(holds, f"{place}.registers[{number}]", said)


def _check_stream(plan: Plan, program: Program, stream: Stream, place: str) -> None:
    """Blocks run once a step, or once for each microbatch, in order."""
    runs: list[list[int]] = [[] for _ in stream.blocks]
    for item in stream.order:
        _index(item.block, stream.blocks, f"{place}, a block of the order")
        runs[item.block].append(item.microbatch)
    for number, block in enumerate(stream.blocks):
        at = f"{place}.blocks[{number}]"
        for actor in block:
            _index(actor, program.actors, f"{at}, an actor")
        rates = {program.actors[actor].rate for actor in block}
        _require(len(rates) == 1, at, "it is empty, or its actors are of several rates")
        times = 1 if rates == {Rate.STEP} else plan.microbatches
        _require(runs[number] == list(range(times)), at, f"it runs for microbatches {runs[number][:16]} .. of 0..{times}")
