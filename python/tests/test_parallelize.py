"""Models of PyTorch's own kind, trained by plans: losses and weights are those of plain PyTorch on the same batches."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES, ROWS, STEPS, Gpt, Wrong, flat, labels, plain
from torch import Tensor, nn
from world import root, run

import graphc
from graphc.parallel.ops import distances, exponentials, orders
from graphc.parallel.ops.table import table
from graphc_torch.ops import Call, Clock, Port, prepare
from graphc_torch.plan import Op

pytestmark = pytest.mark.usefixtures("exporter", "command")


def planned(name: str, world: int, options: dict[str, Any]) -> Callable[[int], Any]:
    """Losses and weights of a plan, of which each rank has its rows."""

    def work(rank: int) -> Any:
        # Weights are the first rank's, and the others need none.
        model, optimizer, batches = CASES[name].begin("meta" if rank > 0 and name == "resnet" else "cpu")
        count = ROWS // world
        rows = [tuple(part[rank * count : (rank + 1) * count] for part in batch) for batch in batches]
        parallel = graphc.parallelize(model, rows[0], loss=CASES[name].loss, optimizer=optimizer, **options)
        return [float(parallel.step(rows[step % 3])) for step in range(STEPS)], flat(parallel.state_dict())

    return work


OFTEN = [("mlp", 1), ("gpt", 2), ("resnet", 4), ("odd", 1), ("places", 1), ("apart", 1), ("views", 2)]
OPTIONS: list[dict[str, Any]] = [
    {"mesh": (4,), "strategy": "zero3"},
    {"mesh": (2, 2), "strategy": "megatron"},
    {"mesh": (2, 2), "stages": 2, "microbatches": 2},
]


@pytest.mark.parametrize(
    ("name", "world"),
    [pytest.param(name, world, marks=() if (name, world) in OFTEN else pytest.mark.slow) for name in CASES for world in (1, 2, 4)],
)
def test_losses_and_weights_are_those_of_pytorch(name: str, world: int) -> None:
    check_against_pytorch(name, world, {})


# A state that each microbatch would change is refused, so the odd one has none.
OTHERS = [
    (name, options) for name in ("gpt", "transformer", "odd") for options in OPTIONS if (name, "microbatches" in options) != ("odd", True)
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), OTHERS, ids=str)
def test_other_plans_compute_the_same(name: str, options: dict[str, Any]) -> None:
    check_against_pytorch(name, 4, options)


def check_against_pytorch(name: str, world: int, options: dict[str, Any]) -> None:
    expected, weights = plain(name)
    for found in run(world, planned(name, world, options)):
        assert not isinstance(found, dict), found["error"]
        losses, state = found
        assert losses == pytest.approx(expected, abs=1e-5)
        assert list(state) == list(weights)
        for key, content in state.items():
            assert CASES[name].apart in key or content == pytest.approx(weights[key], abs=1e-5), key


def test_a_state_is_loaded_by_its_names() -> None:
    batch = (torch.randint(31, (2, 8)), torch.randint(31, (2, 8)))

    def begun(seed: int, device: str = "cpu") -> graphc.Parallel:
        torch.manual_seed(seed)
        with torch.device(device):
            model = Gpt()
        return graphc.parallelize(model, batch, loss=labels, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

    first, second = begun(0), begun(1, "meta")
    with pytest.raises(graphc.Error, match="give it some with load_state_dict"):
        second.step(batch)
    first.step(batch)
    second.load_state_dict(first.state_dict())
    assert float(second.step(batch)) == float(first.step(batch))
    state = second.state_dict()
    assert torch.equal(state["head.weight"], state["tokens.weight"])
    with pytest.raises(graphc.Error, match=r"it has no `last\.bias`"):
        second.load_state_dict({name: tensor for name, tensor in state.items() if name != "last.bias"})
    with pytest.raises(graphc.Error, match="`more`, which the model has not"):
        second.load_state_dict(state | {"more": torch.ones(1)})
    with pytest.raises(graphc.Error, match=r"`last\.bias` has the shape \[16\], and that of the state \[3\]"):
        second.load_state_dict(state | {"last.bias": torch.ones(3)})


def nanmedian(x: Tensor) -> Tensor:
    return x.nanmedian()


def branches(x: Tensor) -> Tensor:
    return x.sum() if x.sum() > 0 else x.mean()


def in_loss(output: Tensor, batch: Tensor | None = None) -> Tensor:
    return torch.special.bessel_j0(output).sum()


def chosen(x: Tensor) -> Tensor:
    found: Tensor = torch.cond(x.sum() > 0, lambda y: y.sum(), lambda y: y.mean(), (x,))
    return found


def no_number(x: Tensor) -> Tensor:
    return x.double().sum()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (nanmedian, r'aten\.nanmedian\.default \(.*cases\.py, line \d+, in forward: "return self\.function.*"\) has no translation'),
        (in_loss, r'aten\.special_bessel_j0\.default \(.*test_parallelize\.py, line \d+, in the loss: "def in_loss'),
        (branches, r"torch\.export cannot capture the model: .*test_parallelize\.py, line \d+"),
        (no_number, "float64, which graphc has not"),
        (lambda x: (x, x), "the loss is NoneType, of an output that is tuple: give parallelize a loss"),
        (chosen, r"a branch or a loop that depends on data, which graphc has not: .*test_parallelize\.py, line \d+"),
        (lambda x: x, r"the loss is f32\[2, 4\]: let it be one number"),
    ],
)
def test_what_has_no_translation_is_said_with_its_place(function: Callable[[Tensor], Any], said: str) -> None:
    model = Wrong(torch.relu if function is in_loss else function)
    loss = in_loss if function is in_loss else None
    with pytest.raises(graphc.Error, match=said):
        graphc.parallelize(model, torch.ones(2, 4), loss=loss, optimizer=torch.optim.SGD(model.parameters()))


def test_what_a_module_of_pytorch_does_is_none_of_the_loss() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.RReLU())
    with pytest.raises(graphc.Error, match=r"rrelu_with_noise_functional.default \(.*activation\.py, line \d+, in forward"):
        graphc.parallelize(model, torch.ones(2, 4), loss=lambda output, _: output.sum(), optimizer=torch.optim.SGD(model.parameters()))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda model: {"model": nn.DataParallel(model)}, r"the model is in DataParallel, and .*: give model\.module"),
        (lambda _: {"loss": nn.CrossEntropyLoss()}, "CrossEntropyLoss takes an output and labels, and a batch is no pair"),
        (lambda model: {"loss": model}, "the loss Wrong has parameters: make it a part of the model"),
    ],
)
def test_models_and_losses_that_are_none_are_refused(wrong: Callable[[Any], dict[str, Any]], said: str) -> None:
    model = Wrong(torch.sum)
    given = {"model": model, "optimizer": torch.optim.SGD(model.parameters())} | wrong(model)
    with pytest.raises(graphc.Error, match=said):
        graphc.parallelize(example_batch=torch.ones(2, 4), **given)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (torch.optim.ASGD, "parallelize takes no optimizer ASGD: use"),
        (torch.optim.LBFGS, "parallelize takes no optimizer LBFGS: use"),
        (lambda parameters: torch.optim.Adam(parameters, differentiable=True), "graphc has no optimizer with differentiable"),
        (lambda _: torch.optim.SGD([nn.Parameter(torch.ones(1))]), "a parameter that the model has not"),
    ],
)
def test_optimizers_that_are_none_are_refused(make: Callable[[Any], torch.optim.Optimizer], said: str) -> None:
    model = Wrong(torch.sum)
    with pytest.raises(graphc.Error, match=said):
        graphc.parallelize(model, torch.ones(2, 4), optimizer=make(model.parameters()))


def test_steps_that_do_not_fit_are_refused() -> None:
    model = Wrong(torch.mean)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = graphc.parallelize(model, {"x": torch.ones(2, 4)}, optimizer=optimizer)
    with pytest.raises(
        graphc.Error, match=r"`batch\.x` is f32\[8\], and in the example batch it is f32\[2, 4\]: batches may differ in ext"
    ):
        parallel.step({"x": torch.ones(8)})
    with pytest.raises(graphc.Error, match=r"`batch\.x` is i64\[2, 4\], and in the example batch it is f32\[2, 4\]"):
        parallel.step({"x": torch.ones(2, 4, dtype=torch.int64)})
    with pytest.raises(graphc.Error, match=r"`batch\.y` is not in the example batch, which has batch\.x"):
        parallel.step({"x": torch.ones(2, 4), "y": torch.ones(2)})
    with pytest.raises(graphc.Error, match=r"`batch\.x` is str: let a batch hold tensors alone"):
        parallel.step({"x": "none"})
    with pytest.raises(graphc.Error, match="a step is made of 1 batches, as accumulate says, and 2 are given"):
        parallel.step({"x": torch.ones(2, 4)}, {"x": torch.ones(2, 4)})
    optimizer.param_groups[0]["momentum"] = 0.2
    with pytest.raises(graphc.Error, match=r"momentum was 0 and is 0\.2, but it is part of the plan: give it to parallelize again"):
        parallel.step({"x": torch.ones(2, 4)})


def test_the_script_of_start_trains(tmp_path: Path) -> None:
    scripts = re.findall(r"```python\n(.*?)```", (root() / "docs/start.md").read_text(), re.DOTALL)
    (script,) = [script for script in scripts if "graphc.parallelize(" in script and "losses" in script]
    assert len([line for line in script.splitlines() if line]) <= 15

    def work(rank: int) -> list[float]:
        os.chdir(tmp_path)
        torch.manual_seed(rank)
        names: dict[str, Any] = {}
        exec(script, names)
        losses: list[float] = names["losses"]
        return losses

    first, second = run(2, work)
    assert isinstance(first, list), first["error"]
    assert first == second
    assert first[-1] < 0.5 * first[0]
    plain_model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    plain_model.load_state_dict(torch.load(tmp_path / "model.pt"), strict=True)


@pytest.mark.slow
def test_modules_of_libraries_train_to_eager_losses() -> None:
    for package in ("torchvision", "timm", "transformers"):
        pytest.importorskip(package)
    names = ["VGG", "SegFormer", "MLP-Mixer", "Mixtral", "Gemma 3", "DeBERTa", "T5", "Whisper", "CLIP"]
    environment = os.environ | {"PYTHONPATH": str(root() / "python"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(root() / "benchmarks/modules.py"), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 of 9 modules train to eager's losses" in done.stdout


@pytest.mark.parametrize(("stride", "size"), [(1, 3), (2, 3), (2, 1)])
def test_kernels_that_are_larger_than_images_learn_as_others_do(stride: int, size: int) -> None:
    x, dy = torch.randn(2, 4, 5, 5), torch.randn(2, 64, -(-5 // stride), -(-5 // stride))
    pads = [size // 2] * 4
    window = {"strides": [stride] * 2, "pads": pads, "dilations": [1, 1]}
    op = Op("convolution_kernel_grad", {"window": window, "groups": 1, "extents": [size, size]})
    dk = torch.zeros(64, 4, size, size)
    ports = [Port(tensor, tuple(tensor.shape), (0,) * 4) for tensor in (x, dy, dk)]
    prepare(Call(op, ports[:2], ports[2:], Clock()))()
    expected = torch.nn.grad.conv2d_weight(x, dk.shape, dy, stride=stride, padding=size // 2)
    torch.testing.assert_close(dk, expected, atol=1e-5, rtol=1e-5)


GPT2 = root() / "python/examples/gpt2.py"


def test_the_readme_shows_the_script_of_gpt2() -> None:
    script = re.findall(r"```python\n(.*?)```", (root() / "README.md").read_text(), re.DOTALL)[0]
    assert script == GPT2.read_text()
    assert len([line for line in script.splitlines() if line]) <= 15


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 4])
def test_gpt2_under_torchrun_trains_as_it_does_in_pytorch(world: int, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world), str(GPT2)]
    environment = os.environ | {"PYTHONPATH": str(root() / "python"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "gpt2.pt")
    # What stands before the call of graphc makes the model, the optimizer and the batches of one process.
    names: dict[str, Any] = {}
    exec(GPT2.read_text().split("model = graphc.parallelize")[0], names)
    model, optimizer, losses = names["model"], names["optimizer"], []
    for batch in names["batches"]:
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(losses) == STEPS
    assert losses[-1] < losses[0]
    assert found["losses"] == pytest.approx(losses, abs=1e-5)
    weights = model.state_dict()
    assert list(found["model"]) == list(weights)
    for name, tensor in found["model"].items():
        torch.testing.assert_close(tensor, weights[name], atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("name", ["log1p", "expm1", "elu", "sinh", "atanh"])
def test_formulas_are_right_near_zero_too(name: str) -> None:
    own = getattr(exponentials, name)
    theirs: Any = torch.nn.functional.elu if name == "elu" else getattr(torch, name)
    places = [
        0.0,
        1e-30,
        1e-9,
        -1e-9,
        1e-5,
        -1e-4,
        0.03,
        -0.05,
        0.0999,
        0.1,
        -0.1,
        0.11,
        0.4,
        -0.6,
        0.9,
        *(() if name == "atanh" else (30.0, 80.0)),
    ]
    found, expected = (torch.tensor(places, requires_grad=True) for _ in range(2))
    mine, right = own(found), theirs(expected)
    # PyTorch's own ELU rounds to multiples of 6e-8 on some processors.
    torch.testing.assert_close(mine, right, rtol=3e-6, atol=6e-8 if name == "elu" else 0.0)
    torch.autograd.backward([mine, right], [torch.ones_like(mine)] * 2)
    torch.testing.assert_close(found.grad, expected.grad, rtol=3e-6, atol=0.0)


def test_the_least_of_numbers_without_a_sign_and_norms_of_infinite_order() -> None:
    x = torch.tensor([[3, 0, 255], [9, 7, 8]], dtype=torch.uint8)
    assert orders.place_of_least(x, 1).tolist() == torch.argmin(x, 1).tolist()
    assert [part.tolist() for part in orders.least(x, 1)] == [part.tolist() for part in torch.min(x, 1)]
    y = torch.tensor([[3.0, -4.0], [0.0, 2.0]])
    for order in (float("inf"), -float("inf"), 0.0, 1.0, 2.0, 3.0):
        torch.testing.assert_close(distances.norm(y, order, [1]), torch.linalg.vector_norm(y, order, 1))


def test_an_option_that_a_translation_passes_over_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Wrong(lambda x: torch.nn.functional.gelu(x, approximate="tanh").sum())
    monkeypatch.setitem(table(), "gelu", lambda call: call.writer.unary("silu", call.tensor("self")))
    with pytest.raises(graphc.Error, match=r"aten\.gelu\.default .* has no translation, as graphc has it without approximate=tanh"):
        graphc.parallelize(model, torch.ones(2, 4), optimizer=torch.optim.SGD(model.parameters()))
