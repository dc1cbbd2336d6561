"""Optimizers whose step is composed of ops: they train as in PyTorch, and their states go there and come from there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from world import run

import graphc
from graphc_torch import executor
from graphc_torch.averages import Averages, find_averages
from graphc_torch.ops import base

pytestmark = pytest.mark.usefixtures("exporter", "command")

Batch = tuple[Tensor, Tensor]


class Lion(torch.optim.Optimizer):
    """Lion as its authors write it."""

    def __init__(self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in (parameter for parameter in group["params"] if parameter.grad is not None):
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                mean = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
                parameter.add_(mean.lerp(parameter.grad, 1 - first).sign(), alpha=-group["lr"])
                mean.lerp_(parameter.grad, 1 - second)


class FixedAdafactor(torch.optim.Optimizer):
    """Adafactor as transformers has it with ``relative_step=False``."""

    def __init__(self, params: Any, **options: Any) -> None:
        usual = {"eps": (1e-30, 1e-3), "clip_threshold": 1.0, "decay_rate": -0.8, "beta1": None, "weight_decay": 0.0}
        super().__init__(params, {**usual, "scale_parameter": True, "relative_step": False, "warmup_init": False, **options})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group, parameter in [(each, parameter) for each in self.param_groups for parameter in each["params"]]:
            state, size = self.state[parameter], rms(parameter)
            state["step"] = int(state.get("step", 0)) + 1
            rate = group["lr"] * (max(group["eps"][1], size) if group["scale_parameter"] else 1.0)
            square, share = parameter.grad**2 + group["eps"][0], state["step"] ** group["decay_rate"]
            means = {"exp_avg_sq": square}
            if parameter.dim() > 1:
                means = {"exp_avg_sq_row": square.mean(-1), "exp_avg_sq_col": square.mean(-2)}
            for name, mean in means.items():
                state.setdefault(name, torch.zeros_like(mean)).lerp_(mean, share)
            if parameter.dim() > 1:
                row, column = state["exp_avg_sq_row"], state["exp_avg_sq_col"]
                moment = (row / row.mean(-1, keepdim=True)).unsqueeze(-1) * column.unsqueeze(-2)
            else:
                moment = state["exp_avg_sq"]
            update = parameter.grad * moment.rsqrt()
            update /= max(1.0, rms(update) / group["clip_threshold"])
            parameter.mul_(1.0 - rate * group["weight_decay"]).add_(update, alpha=-rate)


FixedAdafactor.__name__ = "Adafactor"


def rms(x: Tensor) -> float:
    return float(x.norm()) / math.sqrt(x.numel())


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.LayerNorm(12), nn.Linear(12, 3))


def batches(count: int, rows: int = 8) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, rows, 6, generator=generator)
    return [(row, row[:, :3].argmax(1)) for row in inputs]


def loss_of(output: Tensor, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(output, batch[1])


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, found: list[Batch]) -> list[float]:
    losses = []
    for batch in found:
        loss = loss_of(model(batch[0]), batch)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def planned(model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> Any:
    return graphc.parallelize(model, batches(1)[0], loss=loss_of, optimizer=optimizer, **options)


def steps(parallel: Any, found: list[Batch]) -> list[float]:
    return [parallel.step(batch).item() for batch in found]


Make = Callable[[Any], torch.optim.Optimizer]

KINDS: dict[str, Make] = {
    "dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.4, weight_decay=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.02, amsgrad=True, betas=(0.8, 0.9), weight_decay=0.01),
    "amsgrad-decoupled": lambda p: torch.optim.AdamW(p, lr=0.02, amsgrad=True, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.01, weight_decay=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0, rho=0.8, weight_decay=0.01),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.02, weight_decay=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.02, weight_decay=0.01, decoupled_weight_decay=True),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.02, weight_decay=0.01),
    "lion": lambda p: Lion(p, lr=0.01, weight_decay=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.6, weight_decay=0.1),
    "adafactor-fixed": lambda p: FixedAdafactor(p, lr=0.1, weight_decay=0.1),
    "adafactor-unscaled": lambda p: FixedAdafactor(p, lr=0.02, weight_decay=0.1, scale_parameter=False, clip_threshold=0.5),
    "maximize": lambda p: torch.optim.AdamW(p, lr=0.001, maximize=True),
}


GO_ON = ("dampening", "amsgrad", "adagrad", "nadam", "adafactor", "adafactor-fixed")
"""Those of which states are passed on: they have all kinds of states."""


SLOW = ("amsgrad-decoupled", "adadelta", "adamax", "adafactor-unscaled")
"""Those whose parts others have too."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in KINDS])
def test_steps_and_states_are_those_of_pytorch(name: str) -> None:
    make, rows = KINDS[name], batches(10)
    model, other = network(), network()
    optimizer, another = make(model.parameters()), make(other.parameters())
    parallel = planned(model, optimizer)
    for part in (rows[:4], rows[4:6]):
        assert steps(parallel, part) == pytest.approx(by_hand(other, another, part), abs=1e-5)
        # Rates are read at each step.
        for each in (optimizer, another):
            each.param_groups[0]["lr"] *= 0.5
    if name not in GO_ON:
        return
    # PyTorch goes on with what a plan has kept, and a plan with what PyTorch has.
    parallel.update_module()
    optimizer.load_state_dict(parallel.optimizer_state_dict())
    assert by_hand(model, optimizer, rows[6:8]) == pytest.approx(by_hand(other, another, rows[6:8]), abs=1e-5)
    parallel = planned(model, optimizer)
    assert steps(parallel, rows[8:]) == pytest.approx(by_hand(other, another, rows[8:]), abs=1e-5)
    parallel.load_optimizer_state_dict(another.state_dict())


