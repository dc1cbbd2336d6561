"""Trainings by plans of PyTorch's modules: states, checkpoints, schedulers, the usual loop, evaluation."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES, ROWS, STEPS, Wrong, flat, labels, plain, squares
from torch import Tensor, nn
from world import root, run

import graphc

pytestmark = pytest.mark.usefixtures("exporter", "command")


def steps_of(train: Callable[[Any], Any], name: str, first: int, last: int) -> list[float]:
    _, _, batches = CASES[name].begin()
    return [float(train(batches[step % 3])) for step in range(first, last)]


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, name: str) -> Callable[[Any], Tensor]:
    def train(batch: Any) -> Tensor:
        optimizer.zero_grad()
        loss = CASES[name].loss(model(batch[0]), batch)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()

    return train


def with_names(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    """Its state, in which parameters have names in the place of numbers."""
    state = optimizer.state_dict()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    numbers = [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
    groups = [group | {"params": [numbers[number] for number in group["params"]]} for group in state["param_groups"]]
    return {"state": {numbers[number]: entry for number, entry in state["state"].items()}, "param_groups": groups}


@pytest.mark.parametrize("name", ["gpt", pytest.param("mlp", marks=pytest.mark.slow)])
def test_the_state_of_an_optimizer_goes_to_pytorch_and_comes_from_there(name: str) -> None:
    expected, _ = plain(name)
    case = CASES[name]
    # PyTorch, then a plan, which takes over what the optimizer has kept; then PyTorch again.
    model, optimizer, batches = case.begin()
    losses = steps_of(by_hand(model, optimizer, name), name, 0, 4)
    parallel = graphc.parallelize(model, batches[0], loss=case.loss, optimizer=optimizer)
    losses += steps_of(parallel.step, name, 4, 9)
    other, another, _ = case.begin()
    other.load_state_dict(parallel.state_dict())
    another.load_state_dict(parallel.optimizer_state_dict())
    losses += steps_of(by_hand(other, another, name), name, 9, 14)
    # And a second plan goes on from PyTorch's state, given to it with names.
    second, fresh, _ = case.begin()
    last = graphc.parallelize(second, batches[0], loss=case.loss, optimizer=fresh)
    last.load_state_dict(other.state_dict())
    last.load_optimizer_state_dict(with_names(another, other))
    losses += steps_of(last.step, name, 14, STEPS)
    assert losses == pytest.approx(expected, abs=1e-5)
    last.update_module()
    assert flat(second.state_dict()) == flat(last.state_dict())


@pytest.mark.parametrize("options", [{}, {"centered": True, "momentum": 0.5, "weight_decay": 0.01}])
def test_rmsprop_makes_the_steps_of_pytorch(options: dict[str, Any]) -> None:
    def begin() -> tuple[nn.Module, torch.optim.Optimizer]:
        model, _, _ = CASES["mlp"].begin()
        return model, torch.optim.RMSprop(model.parameters(), lr=1e-3, **options)

    def alternate(step: Callable[[Any], float], optimizer: torch.optim.Optimizer) -> list[float]:
        losses = steps_of(step, "mlp", 0, 4)
        optimizer.param_groups[0]["alpha"] = 0.9
        return losses + steps_of(step, "mlp", 4, 7)

    model, optimizer = begin()
    by_pytorch = by_hand(model, optimizer, "mlp")
    expected = alternate(by_pytorch, optimizer) + steps_of(by_pytorch, "mlp", 7, 10)
    other, another = begin()
    parallel = graphc.parallelize(other, CASES["mlp"].begin()[2][0], loss=CASES["mlp"].loss, optimizer=another)
    losses = alternate(parallel.step, another)
    # PyTorch goes on with what the plan has kept.
    last, fresh = begin()
    last.load_state_dict(parallel.state_dict())
    fresh.load_state_dict(parallel.optimizer_state_dict())
    losses += steps_of(by_hand(last, fresh, "mlp"), "mlp", 7, 10)
    assert losses == pytest.approx(expected, abs=1e-5)


def test_states_of_other_optimizers_are_refused() -> None:
    model = Wrong(torch.mean)
    parallel = graphc.parallelize(model, torch.ones(2, 4), optimizer=torch.optim.Adam(model.parameters()))
    assert parallel.optimizer_state_dict()["state"] == {}
    parallel.step(torch.ones(2, 4))
    state = parallel.optimizer_state_dict()
    assert sorted(state["state"][0]) == ["exp_avg", "exp_avg_sq", "step"]
    with pytest.raises(graphc.Error, match="it is another optimizer's"):
        parallel.load_optimizer_state_dict({**state, "state": {0: state["state"][0]}})
    uneven = {**state["state"], 0: {**state["state"][0], "step": torch.tensor(7.0)}}
    with pytest.raises(graphc.Error, match=r"`layer\.weight` has had 7 steps and `layer\.bias` 1, and the plan has one number for all"):
        parallel.load_optimizer_state_dict({**state, "state": uneven})
    with pytest.raises(graphc.Error, match=r"its groups have \[\] parameters, and the optimizer's \[2\]"):
        parallel.load_optimizer_state_dict({"state": {}, "param_groups": []})
    cut = {**state["state"], 0: {**state["state"][0], "exp_avg": torch.ones(3)}}
    with pytest.raises(graphc.Error, match=r"exp_avg of `layer\.weight` has the shape \[4, 4\], and that of the state \[3\]"):
        parallel.load_optimizer_state_dict({**state, "state": cut})
    with pytest.raises(graphc.Error, match=r"Wrong has no save_pretrained: torch\.save\(model\.state_dict\(\), path\)"):
        parallel.save_pretrained("nowhere")


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_what_is_saved_as_pretrained_is_read_as_such(world: int, tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=31, n_positions=8, n_embd=16, n_layer=1, n_head=2)

    def work(rank: int) -> Any:
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config).train()
        tokens = torch.randint(31, (2, 8))
        batch = {"input_ids": tokens, "labels": tokens}
        parallel = graphc.parallelize(model, batch, optimizer=torch.optim.AdamW(model.parameters()))
        parallel.step(batch)
        parallel.save_pretrained(tmp_path / "saved")
        parallel.update_module()
        state = flat(parallel.state_dict())
        read = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "saved")
        return flat(read.state_dict()) == state, flat(model.state_dict()) == state

    assert run(world, work) == [[True, True]] * world


RESUMED = [("mlp", 2, 1), *(pytest.param("gpt", *worlds, marks=pytest.mark.slow) for worlds in ((2, 1), (1, 4), (4, 2)))]


@pytest.mark.parametrize(("name", "before", "after"), RESUMED)
def test_a_killed_training_goes_on_by_distributed_checkpoints_on_other_ranks(name: str, before: int, after: int, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    def part(world: int, first: int, last: int) -> Callable[[int], list[float]]:
        def work(rank: int) -> list[float]:
            model, optimizer, batches = CASES[name].begin("meta" if first and rank else "cpu")
            count = ROWS // world
            rows = [tuple(tensor[rank * count : (rank + 1) * count] for tensor in batch) for batch in batches]
            options = {"mesh": (world,), "strategy": "zero3"}
            parallel = graphc.parallelize(model, rows[0], loss=CASES[name].loss, optimizer=optimizer, **options)
            state = {"training": parallel.training_state()}
            if first:
                dcp.load(state, checkpoint_id=str(tmp_path / "saved"))
            losses = [float(parallel.step(rows[step % 3])) for step in range(first, last)]
            if not first:
                cut = [tensor for tensor in state["training"].state_dict()["model"].values() if hasattr(tensor, "full_tensor")]
                assert cut or world == 1
                dcp.save(state, checkpoint_id=str(tmp_path / "saved"))
                # What comes after is lost.
                parallel.step(rows[0])
            return losses

        return work

    expected, _ = plain(name)
    for world, first, last in ((before, 0, 8), (after, 8, STEPS)):
        for losses in run(world, part(world, first, last)):
            assert isinstance(losses, list), losses["error"]
            assert losses == pytest.approx(expected[first:last], abs=1e-5)


def warm(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """A rise from 0, of which each group has its own."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: min(1.0, step / 5), lambda step: 0.9**step])


