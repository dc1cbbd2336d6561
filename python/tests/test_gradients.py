"""What a model says of gradients beside its ops, and what it keeps of a step for the next one: the same as to PyTorch, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import Wrong
from test_capture import BATCH, begun, check_losses
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import graphc

pytestmark = pytest.mark.usefixtures("exporter", "command")


class Reversed(Function):
    """A function as adversaries have it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -0.5 * gradients[0]


class Signs(Function):
    """A sign whose gradient passes straight through."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.sign(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


class Swish(Function):
    """A function whose gradient is written by hand, to keep less."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        slope = torch.sigmoid(x)
        return gradients[0] * slope * (1 + x * (1 - slope))


class Masked(Function):
    """A softmax of what a mask of integers leaves, which writes to what it has computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        found = x.masked_fill(mask == 0, -1e30).softmax(-1).masked_fill_(mask == 0, 0.0)
        ctx.save_for_backward(found)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (found,) = ctx.saved_tensors
        return found * (gradients[0] - (gradients[0] * found).sum(-1, keepdim=True)), None


class Halved(Function):
    """A function whose gradient is half of its own where a mask of integers holds."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(x, mask)
        return x.square() * mask

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, mask = ctx.saved_tensors
        return gradients[0] * x * mask, None


class Clipped(Function):
    """A sign whose gradient passes where elements are small."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.sign(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * (ctx.saved_tensors[0].abs() < 1)


def reverses(x: Tensor) -> Tensor:
    return x.square().mean() + Reversed.apply(x).sum(0).square().mean()


def has_signs(x: Tensor) -> Tensor:
    return (Signs.apply(x) * torch.arange(4.0) + x).square().mean()


def has_swish(x: Tensor) -> Tensor:
    return Swish.apply(Swish.apply(x * 3.0)).square().mean()


class Averaged(Function):
    """A function that is its own gradient, turned."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.cumsum(-1) + x.flip(-1).cumsum(-1).flip(-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return Averaged.apply(gradients[0])


def calls_itself_backward(x: Tensor) -> Tensor:
    return (Averaged.apply(x) * torch.arange(4.0)).square().mean() * 0.01


def has_masked_scores(x: Tensor) -> Tensor:
    return (Masked.apply(x * 3.0, torch.ones(4, 4, dtype=torch.int64).tril()) * torch.arange(4.0)).square().mean()


def has_data(x: Tensor) -> Tensor:
    return (x * x.data).mean()


def infers(x: Tensor) -> Tensor:
    with torch.inference_mode():
        mean = x.mean(0) * 2.0
    return (x - mean.clone()).square().mean()


def has_checkpoints(x: Tensor) -> Tensor:
    kept = checkpoint(lambda y: torch.tanh(y * 2.0), x, use_reentrant=False)
    return checkpoint(lambda y: torch.tanh(y).square(), kept * x, use_reentrant=True).mean()


def has_sinc(x: Tensor) -> Tensor:
    return (torch.sinc(x) + torch.sinc(x * 0.01) + torch.sinc(x * 0.0)).square().mean() + x.mean()


def has_middles(x: Tensor) -> Tensor:
    middles = x.median(1, keepdim=True)[0] * x.kthvalue(3, 0)[0] + x.median()
    return (middles + torch.hypot(x, x + 2.0)).square().mean()


def has_bags(x: Tensor) -> Tensor:
    bags = (x.detach() > 0).long() + torch.bucketize(x.detach(), torch.tensor([-0.5, 0.0, 0.5]), right=True) // 2
    means, sums = F.embedding_bag(bags, x), F.embedding_bag(bags, x, mode="sum", per_sample_weights=x)
    return (means + sums + F.rrelu(F.bilinear(x, x, x[None] * 0.1))).square().mean()


GIVEN = [
    reverses, has_signs, has_swish, calls_itself_backward,
    has_masked_scores, has_data, infers, has_checkpoints, has_sinc, has_middles, has_bags,
]  # fmt: skip


@pytest.mark.parametrize("function", GIVEN)
def test_gradients_are_those_of_pytorch(function: Callable[[Tensor], Tensor]) -> None:
    check_losses(begun(function))


def clips(x: Tensor) -> Tensor:
    return Clipped.apply(x).square().mean() + x.mean()


def halves(x: Tensor) -> Tensor:
    return Halved.apply(x, torch.ones(4, 4, dtype=torch.int64)).mean()


def hooks_a_tensor(x: Tensor) -> Tensor:
    y = x * 2.0
    if y.requires_grad:
        y.register_hook(lambda gradient: -gradient)
    return y.square().mean()


def casts(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return (x @ x).float().mean()


def looks_up_by_frequency(x: Tensor) -> Tensor:
    return F.embedding(torch.tensor([0, 0, 1]), x, scale_grad_by_freq=True).square().mean()


PLACE = r"\(.*test_gradients\.py, line \d+"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (clips, rf"the backward of Clipped is not the gradient of its forward, .*: write `f\(x\) .* {PLACE}\)"),
        (halves, rf"the backward of Halved is not the gradient of its forward, .* {PLACE}\)"),
        (hooks_a_tensor, rf"a hook on a tensor changes gradients, and a plan derives gradients itself, of the ops: leave it out {PLACE}\)"),
        (casts, rf"the model enters torch.autocast, .*: leave it out, and give precision='bf16' {PLACE}\)"),
        (looks_up_by_frequency, r"aten.embedding.default \(.*, line \d+, .*\) has no translation, .*: leave out scale_grad_by_freq"),
    ],
)
def test_what_a_plan_does_not_know_of_gradients_is_said(function: Callable[[Tensor], Any], said: str) -> None:
    refuse(begun(function), said)