@pytest.mark.parametrize("name", ["nadam", "adagrad"])
def test_updates_in_blocks_and_averages_of_chains_have_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Averages] = []

    def trained(*averages: Averages) -> list[Tensor]:
        def found(*given: Any) -> Averages:
            seen.append(averages[0] if averages else find_averages(*given))
            return seen[-1]

        monkeypatch.setattr(executor, "find_averages", found)
        model = network()
        optimizer = KINDS[name](model.parameters())
        parallel = planned(model, optimizer)
        steps(parallel, batches(3))
        parallel.update_module()
        states = parallel.optimizer_state_dict()["state"].values()
        return [*(parameter.detach() for parameter in model.parameters()), *(part for entry in states for part in entry.values())]

    usual = trained()
    # Each average of a weight is written by the chain that makes it.
    assert len(seen[0].done) >= len(list(network().parameters()))
    monkeypatch.setattr(base, "BLOCK", 64)
    for found in (trained(), trained(Averages())):
        assert all(torch.equal(a, b) for a, b in zip(usual, found, strict=True))


@pytest.mark.parametrize(
    ("mesh", "strategy", "kind"),
    [
        ((2,), "zero1", "nadam"),
        pytest.param((2, 2), "auto", "nadam", marks=pytest.mark.slow),
        ((2,), "zero3", "adafactor"),
        ((2, 2), "auto", "adafactor"),
        *(pytest.param((2,), strategy, "adafactor", marks=pytest.mark.slow) for strategy in ("data", "zero1", "zero2")),
        pytest.param((2, 2), "megatron", "adafactor-fixed", marks=pytest.mark.slow),
    ],
)
def test_ranks_train_alike(mesh: tuple[int, ...], strategy: str, kind: str) -> None:
    world = math.prod(mesh)

    def on_rank(rank: int) -> list[float]:
        model, count = network(), 8 // world
        rows = [(x[rank * count :][:count], y[rank * count :][:count]) for x, y in batches(10)]
        optimizer = KINDS[kind](model.parameters())
        parallel = graphc.parallelize(model, rows[0], loss=loss_of, optimizer=optimizer, mesh=mesh, strategy=strategy, max_norm=0.5)
        return steps(parallel, rows)

    model = network()
    optimizer = KINDS[kind](model.parameters())
    hook = optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(model.parameters(), 0.5) and None)
    expected = by_hand(model, optimizer, batches(10))
    hook.remove()
    for found in run(world, on_rank):
        assert found == pytest.approx(expected, abs=1e-5)


