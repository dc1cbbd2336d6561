"""Gradients of modules where a function has no derivative: each is the one that PyTorch gives."""

from __future__ import annotations

import copy
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
    "softshrink": F.softshrink,
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
