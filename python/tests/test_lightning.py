"""Trainings by Lightning's Trainer whose steps are those of a plan."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from world import alone, root, run

import graphc
from graphc.parallel.recorded import Unknown, make, recorded

pytestmark = pytest.mark.usefixtures("exporter", "command")


def trained(world: int, folder: Path, engine: str, **options: Any) -> Any:
    """What the first process of a world has found."""
    pytest.importorskip("lightning")
    from lightning_job import fit

    if engine == "lightning":
        found = alone(lambda: fit(folder, engine, world=world, **options))
    else:
        found = run(world, lambda rank: fit(folder, engine, world=world, **options))
    assert all(isinstance(one, list) for one in found), found[0]["error"]
    assert all(one[0] == found[0][0] for one in found)
    return found[0]


def check_alike(found: Any, expected: Any) -> None:
    """Checks losses, what was logged, and weights."""
    assert found[0] == pytest.approx(expected[0], abs=1e-5)
    assert len(found[1]) == len(expected[1]) > 10
    for line, wanted in zip(found[1], expected[1], strict=True):
        assert line == pytest.approx(wanted, abs=1e-5)
    assert found[2] == pytest.approx(expected[2], abs=1e-4)


@pytest.mark.slow
def test_lightning_trains_by_plans_as_it_does_on_one_device(tmp_path: Path) -> None:
    expected = trained(1, tmp_path / "eager", "lightning")
    assert len(expected[0]) == 20
    assert {"loss_step", "loss_epoch", "mean", "accuracy", "width", "share", "val_loss", "lr-AdamW"} <= {
        name for line in expected[1] for name in line
    }
    for world in (1, 2, 4):
        check_alike(trained(world, tmp_path / str(world), "graphc"), expected)


def contrasting(module: Any) -> Any:
    """Each row's own features are to be those that it is most like, among the rows of all processes."""

    def step(batch: list[Tensor], batch_idx: int) -> Any:
        own = module.layers(batch[0])
        others = module.all_gather({"features": own}, sync_grads=True)["features"].reshape(-1, own.shape[1])
        labels = torch.arange(len(own)) + module.global_rank * len(own)
        loss = nn.functional.cross_entropy(own @ others.T, labels) + own.square().sum() / (len(own) * module.trainer.world_size)
        return {"loss": loss, "best": own.argmax(-1)}

    module.training_step = step
    return module


@pytest.mark.slow
def test_what_a_step_gathers_is_of_the_whole_batch(tmp_path: Path) -> None:
    expected = trained(1, tmp_path / "eager", "lightning", module=contrasting)
    found = trained(2, tmp_path / "plan", "graphc", module=contrasting)
    assert found[0] == pytest.approx(expected[0], abs=1e-5)
    assert found[2] == pytest.approx(expected[2], abs=1e-4)


@pytest.mark.slow
def test_lightning_accumulates_batches_into_a_step(tmp_path: Path) -> None:
    options: Any = {"accumulate_grad_batches": 2, "module": lambda module: module.plain()}
    expected = trained(1, tmp_path / "eager", "lightning", **options)
    found = trained(2, tmp_path / "plan", "graphc", **options)
    pairs = zip(expected[0][::2], expected[0][1::2], strict=True)
    # Lightning divides each loss by the number of batches.
    assert [2.0 * loss for loss in found[0]] == pytest.approx([one + other for one, other in pairs], abs=1e-5)
    assert found[2] == pytest.approx(expected[2], abs=1e-4)


@pytest.mark.slow
def test_lightning_goes_on_from_checkpoints_of_either(tmp_path: Path) -> None:
    expected = trained(1, tmp_path / "eager", "lightning")
    whole = trained(2, tmp_path / "plan", "graphc")
    check_alike(whole, expected)
    for engine, world, origin in (("graphc", 4, "plan"), ("graphc", 1, "eager"), ("lightning", 1, "plan")):
        saved = tmp_path / origin / "epoch0.ckpt"
        found = trained(world, tmp_path / f"{engine}-{origin}", engine, resume=saved)
        assert found[0] == pytest.approx(expected[0][10:], abs=1e-5)
        assert found[2] == pytest.approx(expected[2], abs=1e-4)


