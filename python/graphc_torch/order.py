"""The order in which one thread of a rank issues the actions of all of its streams, and where streams must wait for each other.

Streams of a rank begin a step together. What an action waits for on the other stream (what it reads, room for what it makes, whom it
stands behind) follows from the program alone, so both are worked out once. Communication comes as soon as it may.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import PlanError
from .plan import Actor, Program, Rate


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a step."""

    actor: int
    microbatch: int
    stream: int
    """On which stream it is issued."""
    number: int
    """Its place on that stream."""
    waits: int
    """How many actions of the other stream must have ended: 0 where streams know that already."""


def one_order(program: Program) -> list[Action]:
    """All actions of a step.

    Raises:
        PlanError: where streams wait for each other, or there are more than two.
    """
    streams = [stream.actions() for stream in program.streams]
    if len(streams) > 2:
        raise PlanError(f"a program has {len(streams)} streams: at most two are possible")
    if len(streams) < 2:
        alone = enumerate(streams[0] if streams else [])
        return [Action(actor, microbatch, 0, number, 0) for number, (actor, microbatch) in alone]
    return _merged(streams, _needs(program, streams))


def _merged(streams: list[list[tuple[int, int]]], needs: list[list[int]]) -> list[Action]:
    done, known, order = [0, 0], [0, 0], []
    while any(done[stream] < len(streams[stream]) for stream in (0, 1)):
        for stream in (1, 0):
            number = done[stream]
            if number < len(streams[stream]) and needs[stream][number] <= done[1 - stream]:
                break
        else:
            raise PlanError("the two streams of a rank wait for each other")
        needed = needs[stream][number]
        actor, microbatch = streams[stream][number]
        order.append(Action(actor, microbatch, stream, number, needed if needed > known[stream] else 0))
        known[stream] = max(known[stream], needed)
        done[stream] += 1
    return order


def _needs(program: Program, streams: list[list[tuple[int, int]]]) -> list[list[int]]:
    """By stream and action: how many actions of the other stream it waits for."""
    places: list[tuple[int, list[int]]] = [(0, []) for _ in program.actors]
    for stream, actions in enumerate(streams):
        for number, (actor, _) in enumerate(actions):
            places[actor] = (stream, places[actor][1])
            places[actor][1].append(number)
    waits = _waits(program)
    needs = []
    for stream, actions in enumerate(streams):
        of_stream = []
        for actor, microbatch in actions:
            ends = [_end(places[other], stream, which, microbatch) for other, which in waits[actor]]
            of_stream.append(max(ends, default=0))
        needs.append(of_stream)
    return needs


def _end(place: tuple[int, list[int]], stream: int, which: int | None, microbatch: int) -> int:
    """How many actions of another actor's stream end with the one that is waited for; 0 on the same stream."""
    other, numbers = place
    index = len(numbers) - 1 if which is None else microbatch - which
    if other == stream or not 0 <= index < len(numbers):
        return 0
    return numbers[index] + 1


def _waits(program: Program) -> list[list[tuple[int, int | None]]]:
    """By actor: actors that it waits for, and how many microbatches back; ``None``: their last action."""
    producers: dict[int, int] = {}
    readers: list[list[int]] = [[] for _ in program.registers]
    for index, actor in enumerate(program.actors):
        producers.update((output, index) for output in actor.outputs)
        for register in actor.inputs:
            readers[register].append(index)
    return [list(_waits_of(program, actor, producers, readers)) for actor in program.actors]


def _waits_of(program: Program, actor: Actor, producers: dict[int, int], readers: list[list[int]]) -> list[tuple[int, int | None]]:
    repeats = actor.rate is Rate.MICROBATCH
    found: list[tuple[int, int | None]] = []
    for register in actor.inputs:
        each = program.registers[register].rate is Rate.MICROBATCH and repeats
        if register in producers:
            found.append((producers[register], 0 if each else None))
    for output in actor.outputs:
        register_of = program.registers[output]
        if register_of.rate is Rate.MICROBATCH and repeats:
            found.extend((reader, register_of.slots) for reader in readers[output])
    for update in actor.updates:
        found.extend((reader, None) for reader in readers[update])
    if actor.after is not None:
        found.append((actor.after, 0 if repeats else None))
    return found