def cycle(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """One cycle, in which the momentum falls where the rate rises."""
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=STEPS + 1)


@pytest.mark.parametrize(("name", "schedule"), [("mlp", cycle), pytest.param("gpt", warm, marks=pytest.mark.slow)])
def test_the_usual_loop_follows_schedulers(name: str, schedule: Callable[[Any], Any]) -> None:
    def looped(model: Any, loss_of: Callable[[Any], Tensor], optimizer: torch.optim.Optimizer) -> list[float]:
        scheduler, (_, _, batches) = schedule(optimizer), CASES[name].begin()
        losses = []
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(batches[step % 3])
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        return losses

    model, optimizer, batches = CASES[name].begin()
    expected = looped(model, lambda batch: CASES[name].loss(model(batch[0]), batch), optimizer)
    other, another, _ = CASES[name].begin()
    parallel = graphc.parallelize(other, batches[0], loss=CASES[name].loss, optimizer=another)
    assert looped(parallel, parallel, another) == pytest.approx(expected, abs=1e-5)
    for key, tensor in parallel.state_dict().items():
        assert CASES[name].apart in key or torch.allclose(tensor, model.state_dict()[key], atol=1e-5), key


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["zero1", "zero3", "data"])
def test_schedulers_are_followed_on_several_ranks(strategy: str) -> None:
    model, optimizer, batches = CASES["gpt"].begin()
    scheduler, train = warm(optimizer), by_hand(model, optimizer, "gpt")
    expected = []
    for step in range(STEPS):
        expected.append(float(train(batches[step % 3])))
        scheduler.step()

    def work(rank: int) -> list[float]:
        model, optimizer, batches = CASES["gpt"].begin()
        rows = [tuple(part.chunk(2)[rank] for part in batch) for batch in batches]
        scheduler, losses = warm(optimizer), []
        parallel = graphc.parallelize(model, rows[0], loss=labels, optimizer=optimizer, mesh=(2,), strategy=strategy)
        for step in range(STEPS):
            losses.append(float(parallel.step(rows[step % 3])))
            scheduler.step()
        return losses

    for losses in run(2, work):
        assert losses == pytest.approx(expected, abs=1e-5)