def by_number(module: Any) -> Any:
    """Its ``validation_step`` looks at the number of the batch."""
    own = module.validation_step
    module.validation_step = lambda batch, batch_idx: own(batch, batch_idx + 0)
    return module


def check_evaluations(world: int, folder: Path, engine: str, **options: Any) -> Any:
    """Checks what evaluations log; how often the module's own methods ran on each process, and the first one's warnings."""
    pytest.importorskip("lightning")
    from lightning_job import evaluate

    own = alone(lambda: evaluate(folder, "lightning", 1, **options))
    expected = own[0][0]
    assert [sorted(line) for line in expected] == [["val_loss"], ["val_loss"], ["test_accuracy", "test_loss"]]
    found = own if engine == "lightning" else run(world, lambda rank: evaluate(folder, engine, world, **options))
    assert [one["error"] for one in found if isinstance(one, dict)] == []
    for line, wanted in zip(found[0][0], expected, strict=True):
        assert line == pytest.approx(wanted, abs=1e-4)
    return [count for _, count, _ in found], found[0][2]


@pytest.mark.slow
def test_lightning_evaluates_by_plans(tmp_path: Path) -> None:
    assert check_evaluations(1, tmp_path, "lightning") == ([2 + 2 + 2 * 2 + 3], [])
    for world in (1, 2):
        # What a method leaves in the module while it is captured is undone.
        assert check_evaluations(world, tmp_path, "graphc") == ([0] * world, [])


@pytest.mark.slow
def test_what_has_no_plan_lightning_evaluates_itself_and_says_so(tmp_path: Path) -> None:
    ran, said = check_evaluations(1, tmp_path, "graphc", module=by_number)
    assert ran == [2 + 2 + 2 * 2]
    assert len(said) == 2
    for text in said:
        assert text.startswith("the module runs validation_step itself, as it has no plan: validation_step reads its argument 2")


def branching(module: Any) -> Any:
    """Its ``training_step`` looks at the number of the batch."""
    module.training_step = lambda batch, batch_idx: module.layers(batch[0]).mean() * (1.0 if batch_idx else 2.0)
    return module


def annealing(module: Any) -> Any:
    module.training_step = lambda batch, batch_idx: module.layers(batch[0]).mean() * module.current_epoch
    return module


def keeping(module: Any) -> Any:
    module.training_step = lambda batch, batch_idx: module.seen.append(batch[0]) or module.layers(batch[0]).mean()
    return module


def skipping(module: Any) -> Any:
    module.training_step = lambda batch, batch_idx: None
    return module


def by_hand(module: Any) -> Any:
    module.automatic_optimization = False
    return module


def with_hook(module: Any) -> Any:
    module.on_before_optimizer_step = lambda optimizer: None
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        (branching, {}, r"training_step reads its argument 2, the number of the batch, and is captured once, for all steps"),
        (annealing, {}, r"training_step reads `trainer\.current_epoch`, and is captured once, for all steps: let the batch hold it"),
        (keeping, {}, r"training_step writes to `self\.seen`, and is run once, to be captured: self\.log it, or return it"),
        (skipping, {}, r"training_step gives NoneType: let it return the loss"),
        (by_hand, {"gradient_clip_val": None}, r"the module optimizes by hand"),
        (with_hook, {}, r"Classifier has on_before_optimizer_step, and a plan does not show gradients: leave it out"),
        (None, {"precision": "bf16-mixed"}, r"precision='bf16-mixed'\) is no part of plans: GraphcStrategy\(precision='bf16'\) is"),
        (None, {"gradient_clip_algorithm": "value"}, r"a plan scales gradients down by their norm"),
        (None, {"accumulate_grad_batches": 4}, r"the epoch ends with 2 of the 4 batches of a step: let limit_train_batches be a multiple"),
    ],
)
def test_what_lightning_asks_for_and_plans_have_not_is_said(change: Any, options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=said):
        trained(1, tmp_path, "graphc", **({} if change is None else {"module": change}), **options)


