"""Plans from files: the version, the form, and whether what names something names something that is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import PlanError
from .layout import Layout
from .plan import Plan, Program, Receive, Register, Send, Stream
from .schema import Number, decode

VERSION = 3
"""The version of plans that this package reads."""

DTYPES = {"f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "u8": 1, "bool": 1}
"""Element types, with their bytes."""


def load(path: str | Path) -> Plan:
    """Reads a plan from a file.

    Raises:
        PlanError: where it cannot be read, is of another version, or does not hold together.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"cannot read the plan {path}: {error}") from error
    try:
        return parse(text)
    except PlanError as error:
        raise PlanError(f"the plan {path} cannot be used: {error}") from error


def parse(text: str) -> Plan:
    """Reads a plan from its text.

    Raises:
        PlanError: where it is no plan of this version, or does not hold together.
    """
    try:
        value = json.loads(text, parse_float=Number)
    except json.JSONDecodeError as error:
        raise PlanError(f"it is no JSON: {error}") from error
    if not isinstance(value, dict) or "version" not in value:
        raise PlanError("it has no version: is it a plan that graphc compile has written?")
    if value["version"] != VERSION:
        reads = f"this package reads version {VERSION}"
        raise PlanError(f"it has version {value['version']}, {reads}: compile the model again with the graphc of this package")
    plan: Plan = decode(Plan, value, "plan")
    check(plan)
    return plan


def check(plan: Plan) -> None:
    """Checks that numbers which name something name something that is there.

    Raises:
        PlanError: for the first that does not.
    """
    if len(plan.ranks) != plan.world_size or plan.world_size < 1:
        raise PlanError(f"it has {len(plan.ranks)} ranks and says that they are {plan.world_size}")
    for rank, entry in enumerate(plan.ranks):
        _index(entry.program, plan.programs, f"ranks[{rank}].program")
    for number, layout in enumerate(plan.layouts):
        _check_layout(plan, layout, f"layouts[{number}]")
    for number, channel in enumerate(plan.channels):
        _index(channel.start, plan.layouts, f"channels[{number}].from")
        _index(channel.to, plan.layouts, f"channels[{number}].to")
    for number, program in enumerate(plan.programs):
        _check_program(plan, program, f"programs[{number}]")


def _index(index: int, of: tuple[Any, ...], place: str) -> None:
    if not 0 <= index < len(of):
        raise PlanError(f"{place} is {index}, and there are {len(of)}")


def _check_layout(plan: Plan, layout: Layout, place: str) -> None:
    size = 1
    for extent in layout.hierarchy:
        size *= extent
    if size != len(layout.ranks.list) or len(layout.sbp) != len(layout.hierarchy):
        raise PlanError(f"{place}: ranks, mesh {list(layout.hierarchy)} and layout do not fit each other")
    if layout.dtype not in DTYPES:
        raise PlanError(f"{place}: `{layout.dtype}` is no element type")
    if any(not 0 <= rank < plan.world_size for rank in layout.ranks.list):
        raise PlanError(f"{place} names a rank that the job lacks")
    dims = [sbp.split for sbp in layout.sbp] + [layout.microbatch_dim]
    if any(dim is not None and not 0 <= dim < len(layout.shape) for dim in dims):
        raise PlanError(f"{place} splits a dim that its tensor {list(layout.shape)} lacks")


def _check_program(plan: Plan, program: Program, place: str) -> None:
    for number, register in enumerate(program.registers):
        _check_register(plan, program, register, f"{place}.registers[{number}]")
    for number, actor in enumerate(program.actors):
        at = f"{place}.actors[{number}]"
        for register_id in actor.inputs + actor.outputs + actor.updates:
            _index(register_id, program.registers, f"{at}, a register")
        if actor.after is not None:
            _index(actor.after, program.actors, f"{at}.after")
        if isinstance(actor.action.does, Send | Receive):
            _index(actor.action.does.channel, plan.channels, f"{at}, its channel")
    for number, stream in enumerate(program.streams):
        _check_stream(plan, program, stream, f"{place}.streams[{number}]")


def _check_register(plan: Plan, program: Program, register: Register, place: str) -> None:
    _index(register.layout, plan.layouts, f"{place}.layout")
    size = DTYPES[plan.layouts[register.layout].dtype]
    for extent in register.shape:
        size *= extent
    last = register.offset + (max(register.slots, 1) - 1) * register.slot_bytes + size
    if register.offset < 0 or register.offset % 64 or register.slot_bytes % 64 or last > program.arena_bytes:
        raise PlanError(f"{place} (`{register.name}`) does not fit into the arena of {program.arena_bytes} bytes")


def _check_stream(plan: Plan, program: Program, stream: Stream, place: str) -> None:
    for block in stream.blocks:
        for actor in block:
            _index(actor, program.actors, f"{place}, an actor of a block")
    for item in stream.order:
        _index(item.block, stream.blocks, f"{place}, a block of the order")
        if not 0 <= item.microbatch < max(plan.microbatches, 1):
            raise PlanError(f"{place} names microbatch {item.microbatch} of {plan.microbatches}")