def freeze(model: nn.Module, frozen: bool = True) -> None:
    for parameter in model[0].parameters():  # type: ignore[index]
        parameter.requires_grad_(not frozen)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, pytest.param(torch.optim.RAdam, marks=pytest.mark.slow)])
def test_layers_that_are_unfrozen_late_count_their_own_steps(kind: Any) -> None:
    rows, models = batches(12), (network(), network())
    own, others = (kind(model.parameters(), lr=0.02, weight_decay=0.01) for model in models)
    model, other = models
    for each in models:
        freeze(each)
    parallel = planned(model, own)
    assert steps(parallel, rows[:3]) == pytest.approx(by_hand(other, others, rows[:3]), abs=1e-5)
    parallel.update_module()
    own.load_state_dict(parallel.optimizer_state_dict())
    for each in models:
        freeze(each, False)
    parallel = planned(model, own)
    assert steps(parallel, rows[3:6]) == pytest.approx(by_hand(other, others, rows[3:6]), abs=1e-5)
    # Batches of another shape have a plan that counts as the first one does.
    wider = batches(2, 12)
    assert steps(parallel, wider) == pytest.approx(by_hand(other, others, wider), abs=1e-5)
    state = parallel.optimizer_state_dict()
    assert {int(entry["step"]) for entry in state["state"].values()} == {5, 8}
    parallel.update_module()
    own.load_state_dict(state)
    assert by_hand(model, own, rows[6:8]) == pytest.approx(by_hand(other, others, rows[6:8]), abs=1e-5)
    # What a plan with one number for all cannot take is refused, with what to do.
    fresh = network()
    even = planned(fresh, kind(fresh.parameters(), lr=0.02))
    with pytest.raises(graphc.Error, match=r"has had 7 steps and `.*` 10, and the plan has one number for all: load the state into"):
        even.load_optimizer_state_dict(own.state_dict())


def test_what_is_part_of_the_plan_is_not_changed_unseen() -> None:
    model = network()
    optimizer = KINDS["amsgrad"](model.parameters())
    parallel = planned(model, optimizer)
    steps(parallel, batches(1))
    for name, value in (("weight_decay", 0.5), ("betas", (0.5, 0.5)), ("maximize", True), ("amsgrad", False)):
        before = optimizer.param_groups[0][name]
        optimizer.param_groups[0][name] = value
        with pytest.raises(graphc.Error, match=r"the optimizer's .* was .* and is .*, but it is part of the plan: give it to parallelize"):
            steps(parallel, batches(1))
        optimizer.param_groups[0][name] = before
    steps(parallel, batches(1))


def test_what_no_plan_has_is_refused() -> None:
    model = network()
    mixed = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[3].parameters(), "momentum": 0.9}], lr=0.1)  # type: ignore[index]
    with pytest.raises(graphc.Error, match="groups of parameters differ in momentum"):
        planned(model, mixed)
    lion = Lion(model.parameters())
    lion.param_groups[0]["caution"] = True
    with pytest.raises(graphc.Error, match="graphc has no optimizer with caution: leave it out"):
        planned(model, lion)
    with pytest.raises(graphc.Error, match="rate that is given alone: say lr and relative_step=False"):
        planned(model, FixedAdafactor(model.parameters(), lr=None, relative_step=True))
    with pytest.raises(graphc.Error, match="no Adafactor with beta1"):
        planned(model, FixedAdafactor(model.parameters(), lr=0.1, beta1=0.9))
    with pytest.raises(graphc.Error, match=r"takes no optimizer ASGD: use torch\.optim's SGD, RMSprop, .* or Muon, or Lion"):
        planned(model, torch.optim.ASGD(model.parameters()))