class Logging(nn.Module):
    """A module with methods as Lightning's have, and a part that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[Any] = []
        self.part = nn.Identity()

    def log(self, *arguments: Any, **options: Any) -> None:
        self.said.append((arguments, options))

    def log_dict(self, *arguments: Any, **options: Any) -> None:
        self.said.append((arguments, options))


def test_an_error_that_is_none_of_planning_ends_an_evaluation() -> None:
    pytest.importorskip("lightning")
    from graphc.parallel.lightning import GraphcStrategy

    class Broken:
        def prediction(self, *_: Any, **__: Any) -> Any:
            raise graphc.Error("rank 1 has ended")

    strategy: Any = GraphcStrategy()
    strategy._evaluators["validation_step", 1] = Broken()
    with pytest.raises(graphc.Error, match="rank 1 has ended"):
        strategy.validation_step(torch.ones(1))


def test_calls_are_written_down_and_made_again() -> None:
    module, value = Logging(), torch.ones(())
    with recorded(module) as record:
        module.log("loss", value, sync_dist=True, reduce_fx=torch.max)
        module.log_dict({"a": 1.0, "b": value}, prog_bar=True)
        record.put_down("part", "forward", ({"x": [value, None]},), {})
        module.log("part", module.part)
    assert module.said == []
    make(record.calls, module)
    assert module.said == [
        (("loss", value), {"sync_dist": False, "reduce_fx": torch.max}),
        (("a", 1.0), {"prog_bar": True}),
        (("b", value), {"prog_bar": True}),
        (("part", module.part), {}),
    ]


@pytest.mark.parametrize(
    ("begin", "said"), [(object, "self.log is given object, which cannot be kept"), (lambda: Unknown("it changes"), "it changes")]
)
def test_calls_that_cannot_be_made_again_are_refused(begin: Any, said: str) -> None:
    module = Logging()
    with pytest.raises(graphc.Error, match=said), recorded(module):
        module.log("value", begin())


def with_more(output: Tensor, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Any]:
    loss = nn.functional.cross_entropy(output, batch[1])
    return loss, {"right": (output.argmax(-1) == batch[1]).float().mean(), "output": output, "kind": "more"}


@pytest.mark.parametrize("world", [1, 2])
def test_what_a_loss_has_beside_it_is_seen_at_each_step(world: int) -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(8, 4), torch.randint(3, (8,))
    begin = nn.Linear(4, 3).state_dict()

    def work(rank: int) -> Any:
        model = nn.Linear(4, 3)
        model.load_state_dict(begin)
        rows = (x.chunk(world)[rank], labels.chunk(world)[rank])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        parallel = graphc.parallelize(model, rows, loss=with_more, optimizer=optimizer)
        found = []
        for compute in (parallel.step, parallel.eval()):
            loss, beside = compute(rows), parallel.beside
            assert beside["kind"] == "more"
            found.append([float(loss), float(beside["right"]), beside["output"].tolist()])
        return found

    model = nn.Linear(4, 3)
    model.load_state_dict(begin)
    expected = []
    for _ in range(2):
        output = model(x)
        loss, more = with_more(output, (x, labels))
        expected.append((loss.item(), float(more["right"]), output.detach()))
        torch.autograd.backward(loss)
        with torch.no_grad():
            for part in model.parameters():
                assert part.grad is not None
                part -= 0.1 * part.grad
    for rank, found in enumerate(run(world, work)):
        assert isinstance(found, list), found["error"]
        for (loss, right, output), (wanted, share, whole) in zip(found, expected, strict=True):
            assert (loss, right) == pytest.approx((wanted, share), abs=1e-6)
            torch.testing.assert_close(torch.tensor(output), whole.chunk(world)[rank])


@pytest.mark.slow
def test_the_example_of_lightning_starts_its_own_processes(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(root() / "python"), *sys.path])}
    command = [sys.executable, str(root() / "python/examples/lightning_mlp.py")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step_seconds") == 2, done.stdout
