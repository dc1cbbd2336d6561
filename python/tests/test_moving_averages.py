"""Models that write to frozen parameters and buffers as they go, as teachers follow their students: losses and states beside PyTorch's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_capture import BATCH
from test_gradients import refuse
from torch import Tensor, nn

import graphc
from graphc.parallel.capture import IS_EARLY

pytestmark = pytest.mark.usefixtures("exporter", "command")


class Teaching(nn.Module):
    """A student, and a teacher that no optimizer changes."""

    def __init__(self, follow: Callable[[Any], None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.student, self.teacher = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("center", torch.zeros(4))
        self.follow = follow

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.follow(self)
        taught = self.teacher(x) - self.center
        self.center.data = 0.9 * self.center + taught.mean(0)
        return F.mse_loss(self.student(x), taught)


def replaces_data(model: Teaching) -> None:
    for own, other in zip(model.student.parameters(), model.teacher.parameters(), strict=True):
        other.data = other.data * 0.7 + own.data * 0.3


def writes_to_data(model: Teaching) -> None:
    for own, other in zip(model.student.parameters(), model.teacher.parameters(), strict=True):
        other.data.mul_(0.7).add_(0.3 * own.detach().data)


def writes_in_place(model: Teaching) -> None:
    for own, other in zip(model.student.parameters(), model.teacher.parameters(), strict=True):
        other.mul_(0.7).add_(own, alpha=0.3)


def converts_to_the_same(model: Teaching) -> None:
    model.student.weight.data = model.student.weight.data.to(torch.float32)


@pytest.mark.parametrize("follow", [replaces_data, writes_to_data, writes_in_place, converts_to_the_same])
def test_frozen_parameters_follow_as_they_do_in_pytorch(follow: Callable[[Any], None]) -> None:
    model = Teaching(follow)
    if IS_EARLY and follow is not converts_to_the_same:
        refuse(
            model, "writes to a parameter, and PyTorch before 2.7 captures no frozen ones that change: update it, or let them be buffers"
        )
        return
    plain = copy.deepcopy(model)
    optimizer, expected = torch.optim.SGD(plain.parameters(), lr=0.1), []
    for _ in range(4):
        optimizer.zero_grad()
        loss = plain(BATCH)
        torch.autograd.backward(loss)
        optimizer.step()
        expected.append(float(loss.detach()))
    parallel = graphc.parallelize(model, BATCH, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert [float(parallel.step(BATCH)) for _ in range(4)] == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(parallel.state_dict(), dict(plain.state_dict()))


def normalizes_the_weight(model: Teaching) -> None:
    model.student.weight.data = F.normalize(model.student.weight.data)


def grows_the_center(model: Teaching) -> None:
    model.center.data = torch.zeros(2, 4)


@pytest.mark.parametrize(
    ("follow", "said"),
    [
        (normalizes_the_weight, "the model puts other numbers into a parameter, which the optimizer changes: compute with a changed copy"),
        (grows_the_center, r"the model puts torch.float32\[2, 4\] in the place of the data of a tensor that is torch.float32\[4\]"),
    ],
)
def test_data_that_a_plan_cannot_replace_is_refused(follow: Callable[[Any], None], said: str) -> None:
    refuse(Teaching(follow), said)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        x.data = x.data * 2.0
        return x.square().mean()


def test_numbers_under_which_a_gradient_stays_as_it_was_are_refused() -> None:
    refuse(Scaled(), r"puts other numbers into a tensor \(`x.data = ..`\) whose gradient stays as it was: compute a new tensor")
