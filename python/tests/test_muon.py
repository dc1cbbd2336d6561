"""Muon for matrices and AdamW for all else, as two optimizers of one model: they train as in PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from world import run

import graphc

pytestmark = pytest.mark.usefixtures("exporter", "command")

Batch = tuple[Tensor, Tensor]


class Muon(torch.optim.Optimizer):
    """Muon with the options of PyTorch's, whose products are of the parameters' type, not of bfloat16."""

    def __init__(self, params: Any, lr: float = 0.02, adjust_lr_fn: str | None = None, **others: Any) -> None:
        own = {"weight_decay": 0.1, "momentum": 0.95, "nesterov": True, "eps": 1e-7, "ns_steps": 5}
        coefficients = {"ns_coefficients": (3.4445, -4.775, 2.0315)}
        super().__init__(params, {"lr": lr, "adjust_lr_fn": adjust_lr_fn, **own, **coefficients, **others})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, group)

    def update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        mean = state.setdefault("momentum_buffer", torch.zeros_like(parameter))
        mean.lerp_(gradient, 1 - group["momentum"])
        x = gradient.lerp(mean, group["momentum"]) if group["nesterov"] else mean
        x = x / x.norm().clamp(min=group["eps"])
        a, b, c = group["ns_coefficients"]
        for _ in range(group["ns_steps"]):
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
        rows, columns = parameter.shape
        factor = 0.2 * max(rows, columns) ** 0.5 if group["adjust_lr_fn"] == "match_rms_adamw" else max(1.0, rows / columns) ** 0.5
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(x, alpha=-group["lr"] * factor)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 12), nn.Tanh(), nn.LayerNorm(12), nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 3))


def pair(model: nn.Module, kind: Any = Muon, **options: Any) -> list[torch.optim.Optimizer]:
    """Muon for the hidden matrices; AdamW for embeddings, the head and all vectors."""
    hidden = [part.weight for part in (model[1], model[4])]  # type: ignore[index]
    others = [parameter for parameter in model.parameters() if all(parameter is not matrix for matrix in hidden)]
    adamw = torch.optim.AdamW(others, lr=0.003, betas=(0.8, 0.95), weight_decay=0.02)
    return [adamw, kind(hidden, lr=0.02, **options)]


def batches(count: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 11, (count, 8), generator=generator)
    return [(row, row.remainder(3)) for row in rows]


def loss_of(output: Tensor, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(output, batch[1])


def train_by_hand(model: nn.Module, optimizers: list[torch.optim.Optimizer], found: list[Batch]) -> list[float]:
    losses = []
    for batch in found:
        loss = loss_of(model(batch[0]), batch)
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch.autograd.backward(loss)
        for optimizer in optimizers:
            optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def planned(model: nn.Module, optimizers: list[torch.optim.Optimizer], **options: Any) -> Any:
    return graphc.parallelize(model, batches(1)[0], loss=loss_of, optimizer=optimizers, **options)


def train(parallel: Any, optimizers: list[torch.optim.Optimizer], found: list[Batch]) -> list[float]:
    losses = []
    for batch in found:
        loss = parallel(batch)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses


def check_near(found: nn.Module, expected: nn.Module) -> None:
    for (name, own), other in zip(found.state_dict().items(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(own, other, atol=2e-5, rtol=2e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("adjust", [None, "match_rms_adamw"])
def test_a_pair_trains_as_in_pytorch_and_is_resumed(adjust: str | None) -> None:
    model, other = network(), network()
    optimizers, others = pair(model, adjust_lr_fn=adjust), pair(other, adjust_lr_fn=adjust)
    rows = batches(12)
    expected = train_by_hand(other, others, rows[:4])
    parallel = planned(model, optimizers)
    assert train(parallel, optimizers, rows[:4]) == pytest.approx(expected, abs=1e-5)
    # Rates of both are read at each step.
    for optimizer in optimizers + others:
        optimizer.param_groups[0]["lr"] *= 0.5
    expected = train_by_hand(other, others, rows[4:8])
    assert train(parallel, optimizers, rows[4:8]) == pytest.approx(expected, abs=1e-5)
    parallel.update_module()
    check_near(model, other)
    # PyTorch goes on with what a plan has kept, and a plan with what PyTorch has.
    states = parallel.optimizer_state_dict()
    for optimizer, own in zip(optimizers, states, strict=True):
        optimizer.load_state_dict(own)
    expected = train_by_hand(other, others, rows[8:10])
    assert train_by_hand(model, optimizers, rows[8:10]) == pytest.approx(expected, abs=1e-5)
    parallel = planned(model, optimizers)
    expected = train_by_hand(other, others, rows[10:])
    assert train(parallel, optimizers, rows[10:]) == pytest.approx(expected, abs=1e-5)
    parallel.load_optimizer_state_dict(states)
    state = parallel.training_state().state_dict()
    parallel.training_state().load_state_dict(state)


def test_other_iterations_are_those_that_are_asked_for() -> None:
    options = {"nesterov": False, "ns_steps": 3, "ns_coefficients": (3.0, -3.5, 1.5)}
    model, other = network(), network()
    optimizers, others = pair(model, **options), pair(other, **options)
    expected = train_by_hand(other, others, batches(5))
    assert train(planned(model, optimizers), optimizers, batches(5)) == pytest.approx(expected, abs=1e-5)


def test_pytorchs_own_muon_is_near() -> None:
    kind = getattr(torch.optim, "Muon", None)
    if kind is None:
        pytest.skip("PyTorch has Muon from 2.9 on")
    model, other = network(), network()
    optimizers, others = pair(model, kind), pair(other, kind)
    expected = train_by_hand(other, others, batches(6))
    # Its products are of bfloat16.
    assert train(planned(model, optimizers), optimizers, batches(6)) == pytest.approx(expected, abs=5e-3)


def test_two_ranks_train_alike() -> None:
    def on_two(rank: int) -> list[float]:
        model = network()
        parallel = graphc.parallelize(model, _half(batches(1)[0], rank), loss=loss_of, optimizer=pair(model))
        return [parallel.step(_half(batch, rank)).item() for batch in batches(5)]

    ranks, model = run(2, on_two), network()
    expected = train_by_hand(model, pair(model), batches(5))
    for found in ranks:
        assert found == pytest.approx(expected, abs=1e-5)


def _half(batch: Batch, rank: int) -> Batch:
    return batch[0][rank * 4 : rank * 4 + 4], batch[1][rank * 4 : rank * 4 + 4]


def test_what_is_no_pair_is_refused() -> None:
    model = network()
    adamw, muon = pair(model)

    def refuse(optimizers: Any, said: str, **options: Any) -> None:
        with pytest.raises(graphc.Error, match=said):
            planned(model, optimizers, **options)

    refuse([adamw, adamw], r"one optimizer, or torch\.optim\.Muon and torch\.optim\.AdamW together, not \[AdamW, AdamW\]")
    refuse([torch.optim.AdamW(model.parameters()), muon], "a parameter is in both optimizers")
    refuse([adamw, pair(model, ns_steps=0)[1]], "0 is not in 1..100")
    upwards = pair(model)
    upwards[0].param_groups[0]["maximize"] = True
    refuse(upwards, "graphc has no pair of Muon and AdamW with maximize: leave it out")
    refuse(Muon(model.parameters()), r"Muon has a parameter that is no matrix: give it to AdamW, as optimizer=\[muon, adamw\]")
    refuse([adamw, muon], "one course for both", lr_schedule="cosine:5")


def test_a_step_of_one_optimizer_alone_is_refused() -> None:
    model = network()
    optimizers = pair(model)
    parallel, batch = planned(model, optimizers), batches(1)[0]
    parallel(batch).backward()
    optimizers[0].step()
    with pytest.raises(graphc.Error, match=r"step\(\) of each optimizer was not called"):
        parallel(batch)
    optimizers[1].step()
    parallel(batch).backward()
    muon = optimizers[1]
    for optimizer in optimizers:
        optimizer.step()
    muon.param_groups[0]["momentum"] = 0.5
    with pytest.raises(graphc.Error, match=r"momentum was 0\.95 and is 0\.5, but it is part of the plan"):
        parallel(batch)
