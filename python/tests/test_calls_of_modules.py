"""A module that a plan trains is called itself: with the weights of now, or not at all."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from world import run

import graphc

pytestmark = pytest.mark.usefixtures("exporter", "command")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def batch(rank: int = 0) -> Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(rank))


def planned(model: nn.Module, rank: int = 0) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    return graphc.parallelize(model, batch(rank), loss=lambda output, _: output.square().mean(), optimizer=optimizer)


def test_a_module_is_evaluated_with_the_weights_of_now() -> None:
    model = network()
    parallel = planned(model)
    for _ in range(2):
        parallel.step(batch())
    model.eval()
    with torch.inference_mode():
        found = model(batch())
    torch.testing.assert_close(found, parallel.predict(batch()))
    parallel.train()
    parallel.step(batch())
    # So is a part of it.
    model.eval()
    hidden = model[0](batch())  # type: ignore[index]
    state = parallel.state_dict()
    torch.testing.assert_close(hidden, nn.functional.linear(batch(), state["0.weight"], state["0.bias"]))
    parallel.train()
    parallel.step(batch())


def test_a_module_that_is_trained_beside_its_plan_keeps_its_own_weights() -> None:
    model = network()
    parallel = planned(model)
    parallel.step(batch())
    before = model.get_parameter("0.weight").clone()
    with pytest.warns(UserWarning, match=r"its weights are those of before the steps that were made: call update_module\(\) first") as said:
        for _ in range(2):
            model(batch())
    assert len(said) == 1 and torch.equal(model.get_parameter("0.weight"), before)


def test_what_has_nothing_to_do_with_the_plan_is_left_alone() -> None:
    model = network()
    parallel = planned(model)
    parallel.step(batch())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    own = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    assert torch.func.functional_call(model, own, (batch(),)).abs().max() == 0.0
    copied, saved = copy.deepcopy(model), io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    for other in (copied, torch.load(saved, weights_only=False)):
        other.eval()(batch())
        assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())
    # After another plan has taken the module this one has no part in its calls.
    second = planned(model)
    model.eval()(batch())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    second.train()
    second.step(batch())
    model.eval()(batch())
    assert not torch.equal(model.state_dict()["0.weight"], before["0.weight"])


def test_one_of_several_ranks_cannot_have_the_weights_by_itself() -> None:
    def on_two(rank: int) -> str:
        model = network()
        parallel = planned(model, rank)
        parallel.step(batch(rank))
        try:
            model.eval()(batch(rank))
        except graphc.Error as error:
            said = str(error)
        parallel.update_module()
        model(batch(rank))
        return said

    expected = "the module was called, and its weights are those of before the steps that were made: call update_module() on all processes"
    assert all(said.startswith(expected) for said in run(2, on_two))
