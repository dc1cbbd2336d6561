"""Learning rates as functions of the step: the texts of graphc's schedules, e.g. ``warmup:100 cosine:1000``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from .errors import PlanError


@dataclass(frozen=True)
class Schedule:
    """A course of the learning rate, behind a rise where there is one."""

    curve: str
    numbers: tuple[float, ...]
    warmup: int = 0
    """Steps of the rise; 0: there is none."""
    start: float | None = None
    """The part of the rate at step 0."""


def factor(text: str, step: int) -> float:
    """What the base is multiplied by at a step, from 0.

    Raises:
        PlanError: where the text is no schedule.
    """
    schedule = parse(text)
    if schedule.curve == "onecycle":
        return _one_cycle(schedule, step)
    rise = _rise(schedule, step)
    numbers = schedule.numbers
    if schedule.curve == "constant":
        return rise
    if schedule.curve == "step":
        return float(rise * numbers[1] ** (step // max(int(numbers[0]), 1)))
    if schedule.curve == "multistep":
        return float(rise * numbers[-1] ** sum(milestone <= step for milestone in numbers[:-1]))
    if step < schedule.warmup:
        return rise
    floor = numbers[1] if len(numbers) > 1 else 0.0
    share = _share(step - schedule.warmup, int(numbers[0]) - schedule.warmup)
    if schedule.curve == "cosine":
        return floor + (1.0 - floor) * (1.0 + math.cos(math.pi * share)) / 2.0
    return 1.0 - (1.0 - floor) * share


@cache
def parse(text: str) -> Schedule:
    """Reads a schedule."""
    words, warmup, start = text.split(), 0, None
    try:
        if words and words[0].startswith("warmup:"):
            rise = words.pop(0).removeprefix("warmup:").split(",")
            warmup, start = int(rise[0]), float(rise[1]) if len(rise) > 1 else None
        (course,) = words
        curve, _, numbers = course.partition(":")
        values = tuple(float(number) for number in numbers.split(",")) if numbers else ()
    except ValueError as error:
        raise PlanError(f"`{text}` is no schedule of the learning rate: {error}") from error
    least = {"constant": 0, "step": 2, "multistep": 2, "cosine": 1, "linear": 1, "onecycle": 1}
    whole = values[:-1] if curve in ("step", "multistep") else values[:1]
    steps = (*whole, warmup)
    sensible = all(math.isfinite(value) for value in (*values, start or 0.0)) and all(0 <= n < 2**53 and n == int(n) for n in steps)
    if curve not in least or len(values) < least[curve] or not sensible:
        raise PlanError(f"`{text}` is no schedule of the learning rate: they are {', '.join(least)}")
    return Schedule(curve, values, warmup, start)


def _rise(schedule: Schedule, step: int) -> float:
    if step >= schedule.warmup:
        return 1.0
    start = 1.0 / (schedule.warmup + 1.0) if schedule.start is None else schedule.start
    return start + (1.0 - start) * step / schedule.warmup


def _share(done: int, whole: int) -> float:
    return 1.0 if done >= whole else done / whole


def _one_cycle(schedule: Schedule, step: int) -> float:
    steps = int(schedule.numbers[0])
    rise = float(schedule.warmup) if schedule.warmup else 0.3 * steps
    start = 1.0 / 25.0 if schedule.start is None else schedule.start
    top, last = rise - 1.0, float(max(steps - 1, 0))
    at = min(float(step), last)

    def wave(begin: float, end: float, share: float) -> float:
        return end + (begin - end) / 2.0 * (1.0 + math.cos(math.pi * share))

    if at <= top and top > 0.0:
        return wave(start, 1.0, at / top)
    return wave(1.0, start / 1e4, (at - top) / (last - top)) if last > top else 1.0
