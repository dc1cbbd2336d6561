"""Whatever a plan's text says, and whoever has sealed it: an error that is said, or a step; never another exception."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from world import root, sealed

import graphc_torch

HOSTILE = [None, True, -1, 0, 1, 2, 7, 1 << 31, (1 << 64) - 1, 10**30, 0.5, 1e308, "", "x", "nan", "S(9)", "P(max)", "step", [], [[]], {}]
"""What may stand where something else is expected."""


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """All places of a document: a list or an object, and the index or name in it."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in entries:
        yield value, name
        yield from places(item)


def mutate(plan: Any, generator: random.Random) -> str:
    """Changes something: where, and what is there now."""
    parts = [(part, plan[part]) for part in ("layouts", "programs", "ranks", "options", "tensors", "weights")]
    name, part = generator.choice([*parts, *parts[:2] * 4])
    of, at = generator.choice([(plan, name), *places(part)])
    kind = generator.randrange(6)
    if kind == 0:
        del of[at]
    elif kind == 1 and isinstance(of, list):
        of.insert(at, copy.deepcopy(of[at]))
    elif kind == 2 and isinstance(of, list):
        of.reverse()
    elif kind == 3 and type(of[at]) is int:
        of[at] += generator.choice([-64, -1, 1, 64])
    else:
        of[at] = generator.choice(HOSTILE)
    return f"{name}..{at} ({kind}): {repr(of)[:200]}"


def tried(text: str, data: dict[str, torch.Tensor]) -> bool:
    """Whether a plan takes a step."""
    try:
        plan = graphc_torch.parse(text)
        session = graphc_torch.Session(plan, graphc_torch.model_weights(plan), timeout=10)
        session.step({name: data[name][:16] for name in session.inputs if name in data})
    except graphc_torch.GraphcError as error:
        assert str(error).strip()
        return False
    return True


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_brings_the_engine_down(compiled: Callable[..., Path], seed: int) -> None:
    os.chdir(root())
    whole = compiled("mlp", "--mesh", "1", "--microbatches", "2").read_text()
    data = graphc_torch.load_tensors(root() / "tests/refs/mlp/data.safetensors")
    assert tried(whole, data)
    generator, steps, count = random.Random(seed), 0, int(os.environ.get("GRAPHC_MUTATIONS", "100"))
    for number in range(count):
        plan = json.loads(whole)
        said = mutate(plan, generator)
        try:
            steps += tried(sealed(plan), data)
        except Exception as error:
            raise AssertionError(f"mutation {number} of seed {seed}, {said}: {error!r}") from error
    assert steps < count // 2
