"""Training loops as they stand in scripts, around a model that a plan trains: they mean what they mean to PyTorch, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from world import run

import graphc
from graphc.parallel.watched import Watched

pytestmark = pytest.mark.usefixtures("exporter", "command")

Batch = tuple[Tensor, Tensor]


def begin() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batches() -> list[Batch]:
    rows = torch.randn(24, 4, generator=torch.Generator().manual_seed(2))
    return list(zip(rows.split(8), torch.arange(24).remainder(3).split(8), strict=True))


def planned(model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> Any:
    return graphc.parallelize(model, batches()[0], loss=nn.CrossEntropyLoss(), optimizer=optimizer, **options)


def train_by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    """A step of PyTorch."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    torch.autograd.backward(loss)
    optimizer.step()
    return float(loss.detach())


def clips(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def clips_values(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.1)


def scales(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    loss.backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.data.mul_(0.5)


def steps_another(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    loss.backward()
    optimizer.step()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def adds_a_penalty(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    (loss + sum(parameter.square().sum() for parameter in model.parameters())).backward()
    optimizer.step()


def changes_the_rate(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    loss.backward()
    optimizer.param_groups[0]["lr"] = 0.01
    optimizer.step()


@pytest.mark.parametrize(
    ("goes_on", "said"),
    [
        (clips, r"the plan has used the gradients .*: parallelize\(\.\., max_norm=\) scales gradients down"),
        (clips_values, "the plan has used the gradients"),
        (scales, "the plan has used the gradients"),
        (steps_another, "weights of other optimizers into groups of this one"),
        (adds_a_penalty, "(has a gradient that is not the plan's, of another loss|the plan has used the gradients)"),
        (changes_the_rate, r"numbers were changed between the loss and optimizer\.step\(\)"),
    ],
)
def test_what_a_loop_does_to_gradients_is_refused(goes_on: Callable[..., None], said: str) -> None:
    model, optimizer = begin()
    loss = planned(model, optimizer)(batches()[0])
    with pytest.raises(graphc.Error, match=said):
        goes_on(model, optimizer, loss)


def test_loops_that_zero_gradients_anywhere_train_as_in_pytorch() -> None:
    model, optimizer = begin()
    expected = [train_by_hand(model, optimizer, batch) for batch in batches()]
    other, another = begin()
    parallel, losses = planned(other, another), []
    for batch in batches():

        def closure(batch: Batch = batch) -> Tensor:
            loss: Tensor = parallel(batch)
            another.zero_grad(set_to_none=False)
            loss.backward()
            return loss

        losses.append(another.step(closure).item())  # type: ignore[arg-type, union-attr]
    assert losses == pytest.approx(expected, abs=1e-5)
    other.double()
    other.zero_grad()
    assert all(parameter.grad is None for parameter in other.parameters())


def writes(model: Any) -> None:
    with torch.no_grad():
        model[0].weight.clamp_(-0.1, 0.1)


def writes_to_data(model: Any) -> None:
    model[0].weight.data.mul_(0.5)


def replaces(model: Any) -> None:
    model[0].weight = nn.Parameter(torch.zeros(8, 4))


def replaces_a_part(model: Any) -> None:
    model[3] = nn.Linear(8, 3)


def resets(model: Any) -> None:
    model[1].running_mean = torch.ones(8)


def evaluates(model: Any) -> None:
    model.eval()


def freezes_a_norm(model: Any) -> None:
    model[1].eval()


def test_writes_to_large_tensors_are_found_too() -> None:
    model = nn.Linear(1 << 10, 1 << 8)

    def refuses(watched: Watched) -> None:
        with pytest.raises(graphc.Error, match="`weight` of the module was written to"):
            watched.check()

    watched = Watched(model, ["weight", "bias"])
    with torch.no_grad():
        model.weight[3, 5] += 1.0
    refuses(watched)
    watched = Watched(model, ["weight", "bias"])
    with torch.no_grad():
        model.weight.mul_(1.0)
    watched.check()
    watched = Watched(model, ["weight", "bias"])
    model.weight.data.mul_(0.5)
    refuses(watched)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (writes, r"`0\.weight` of the module was written to, .*: write to it behind update_module\(\)"),
        (writes_to_data, r"`0\.weight` of the module was written to"),
        (replaces, r"`0\.weight` of the module is another tensor"),
        (replaces_a_part, "`Sequential` has other parts"),
        (resets, r"`1\.running_mean` of the module was written to"),
        (evaluates, r"`Sequential` was in train mode .* and is in eval mode: call train\(\)"),
        (freezes_a_norm, "`1` was in train mode .* and is in eval mode"),
    ],
)
def test_what_is_done_to_a_module_beside_its_plan_is_refused(change: Callable[[Any], None], said: str) -> None:
    model, optimizer = begin()
    parallel = planned(model, optimizer)
    parallel.step(batches()[0])
    change(model)
    with pytest.raises(graphc.Error, match=said):
        parallel.step(batches()[1])


def test_a_module_may_be_written_to_where_the_plan_takes_it_over() -> None:
    model, optimizer = begin()
    expected = []
    for batch in batches():
        expected.append(train_by_hand(model, optimizer, batch))
        writes_to_data(model)
    other, another = begin()
    parallel, losses = planned(other, another), []
    for batch in batches():
        losses.append(float(parallel.step(batch)))
        parallel.update_module()
        # As where averages are tried out in the place of weights.
        own = {name: tensor.clone() for name, tensor in other.state_dict().items()}
        other.load_state_dict({name: torch.zeros_like(tensor) for name, tensor in own.items()})
        other.load_state_dict(own)
        other.eval()
        writes_to_data(other)
        parallel.load_state_dict(other.state_dict())
        parallel.train()
    assert losses == pytest.approx(expected, abs=1e-5)
    other.register_buffer("more", torch.ones(2))
    assert parallel.state_dict()["more"].tolist() == [1.0, 1.0]


def test_ranks_that_begin_with_the_weights_of_the_first_have_not_written_to_them() -> None:
    def work(rank: int) -> list[float]:
        torch.manual_seed(rank)
        model = nn.Sequential(nn.Linear(4, 3))
        parallel = planned(model, torch.optim.SGD(model.parameters(), lr=0.1), timeout=10.0)
        return [float(parallel.step(batch)) for batch in batches()]

    first, second = run(2, work)
    assert isinstance(first, list), first["error"]
    assert first == second


def test_gradients_of_batches_are_refused() -> None:
    model, optimizer = begin()
    parallel, (x, labels) = planned(model, optimizer), batches()[0]
    with pytest.raises(graphc.Error, match=r"`batch\.0` is to have a gradient, and a plan has none of batches: let what it"):
        parallel.step((x.clone().requires_grad_(), labels))


def test_what_is_evaluated_in_inference_mode_is_trained_further() -> None:
    model, optimizer = begin()
    parallel, losses = planned(model, optimizer), []
    with torch.inference_mode():
        losses.append(float(parallel.eval()(batches()[0])))
        parallel.predict(batches()[0])
    losses.append(float(parallel.train().step(batches()[0])))
    with torch.inference_mode():
        losses.append(float(parallel.eval()(batches()[0])))
    other, another = begin()
    expected = []
    for _ in range(2):
        other.eval()
        with torch.no_grad():
            expected.append(float(nn.functional.cross_entropy(other(batches()[0][0]), batches()[0][1])))
        other.train()
        expected.append(train_by_hand(other, another, batches()[0]))
    assert losses == pytest.approx(expected[:3], abs=1e-5)


class Annealed(nn.Module):
    """What hangs on attributes that a loop changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(4, 3), nn.Dropout(0.0)
        self.share, self.epoch, self.best, self.shift = 0.1, 0, 0.0, 0.0

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.layer(x))
        if not self.training:
            return x + self.shift
        return x + self.share * x.square() * (2.0 if self.epoch > 5 else 1.0)


@pytest.mark.parametrize(
    ("part", "key", "value"), [("", "share", 0.2), ("", "epoch", 6), ("drop", "p", 0.5)], ids=["number", "branch", "dropout"]
)
def test_attributes_that_change_what_a_step_computes_are_refused(part: str, key: str, value: float) -> None:
    model = Annealed()
    parallel = planned(model, torch.optim.SGD(model.parameters(), lr=0.1))
    parallel.step(batches()[0])
    setattr(model.get_submodule(part), key, value)
    said = f"the module's `{part}.{key}`".replace("`.", "`")
    for _ in range(2):
        with pytest.raises(graphc.Error, match=rf"{said} was 0.* and is {value}, and a step computes something else by now"):
            parallel.step(batches()[1])


def test_attributes_on_which_no_step_depends_may_change() -> None:
    models = [Annealed() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    parallel = planned(models[1], optimizers[1])
    for number, (x, labels) in enumerate(batches()):
        for model in models:
            model.epoch, model.best, model.shift = number, 0.1 * number, 0.3 * number
        expected = train_by_hand(models[0], optimizers[0], (x, labels))
        assert float(parallel.step((x, labels))) == pytest.approx(expected, abs=1e-5)
        with torch.no_grad():
            expected = float(nn.functional.cross_entropy(models[0].eval()(x), labels))
        models[0].train()
        assert float(parallel.eval()((x, labels))) == pytest.approx(expected, abs=1e-5)
        parallel.train()


def test_layers_that_are_frozen_and_learn_again_go_on_as_in_pytorch() -> None:
    def losses(is_planned: bool) -> list[float]:
        model, optimizer = begin()
        parallel, found = planned(model, optimizer) if is_planned else None, []
        for step, batch in enumerate(2 * batches()):
            if step in (2, 4):
                if parallel is not None:
                    parallel.update_module()
                    optimizer.load_state_dict(parallel.optimizer_state_dict())
                model.get_submodule("0").requires_grad_(step == 4)
                optimizer.zero_grad()
                parallel = planned(model, optimizer) if is_planned else None
            found.append(float(parallel.step(batch)) if parallel is not None else train_by_hand(model, optimizer, batch))
        return found

    assert losses(True) == pytest.approx(losses(False), abs=1e-5)


def test_parameters_that_come_later_count_their_own_steps() -> None:
    losses = []
    for planning in (False, True):
        model, _ = begin()
        optimizer = torch.optim.AdamW(model.get_submodule("3").parameters(), lr=0.01)
        train_by_hand(model, optimizer, batches()[0])
        optimizer.add_param_group({"params": model.get_submodule("0").parameters()})
        step = planned(model, optimizer).step if planning else lambda batch: train_by_hand(model, optimizer, batch)  # noqa: B023
        losses.append([float(step(batch)) for batch in batches()])
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


class Smoothed(nn.Module):
    """A loss as other packages have them."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(x, target, label_smoothing=0.1)


class Called(nn.Module):
    """A loss without `forward`, as timm's JsdCrossEntropy is one."""

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, target, label_smoothing=0.1)


def test_losses_of_other_packages_take_labels_as_those_of_pytorch_do() -> None:
    found = []
    for loss in (Smoothed(), Called(), nn.CrossEntropyLoss(label_smoothing=0.1)):
        model, optimizer = begin()
        parallel = graphc.parallelize(model, batches()[0], loss=loss, optimizer=optimizer)
        found.append([float(parallel.step(batch)) for batch in batches()])
    assert found[0] == found[1] == found[2]


def test_what_no_plan_has_of_an_optimizer_is_refused_at_each_step() -> None:
    model, optimizer = begin()
    parallel = planned(model, optimizer)
    parallel.step(batches()[0])
    optimizer.param_groups[0]["differentiable"] = True
    with pytest.raises(graphc.Error, match="graphc has no optimizer with differentiable: leave it out"):
        parallel.step(batches()[1])


class Wrapped(torch.optim.Optimizer):
    """An optimizer that holds another one, as packages prepare them."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.param_groups, self.defaults = optimizer, optimizer.param_groups, optimizer.defaults

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


def test_an_optimizer_may_be_wrapped() -> None:
    model, optimizer = begin()
    expected = [train_by_hand(model, optimizer, batch) for batch in batches()]
    other, another = begin()
    wrapped, losses = Wrapped(another), []
    parallel = planned(other, wrapped)
    for batch in batches():
        loss = parallel(batch)
        loss.backward()
        wrapped.step()
        losses.append(loss.item())
    assert losses == pytest.approx(expected, abs=1e-5)