def test_gradients_of_several_batches_are_summed_and_scaled_down() -> None:
    model, optimizer, batches = CASES["mlp"].begin()
    other, another, _ = CASES["mlp"].begin()
    parallel = graphc.parallelize(other, batches[0], loss=labels, optimizer=another, accumulate=2, max_norm=0.1)
    for step in range(6):
        pair = [batches[step % 3], batches[(step + 1) % 3]]
        optimizer.zero_grad()
        losses = [labels(model(batch[0]), batch) / 2 for batch in pair]
        torch.autograd.backward(losses)
        assert torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1) > 0.1
        optimizer.step()
        assert float(parallel.step(*pair)) == pytest.approx(float(sum(losses)), abs=1e-5)


class Flagged(nn.Module):
    """It takes what is no tensor, too; in half precision, so is its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None, twice: bool = True) -> Tensor:
        x = self.layer(x) if mask is None else self.layer(x) * mask
        return (2.0 * x if twice else x).square().mean()


@pytest.mark.parametrize(("dtype", "apart"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_what_is_no_tensor_is_part_of_a_plan(dtype: torch.dtype, apart: float) -> None:
    torch.manual_seed(0)
    models = [Flagged().to(dtype) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    x = torch.randn(4, 4, dtype=dtype)
    parallel = graphc.parallelize(models[1], {"x": x, "mask": None, "twice": True}, optimizer=optimizers[1])
    for batch in ({"x": x, "mask": None, "twice": True}, {"x": x, "mask": None, "twice": False}):
        optimizers[0].zero_grad()
        loss = models[0](**batch)
        loss.backward()
        optimizers[0].step()
        assert float(parallel.step(batch)) == pytest.approx(loss.item(), abs=apart)
    with pytest.raises(AttributeError, match=r"has no `parameters`: parallelize\(\.\., max_norm=\) scales gradients down"):
        torch.nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
    with pytest.raises(graphc.Error, match=r"`batch\.twice` is float: let a batch hold tensors alone, numbers as tensors too"):
        parallel.step({"x": x, "mask": None, "twice": 0.5})


@pytest.mark.parametrize(("world", "strategy"), [(1, "auto"), (2, "zero3")])
def test_batches_of_other_shapes_train_the_same_weights(world: int, strategy: str) -> None:
    def batches() -> list[tuple[Tensor, Tensor]]:
        rows = torch.randn(18, 12, generator=torch.Generator().manual_seed(2))
        return list(zip(rows.split(8), torch.arange(18).remainder(5).split(8), strict=True))

    def begun() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    model, optimizer = begun()
    schedule, expected = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), []
    for _ in range(3):
        for x, labels_ in batches():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), labels_)
            torch.autograd.backward(loss)
            optimizer.step()
            expected.append(loss.item())
        schedule.step()

    def work(rank: int) -> Any:
        model, optimizer = begun()
        rows = [tuple(part.chunk(world)[rank] for part in batch) for batch in batches()]
        options = {"mesh": (world,), "strategy": strategy}
        parallel = graphc.parallelize(model, rows[0], loss=nn.CrossEntropyLoss(), optimizer=optimizer, **options)
        schedule, losses = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), []
        for _ in range(3):
            losses += [float(parallel.step(batch)) for batch in rows]
            schedule.step()
        state, kept = parallel.state_dict(), parallel.optimizer_state_dict()
        said = ""
        try:
            parallel.step(tuple(part[: 2 + rank] for part in rows[0]))
        except graphc.Error as error:
            said = str(error)
        return losses, flat(state), float(kept["state"][0]["step"]), said

    for found in run(world, work):
        assert isinstance(found, list), found["error"]
        losses, weights, steps, said = found
        assert losses == pytest.approx(expected, abs=1e-5)
        assert weights["1.num_batches_tracked"] == [9.0]
        assert weights["1.running_var"] == pytest.approx(flat(model.state_dict())["1.running_var"], abs=1e-5)
        assert steps == 9.0
        assert world == 1 or "`batch.0` is f32[3, 12] on rank 1 and f32[2, 12] on rank 0: let all ranks have batches of one shape" in said


def test_weights_that_are_frozen_later_are_refused_and_autocast_is_warned_of() -> None:
    model, optimizer, batches = CASES["mlp"].begin()
    parallel = graphc.parallelize(model, batches[0], loss=CASES["mlp"].loss, optimizer=optimizer)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.warns(UserWarning, match="give parallelize precision='bf16'"):
        parallel.step(batches[0])
    next(model.parameters()).requires_grad_(False)
    said = r"requires_grad of `0\.weight` has changed, .*: update_module\(\) and give the model to parallelize again"
    with pytest.raises(graphc.Error, match=said):
        parallel.step(batches[0])


class Noisy(nn.Module):
    """What differs between training and evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.drop(self.norm(self.layer(x)))
        return found


