"""Random plans give what the oracle of graphc says: each op, each kind of boxing, each way of training."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from world import root, run

import graphc_torch
from graphc_torch import direct, neighbours
from graphc_torch import plan as plans
from graphc_torch.ops import TABLE
from graphc_torch.random import Stream, key_of


def numbered(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"), key=lambda path: int(path.stem))


def wrong(path: Path, plan: graphc_torch.Plan) -> list[str]:
    """What differs from what is expected; a plan that trains takes three steps."""
    file = path.with_suffix(".safetensors")
    tensors = graphc_torch.load_tensors(file)
    session = graphc_torch.Session(plan, {}, seed=11, first_step=2, timeout=60)
    feeds = {name[3:]: tensor for name, tensor in tensors.items() if name.startswith("in.")}
    for _ in range(3 if plan.training else 1):
        outputs = session.step(feeds)
    found = {f"out.{name}": tensor for name, tensor in outputs.items()}
    found.update({name: session.variable(name[4:]) for name in tensors if name.startswith("var.")})
    half = bool(plan.options.get("precision"))
    pairs = [(name, found[name], tensor) for name, tensor in tensors.items() if not name.startswith("in.")]
    return [f"{path.name} on {plan.world_size}: {name}" for name, a, b in pairs if not close(a, b, 5e-3 if half else 2e-5)]


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    a, b = found.double(), expected.double()
    finite = b[b.isfinite()].abs()
    scale = max(1.0, float(finite.max()) if finite.numel() else 1.0)
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


@pytest.mark.parametrize(
    ("world", "way"),
    [(1, "alone"), *((world, way) for world in (2, 3, 4) for way in ("memory", "shares")), (2, "messages"), (4, "messages")],
)
def test_plans_give_what_the_oracle_says(random_plans: Path, world: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, or with the memory of the others: whole or, as all-reduces of much are, in shares; or by messages, as between machines."""
    monkeypatch.setenv(neighbours.SWITCH, "0" if way == "messages" else "1")
    monkeypatch.setattr(direct, "FEW_BYTES", 0 if way == "shares" else direct.FEW_BYTES)
    loaded = [(path, graphc_torch.load(path)) for path in numbered(random_plans)]
    own = [(path, plan) for path, plan in loaded if plan.world_size == world]
    assert len(own) >= len(loaded) // 8

    def work(_rank: int) -> list[str]:
        return [entry for path, plan in own for entry in wrong(path, plan)]

    assert run(world, work) == [[]] * world


def test_every_op_and_every_kind_of_boxing_is_covered(random_plans: Path) -> None:
    """By plans, and by the list of ops in docs/plan.md, which follows graphc's source."""
    ops, kinds, actions = set(), set(), set()
    for path in numbered(random_plans):
        for program in graphc_torch.load(path).programs:
            for actor in program.actors:
                does = actor.action.does
                actions.add(type(does))
                if isinstance(does, plans.Compute):
                    ops.add(does.op.name)
                elif isinstance(does, plans.FusedOp):
                    ops.update(step.op.name for step in does.steps)
                elif isinstance(does, plans.Collective | plans.Local):
                    kinds.add(does.kind)
                elif isinstance(does, plans.Send):
                    kinds.add(plans.BoxingKind.SEND_RECV)
    assert kinds == set(plans.BoxingKind)
    assert actions >= set(plans.ACTIONS.values()) - {plans.Assign}
    known = documented()
    never = {"input", "variable", "batch_norm", "batch_norm_training", "custom"}
    assert set(TABLE) == known - never
    # What only says in which layout a tensor is taken is no actor.
    assert known - never - ops <= {"regather", "to_global"}


def documented() -> set[str]:
    schema = json.loads((root() / "docs/plan.schema.json").read_text())
    names: set[str] = set(schema["$defs"]["Op"]["properties"]["op"]["enum"])
    text = (root() / "docs/plan.md").read_text()
    assert names == set(re.findall(r"^#### `(\w+)`", text, re.MULTILINE))
    return names


def test_random_numbers_are_those_of_graphc(random_plans: Path) -> None:
    expected = graphc_torch.load_tensors(random_plans / "random.safetensors")
    stream = Stream(0x1234_5678_9ABC_DEF0, key_of("w"), (1 << 33) + 5)
    elements = torch.arange((1 << 32) - 2048, (1 << 32) + 2048)
    assert torch.equal(torch.stack(stream.words(elements), 1), expected["words"])
    assert torch.equal(stream.uniform(elements), expected["uniform"])
    assert torch.equal(stream.integers(elements) < -int(-0.3 * 2**24 // 1), expected["dropped"])
    bits = [normal.view(torch.int32).long() for normal in (stream.normal(elements), expected["normal"])]
    assert int((bits[0] - bits[1]).abs().max()) <= 1
