"""Models of PyTorch's own kind, trained by plans: losses and weights are those of plain PyTorch on the same batches."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import built
from torch import Tensor, nn
from world import root, run

import graphc

ROWS, STEPS = 8, 20


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """What of PyTorch a capture needs is imported once, for all processes that are forked from this one."""
    program = torch.export.export(nn.Linear(1, 1), (torch.ones(1, 1),), strict=False)
    program.run_decompositions(torch.export.default_decompositions())


@pytest.fixture(autouse=True)
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHC", str(built("graphc")))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        parts = self.qkv(self.before(x)).split(width, dim=2)
        query, key, value = (part.view(batch, time, 2, width // 2).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Its head shares the table's weight; a layer that is never called has weights too."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(31, 16), nn.Embedding(8, 16)
        self.blocks, self.last, self.unused = nn.ModuleList([Block(16), Block(16)]), nn.LayerNorm(16), nn.Linear(2, 2)
        self.head = nn.Linear(16, 31, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(self.last(x))
        return found


class Resnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.pool = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.MaxPool2d(3, 2, 1)
        self.second, self.other = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.act, self.classes = nn.ReLU(inplace=True), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.act(self.norm(self.first(x))))
        y = self.other(self.second(x))
        y += x
        found: Tensor = self.classes(F.adaptive_avg_pool2d(self.act(y), 1).flatten(1))
        return found


class Odd(nn.Module):
    """What is easily lost on the way: a gradient that ends, padding, a mask of a buffer, a view that is written to, a state."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.scale = nn.Embedding(9, 6, padding_idx=0), nn.Parameter(torch.ones(6))
        self.register_buffer("mask", torch.ones(4, 4, dtype=torch.bool).tril(), persistent=False)
        self.register_buffer("seen", torch.zeros(6))
        self.layer = nn.Linear(6, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) * self.scale
        with torch.no_grad():
            shift = self.scale.mean() + self.table.weight.sum()
            self.seen.mul_(0.5).add_(x.mean((0, 1)))
        x = x * x.detach() + shift
        scores = (x @ x.transpose(1, 2) / 6**0.5).masked_fill(~self.mask, float("-inf"))
        x = scores.softmax(-1) @ x
        x = torch.cat([x[:, 1:], x[:, :1]], 1).clone()
        # What is known is computed with after it was a tensor of the graph, too; an index of -1 counts from the end.
        places = torch.arange(4)
        x = x + 0.01 * places[:, None]
        x = x + 0.01 * F.relu6(x[:, places - 1].cumsum(1))
        x[:, 0] = 0.5
        found: Tensor = self.layer(x.var(1) + x.abs().pow(1.5).amax(1))
        return found


def labels(output: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(output.flatten(0, -2), batch[1].flatten(), label_smoothing=0.1)


def squares(output: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(output, batch[1])


def grouped(model: nn.Module) -> torch.optim.Optimizer:
    """Vectors without decay, and with half the rate."""
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    return torch.optim.AdamW([{"params": others}, {"params": vectors, "weight_decay": 0.0, "lr": 5e-4}], lr=1e-3, weight_decay=0.1)


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module]
    loss: Callable[[Any, Any], Tensor]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    batch: Callable[[torch.Generator], tuple[Tensor, Tensor]]
    apart: str = "nothing"
    """Weights whose gradient is 0 but for rounding, of which Adam makes whole steps: the biases of keys."""

    def begin(self, device: str = "cpu") -> tuple[nn.Module, torch.optim.Optimizer, list[tuple[Tensor, Tensor]]]:
        torch.manual_seed(0)
        with torch.device(device):
            model = self.model()
        generator = torch.Generator().manual_seed(1)
        return model, self.optimizer(model), [self.batch(generator) for _ in range(3)]


CASES = {
    "mlp": Case(
        lambda: nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 5)),
        labels,
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True),
        lambda of: (torch.randn(ROWS, 12, generator=of), torch.randint(5, (ROWS,), generator=of)),
    ),
    "gpt": Case(
        Gpt,
        labels,
        grouped,
        lambda of: (torch.randint(31, (ROWS, 8), generator=of), torch.randint(31, (ROWS, 8), generator=of)),
        "qkv.bias",
    ),
    "resnet": Case(
        Resnet,
        labels,
        lambda model: torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-2, betas=(0.8, 0.9)),
        lambda of: (torch.randn(ROWS, 3, 8, 8, generator=of), torch.randint(5, (ROWS,), generator=of)),
    ),
    "transformer": Case(
        lambda: nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu"), nn.Linear(8, 8)),
        squares,
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
        lambda of: (torch.randn(ROWS, 5, 8, generator=of), torch.randn(ROWS, 5, 8, generator=of)),
        "in_proj_bias",
    ),
    "odd": Case(
        Odd,
        labels,
        lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
        lambda of: (torch.randint(9, (ROWS, 4), generator=of), torch.randint(5, (ROWS,), generator=of)),
    ),
}


