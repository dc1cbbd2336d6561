"""Gradients of modules where a function has no derivative: each is the one that PyTorch gives."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphc

pytestmark = pytest.mark.usefixtures("exporter", "command")

POINTS = [-6.0, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0]
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp by tensors": lambda x: torch.clamp(x, torch.full_like(x, -0.5), torch.full_like(x, 3.0)),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "selu": F.selu,
    "celu": F.celu,
    "softplus": F.softplus,
    "mish": F.mish,
    "softplus far from 0": lambda x: F.softplus(50.0 * x),
    "softplus with a threshold": lambda x: F.softplus(x, beta=2.0, threshold=1.0),
    "mish far from 0": lambda x: F.mish(50.0 * x),
    "celu far from 0": lambda x: F.celu(50.0 * x, 0.7),
    "logarithm that is weighed": lambda x: torch.xlogy(x, torch.full_like(x, 2.0)) + torch.special.xlog1py(x, torch.full_like(x, 3.0)),
    "norm of an order below 1": lambda x: x + torch.linalg.vector_norm(x.clamp(0.0, 2.0), 0.5, -1, True),
    "softshrink": F.softshrink,
    "maximum": lambda x: torch.maximum(x, torch.full_like(x, 0.5)) + torch.minimum(torch.full_like(x, 3.0), x),
    "greater that is a number": lambda x: torch.fmax(torch.full_like(x, 0.5), x) + torch.fmin(x, torch.full_like(x, 3.0)),
    "beside what is no number": lambda x: torch.fmin(x.where(x > 0, torch.nan), 0 * x) + torch.fmax(x, x.detach() * torch.nan),
    "binary cross entropy": lambda x: F.binary_cross_entropy(x.clamp(0, 1), (x > 0.7).float(), reduction="none"),
    "deviation of what is alike": lambda x: x + (x - x.detach()).std(),
    "deviation and mean of what is alike": lambda x: x + torch.cat(torch.std_mean(x - x.detach(), -1, keepdim=True)).sum(0),
    "median of what is alike": lambda x: x + (x - x.detach()).median(),
    "greatest distance of what is alike": lambda x: x + torch.cdist(x - x.detach() + 1.0, torch.zeros_like(x), math.inf),
    "greatest distance of two": lambda x: x + F.pdist(torch.cat([x - x.detach(), torch.ones_like(x)]), math.inf),
}


class Kinks(nn.Module):
    """Each function of a row of weights, which begin where it may have no derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([POINTS] * len(FUNCTIONS)))

    def forward(self, x: Tensor) -> Tensor:
        rows = [function(row + x) for row, function in zip(self.w.unbind(0), FUNCTIONS.values(), strict=True)]
        return torch.stack(rows, 1)


def test_gradients_at_kinks_are_those_of_pytorch() -> None:
    model, x = Kinks(), torch.zeros(1, len(POINTS))
    expected = copy.deepcopy(model)
    expected(x).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    parallel = graphc.parallelize(model, x, loss=lambda y, batch: y.sum(), optimizer=optimizer)
    before = model.w.detach().clone()
    parallel.step(x)
    found = before - parallel.state_dict()["w"]
    assert expected.w.grad is not None
    # What PyTorch has for hardswish at -3 and 3 depends on its version.
    ends = torch.tensor(POINTS).abs() == 3.0
    row = list(FUNCTIONS).index("hardswish")
    found[row, ends] = expected.w.grad[row, ends]
    for name, mine, right in zip(FUNCTIONS, found, expected.w.grad, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-6, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


FLAT: dict[str, Callable[[Tensor], Tensor]] = {
    "round": torch.round,
    "round to decimals": lambda x: torch.round(x, decimals=1),
    "round to tens": lambda x: torch.round(100.0 * x, decimals=-1),
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "sign": torch.sign,
    "quotient": lambda x: torch.div(x, 0.3, rounding_mode="floor"),
    "divisor": lambda x: torch.div(3.0, x, rounding_mode="trunc"),
    "power of 0": lambda x: x**0,
}


class Flat(nn.Module):
    """Functions of weights whose gradient is 0 wherever there is one; no gradient goes to the last row."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.ParameterList([nn.Parameter(torch.linspace(0.26, 0.97, 4)) for _ in range(len(FLAT) + 1)])

    def forward(self, x: Tensor) -> Tensor:
        *rows, last = self.rows
        found = [function(row) for row, function in zip(rows, FLAT.values(), strict=True)]
        return (torch.stack([*found, last.detach().round()]) * x).sum(1)


def test_weights_behind_flat_functions_decay_as_in_pytorch() -> None:
    x = torch.tensor([[1.0, -0.5, 0.25, 2.0]])

    def begun() -> tuple[Flat, torch.optim.Optimizer]:
        model = Flat()
        return model, torch.optim.AdamW(model.parameters(), lr=0.5, weight_decay=0.5)

    (plain, own), (model, optimizer) = begun(), begun()
    parallel = graphc.parallelize(model, x, loss=lambda y, batch: (y * torch.arange(1.0, len(FLAT) + 2)).mean(), optimizer=optimizer)
    for _ in range(3):
        own.zero_grad()
        loss = (plain(x) * torch.arange(1.0, len(FLAT) + 2)).mean()
        loss.backward()
        own.step()
        assert float(parallel.step(x)) == pytest.approx(loss.item(), abs=1e-5)
    state = parallel.state_dict()
    for name, key in zip([*FLAT, "detached"], plain.state_dict(), strict=True):
        torch.testing.assert_close(state[key], plain.state_dict()[key], msg=lambda text, name=name: f"{name}: {text}")