def test_evaluation_is_that_of_the_module() -> None:
    model = Noisy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = graphc.parallelize(model, (torch.randn(8, 4), torch.randn(8, 6)), loss=squares, optimizer=optimizer)
    for rows in (8, 3):
        batch = (torch.randn(rows, 4), torch.randn(rows, 6))
        parallel.train().step((torch.randn(8, 4), torch.randn(8, 6)))
        found = parallel.eval()(batch)
        assert model.training
        same = Noisy().eval()
        same.load_state_dict(parallel.state_dict())
        assert float(found) == pytest.approx(float(squares(same(batch[0]), batch)), abs=1e-6)
        # It changes nothing.
        assert float(parallel(batch)) == float(found)


@dataclasses.dataclass
class Scores:
    """What a module may return."""

    logits: Tensor
    more: dict[str, Any]


class Scoring(nn.Module):
    """It returns a structure, of which some is fed, known, or of all samples together."""

    def __init__(self) -> None:
        super().__init__()
        self.noisy = Noisy()

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.noisy(x)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        more = {"best": logits.argmax(-1), "mean": logits.mean(), "x": x, "pair": (logits.flatten(), torch.arange(3)), "cache": object()}
        return {"loss": loss, "scores": Scores(logits, more), "list": [x + 1, "text"]}