def plain(name: str) -> tuple[list[float], dict[str, list[float]]]:
    """Losses and weights of PyTorch, in this process: in one that is forked from it PyTorch has no gradients."""
    model, optimizer, batches = CASES[name].begin()
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = CASES[name].loss(model(batches[step % 3][0]), batches[step % 3])
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(float(loss))
    return losses, flat(model.state_dict())


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


def flat(state: dict[str, Tensor]) -> dict[str, list[float]]:
    return {name: tensor.double().flatten().tolist() for name, tensor in state.items()}


OFTEN = [("mlp", 1), ("gpt", 2), ("resnet", 4), ("odd", 1)]
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
    with pytest.raises(graphc.Error, match=r"`layer\.weight` has had 7 steps and `layer\.bias` 1: graphc has the same number for all"):
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


class Wrong(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


def sorted_sum(x: Tensor) -> Tensor:
    return torch.sort(x).values.sum()


def branches(x: Tensor) -> Tensor:
    return x.sum() if x.sum() > 0 else x.mean()


def chosen(x: Tensor) -> Tensor:
    found: Tensor = torch.cond(x.sum() > 0, lambda y: y.sum(), lambda y: y.mean(), (x,))
    return found


def no_number(x: Tensor) -> Tensor:
    return x.double().sum()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (sorted_sum, r'aten\.sort\.default \(.*test_parallelize\.py, line \d+, in forward: "return self\.function.*"\) has no translation'),
        (branches, r"torch\.export cannot capture the model: .*test_parallelize\.py, line \d+"),
        (no_number, "float64, which graphc has not"),
        (lambda x: (x, x), "the loss is NoneType, of an output that is tuple: give parallelize a loss"),
        (chosen, "is a branch or a loop that depends on data"),
        (lambda x: x, r"the loss is f32\[2, 4\]: let it be one number"),
    ],
)
def test_what_has_no_translation_is_said_with_its_place(function: Callable[[Tensor], Any], said: str) -> None:
    model = Wrong(function)
    with pytest.raises(graphc.Error, match=said):
        graphc.parallelize(model, torch.ones(2, 4), optimizer=torch.optim.SGD(model.parameters()))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (torch.optim.Adagrad, "graphc has no optimizer Adagrad: use"),
        (lambda parameters: torch.optim.Adam(parameters, amsgrad=True), "graphc has no optimizer with amsgrad"),
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
    with pytest.raises(graphc.Error, match=r"`batch\.x` is f32\[3, 4\], and in the example batch it is f32\[2, 4\]"):
        parallel.step({"x": torch.ones(3, 4)})
    with pytest.raises(graphc.Error, match=r"`batch\.y` is not in the example batch, which has batch\.x"):
        parallel.step({"x": torch.ones(2, 4), "y": torch.ones(2)})
    with pytest.raises(graphc.Error, match=r"`batch\.x` is str: let a batch hold tensors alone"):
        parallel.step({"x": "none"})
    optimizer.param_groups[0]["lr"] = 0.2
    with pytest.raises(graphc.Error, match=r"the learning rates are \[0\.2\], and the plan has \[0\.1\]: give parallelize the schedule"):
        parallel.step({"x": torch.ones(2, 4)})


def test_the_script_of_the_guide_trains(tmp_path: Path) -> None:
    script = re.findall(r"```python\n(.*?)```", (root() / "docs/guide.md").read_text(), re.DOTALL)[0]
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