def refuse(model: nn.Module, said: str) -> None:
    """Checks that a model is refused."""
    with pytest.raises(graphc.Error, match=said):
        graphc.parallelize(model, BATCH, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def test_checkpoints_that_learn_nothing_in_pytorch_are_refused() -> None:
    torch.manual_seed(0)
    model = begun(torch.mean)
    function = model.forward
    model.forward = lambda x: checkpoint(function, x, use_reentrant=True)  # type: ignore[method-assign]
    refuse(model, "use_reentrant=True learns nothing of its weights where no input needs a gradient, .*: give it use_reentrant=False")


def squares(x: Tensor) -> Tensor:
    return x.square().mean()


@pytest.mark.parametrize(
    ("hang", "said"),
    [
        (lambda model: model.register_full_backward_hook(lambda *_: None), "`Wrong` has a backward hook, and a plan derives"),
        (lambda model: model.register_full_backward_pre_hook(lambda *_: None), "`Wrong` has a backward hook, and a plan derives"),
        (lambda model: next(model.parameters()).register_hook(lambda *_: None), "the parameter `.*` has a hook on its gradient"),
        (
            lambda model: next(model.parameters()).register_post_accumulate_grad_hook(lambda *_: None),
            "the parameter `.*` has a hook on its gradient",
        ),
        (
            lambda model: model.register_parameter("other", nn.Parameter(next(model.parameters()).data[:2])),
            "the parameters `other` and `layer.weight` share memory: let them be one parameter, under both names",
        ),
    ],
)
def test_hooks_on_gradients_are_refused(hang: Callable[[Wrong], Any], said: str) -> None:
    model = begun(squares)
    hang(model)
    refuse(model, said)


def test_a_plan_is_not_made_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        refuse(begun(squares), r"called under torch.autocast, .*: leave it, and give precision='bf16'")


class Keeping(nn.Module):
    """A model that keeps something of a step."""

    def __init__(self, keep: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.keep = nn.Parameter(torch.randn(4, 4)), keep
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(4), persistent=False)
        self.register_buffer("table", None, persistent=False)
        self.count, self.width = 0, 0
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self.keep(self, torch.tanh(x @ self.weight)).square().mean()


def counts_in_a_buffer(model: Any, x: Tensor) -> Tensor:
    model.steps += 1
    return x * model.steps


def replaces_a_buffer(model: Any, x: Tensor) -> Tensor:
    model.mean = 0.9 * model.mean + x.detach().mean(0)
    return x - model.mean


def caches(model: Any, x: Tensor) -> Tensor:
    if model.width != x.shape[1]:
        model.width, model.last = x.shape[1], torch.arange(4.0)
    model.seen = x.detach()
    return x * model.last


def registers_a_buffer(model: Any, x: Tensor) -> Tensor:
    if model.table is None or model.table.shape[0] < x.shape[1]:
        model.register_buffer("table", torch.arange(1.0, 1.0 + x.shape[1]), persistent=False)
    if not hasattr(model, "other"):
        model.register_buffer("other", torch.ones(4), persistent=False)
    return x * model.table + model.other


@pytest.mark.parametrize("keep", [counts_in_a_buffer, replaces_a_buffer, caches, registers_a_buffer])
def test_what_buffers_keep_of_a_step_is_there_in_the_next(keep: Callable[[Any, Tensor], Tensor]) -> None:
    check_losses(Keeping(keep))


def test_a_captured_model_has_the_attributes_of_before() -> None:
    model = Keeping(caches)
    graphc.parallelize(model, BATCH, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert (model.width, model.last, hasattr(model, "seen")) == (0, None, False)
    assert torch.equal(model.mean, torch.zeros(4))


def test_a_captured_model_has_the_buffers_of_before() -> None:
    model = Keeping(registers_a_buffer)
    parallel = graphc.parallelize(model, BATCH, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert sorted(parallel.state_dict()) == ["steps", "weight"]
    assert sorted(model._buffers) == ["mean", "steps", "table"]
    assert model.table is None


def counts(model: Any, x: Tensor) -> Tensor:
    model.count += 1
    return x * model.count


def keeps_the_last(model: Any, x: Tensor) -> Tensor:
    last, model.last = model.last, x.detach()
    return x if last is None else x - last


def writes_to_the_weight(model: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        model.weight.clamp_(-0.5, 0.5)
    return x


def writes_to_data(model: Any, x: Tensor) -> Tensor:
    model.weight.data.clamp_(-0.5, 0.5)
    return x


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        (counts, "the model changes its attribute `count` in a step, and the next one computes something else: let it be a buffer"),
        (keeps_the_last, "the model changes its attribute `last` in a step, and the next one computes something else"),
        (
            writes_to_the_weight,
            "writes to (the parameter `weight`: an optimizer changes it, or it is a buffer|a parameter, which the optimizer changes)",
        ),
        (writes_to_data, rf"aten.clamp_.default {PLACE}.* writes to a parameter, which the optimizer changes"),
    ],
)
def test_what_else_a_model_keeps_of_a_step_is_refused(keep: Callable[[Any, Tensor], Tensor], said: str) -> None:
    refuse(Keeping(keep), said)


def test_the_mask_that_a_model_of_transformers_makes_is_the_one_that_it_makes_when_it_runs() -> None:
    transformers: Any = pytest.importorskip("transformers", minversion="5.3")
    config = transformers.DogeConfig(
        vocab_size=31, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, use_cache=False,
        max_position_embeddings=16, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    tokens = torch.randint(31, (2, 8))
    check_losses(transformers.DogeForCausalLM(config).train(), {"input_ids": tokens, "labels": tokens})