@pytest.mark.parametrize("world", [1, 2])
def test_predictions_are_what_the_module_returns(world: int) -> None:
    def work(rank: int) -> Any:
        torch.manual_seed(0)
        model, x = Scoring(), torch.randn(8, 4)
        labels_ = torch.arange(8).remainder(6)
        own = slice(rank * 8 // world, (rank + 1) * 8 // world)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        parallel = graphc.parallelize(model, {"x": x[own], "labels": labels_[own]}, optimizer=optimizer)
        apart = 0.0
        for _ in range(2):
            parallel.step({"x": x[own], "labels": labels_[own]})
            found, whole = parallel.predict({"x": x[own]}), parallel.predict({"x": x[own]}, whole=True)
            assert model.training
            same = Scoring().eval()
            same.load_state_dict(parallel.state_dict())
            with torch.no_grad():
                expected, all_of = same(x[own]), same(x)
            for one, other in ((found, expected), (whole, all_of)):
                assert list(one) == list(other)
                assert one["loss"] is None
                assert one["list"][1] == "text"
                scores, right = one["scores"], other["scores"]
                assert scores.more["cache"] is None
                pairs = [(scores.logits, right.logits), (scores.more["best"], right.more["best"]), (one["list"][0], other["list"][0])]
                pairs += [(scores.more["x"], right.more["x"]), *zip(scores.more["pair"], right.more["pair"], strict=True)]
                pairs.append((scores.more["mean"], all_of["scores"].more["mean"]))
                assert [a.shape for a, _ in pairs] == [b.shape for _, b in pairs]
                apart = max(apart, *(float((a.double() - b.double()).abs().max()) for a, b in pairs))
        return apart

    for found in run(world, work):
        assert not isinstance(found, dict), found["error"]
        assert found < 1e-6


def test_loops_that_are_none_are_refused() -> None:
    model = Wrong(torch.mean)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel, batch = graphc.parallelize(model, torch.ones(2, 4), optimizer=optimizer), torch.ones(2, 4)
    with torch.no_grad(), pytest.raises(graphc.Error, match=r"gradients are off: call model\.eval\(\) first"):
        parallel(batch)
    loss = parallel(batch)
    with pytest.raises(graphc.Error, match=r"loss\.backward\(\) was not called since: gradients are summed by parallelize"):
        parallel(batch)
    with pytest.raises(graphc.Error, match=r"optimizer\.step\(\) was called, and loss\.backward\(\) was not"):
        optimizer.step()
    with pytest.raises(graphc.Error, match=r"something whose gradient by it is 0\.5: accumulate=N"):
        (loss / 2).backward()
    loss.backward()
    with pytest.raises(graphc.Error, match=r"optimizer\.step\(\) was not called since"):
        parallel(batch)
    optimizer.step()
    parallel(batch)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lr": 0.1}, "lr is what the optimizer says"),
        ({"accumulate": 2, "microbatches": 2}, "accumulate and microbatches mean the same"),
        ({"accumulate": 0}, "accumulate is 0: let it be a number of batches"),
    ],
)
def test_options_that_say_something_twice_are_refused(options: dict[str, Any], said: str) -> None:
    model = Wrong(torch.mean)
    with pytest.raises(graphc.Error, match=said):
        graphc.parallelize(model, torch.ones(2, 4), optimizer=torch.optim.SGD(model.parameters()), **options)


@pytest.mark.slow
def test_the_trainer_of_hugging_face_trains_and_resumes_by_plans(tmp_path: Path) -> None:
    for package in ("transformers", "accelerate"):
        pytest.importorskip(package)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(root() / "python"), *sys.path])}

    def job(world: int, engine: str, folder: str, *more: str) -> list[dict[str, float | None]]:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world)]
        command += [str(root() / "python/tests/hugging_face_job.py"), engine, str(tmp_path / folder), *more]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        found: list[dict[str, float | None]] = json.loads((tmp_path / folder / "log.json").read_text())
        return found

    expected = job(1, "transformers", "eager")
    once, twice = job(1, "graphc", "once"), job(2, "graphc", "twice")
    shutil.rmtree(tmp_path / "once/checkpoint-12")
    resumed = job(2, "graphc", "once", "resume")
    for found in (once, twice, resumed):
        assert len(found) == len(expected) > 12
        for line, wanted in zip(found, expected, strict=True):
            assert line == pytest.approx(wanted, abs=1e-4)
