"""Gradients of activations are one kernel of PyTorch's, and what they were."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import graphc
from graphc_torch import plan as plans
from graphc_torch.ops import derivatives

ACTIVATIONS = {"gelu": nn.GELU(), "gelu_tanh": nn.GELU("tanh"), "silu": nn.SiLU(), "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid()}


def chains(model: graphc.Parallel) -> list[plans.FusedOp]:
    executor = model.session.executor
    found = [executor.program.actors[action.actor].action.does for action in executor.order]
    return [does for does in found if isinstance(does, plans.FusedOp)]


@pytest.mark.usefixtures("exporter", "command")
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_gradient_is_one_step(name: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), ACTIVATIONS[name], nn.Linear(16, 4))
    batch, loss = (torch.randn(4, 8), torch.randn(4, 4)), nn.MSELoss()
    own: list[float] = []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    model = graphc.parallelize(module, batch, loss=loss, optimizer=optimizer)
    losses = [float(model.step(batch)) for _ in range(5)]
    for _ in losses:
        module.zero_grad()
        value = loss(module(batch[0]), batch[1])
        value.backward()
        torch.optim.SGD(module.parameters(), lr=0.1).step()
        own.append(float(value))
    assert losses == pytest.approx(own, rel=1e-6)
    ops = [step.op for chain in chains(model) for step in derivatives.with_derivatives(chain).steps]
    assert [op["function"] for op in ops if op.name == derivatives.DERIVATIVE] == [name]


def test_steps_that_something_else_reads_stay() -> None:
    """tanh's gradient g (1 - y y) beside y y, which is a result too; and what is nearly it is none."""

    def step(name: str, function: object, *args: tuple[int | None, int | None]) -> plans.FusedStep:
        return plans.FusedStep(plans.Op(name, {"function": function}), tuple(plans.FusedArg(*arg) for arg in args))

    def chain(offset: float) -> plans.FusedOp:
        square, minus = step("binary", "mul", (0, None), (0, None)), step("unary", "neg", (None, 0))
        plus, whole = step("unary", {"offset": offset}, (None, 1)), step("binary", "mul", (1, None), (None, 2))
        return plans.FusedOp((square, minus, plus, whole), (0, 3))

    kept = derivatives.with_derivatives(chain(1.0))
    assert [of.op.name for of in kept.steps] == ["binary", derivatives.DERIVATIVE] and kept.outputs == (0, 1)
    assert derivatives.with_derivatives(chain(1.5)) == chain(1.5)
