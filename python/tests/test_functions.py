"""Functions of PyTorch that graphc has not as they are, and writes with others: losses of trainings beside PyTorch's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_capture import BATCH, begun, check_losses
from torch import Tensor, nn

import graphc

pytestmark = pytest.mark.usefixtures("exporter", "command")


def volume(x: Tensor) -> Tensor:
    return torch.stack([x, x * 2.0, x.sin(), x.cos()]).reshape(1, 1, 4, 4, 4)


def image(x: Tensor) -> Tensor:
    return (x @ x.t()).reshape(1, 1, 4, 4)


def weigh(*parts: Tensor) -> Tensor:
    """A number of which each element of each part has its own share."""
    flat = torch.cat([part.flatten() for part in parts])
    return ((flat + torch.arange(1.0, 1.0 + flat.numel()) / flat.numel()).square()).mean()


def scans(x: Tensor) -> Tensor:
    with_zero = torch.cat([x, 0.0 * x[:, :1], x[:, :2]], 1)
    return weigh(with_zero.cumprod(1), x.cumprod(0), x.cummax(1)[0], x.cummin(0)[0], x.logcumsumexp(1), x.detach().cummax(1)[1].float())


def turns(x: Tensor) -> Tensor:
    inside, size = torch.tanh(x) * 0.95, x.abs()
    angles = [torch.acos(inside), torch.asin(inside), torch.atan(x * 3.0), torch.atan2(x, x.flip(0)), torch.atan2(x, -2.0 * x.flip(1))]
    return weigh(*angles, torch.asinh(x * 5.0), torch.acosh(size + 1.1), torch.log(torch.erfc(x * 4.0)))


def pools_volumes(x: Tensor) -> Tensor:
    whole = volume(x)
    greatest = [F.max_pool3d(whole, 2), F.max_pool3d(whole[0], 3, 2, 1)]
    means = [F.avg_pool3d(whole, (2, 3, 3), (2, 2, 1), (1, 1, 1)), F.avg_pool3d(whole, 3, 2, 1, count_include_pad=False)]
    means += [F.avg_pool3d(whole, 2, divisor_override=3), F.adaptive_avg_pool3d(whole, (1, 2, 3))]
    return weigh(*greatest, *means, F.local_response_norm(x.reshape(1, 4, 2, 2), 3))


def pools_to_sizes(x: Tensor) -> Tensor:
    values, places = F.adaptive_max_pool2d(image(x), (2, 3), return_indices=True)
    return weigh(values, places.float(), F.adaptive_max_pool1d(x[None], 3))


def pools_without_a_batch(x: Tensor) -> Tensor:
    single = torch.stack([x, x.sin()])
    means = [F.avg_pool2d(single, 3, 2, 1, ceil_mode=True), F.avg_pool2d(single, 2, divisor_override=3), F.avg_pool1d(x, 3)]
    adapted = [F.adaptive_avg_pool2d(single, size) for size in (2, (3, 4))]
    return weigh(*means, *adapted, F.max_pool2d(single, 3, 2, 1, ceil_mode=True), F.max_pool1d(x, 2))


def adds_products(x: Tensor) -> Tensor:
    vectors = torch.addmv(x[0], x, x[1], beta=0.5, alpha=2.0)
    return weigh(vectors, torch.addbmm(x, torch.stack([x, x.sin()]), torch.stack([x, x.cos()]), beta=2.0, alpha=0.1)) * 0.1


def turns_volumes(x: Tensor) -> Tensor:
    kernels = x[:2].reshape(1, 1, 2, 2, 2)
    usual = F.conv_transpose3d(volume(x), kernels, stride=2)
    other = F.conv_transpose3d(volume(x), kernels, x[0, :1], (3, 2, 1), (1, 0, 1), (1, 0, 0), dilation=(1, 1, 2))
    return weigh(usual, other) * 0.1


def resizes_smoothly(x: Tensor) -> Tensor:
    ways = ("bilinear", "bicubic")
    return weigh(*(F.interpolate(image(x), size=size, mode=way, antialias=True) for way in ways for size in (3, (2, 6)))) * 0.1


def puts_every_second(x: Tensor) -> Tensor:
    whole = torch.zeros(4, 8)
    whole[:, ::2], whole[:, 1::2] = x, x.flip(1) * 2.0
    whole[1::2, 3:7:3] = x[:2, :2]
    # There are none behind the last.
    whole[1:, 8:12:2] = x[1:, 4:6:2]
    return weigh(whole)


def has_statistics(x: Tensor) -> Tensor:
    shares = [torch.quantile(x, 0.3, dim=1), x.quantile(torch.tensor([0.25, 0.6]), 0, True), x.quantile(0.4, interpolation="nearest")]
    weights = {"fweights": torch.tensor([1, 2, 3, 1]), "aweights": torch.tensor([0.1, 0.2, 0.3, 0.4])}
    return weigh(*shares, torch.cov(x), torch.cov(x, **weights), torch.corrcoef(x), F.pdist(x))


def counts_and_repeats(x: Tensor) -> Tensor:
    edges, numbers = torch.tensor([-0.5, 0.0, 0.5]), (x.detach() * 4).long()
    found = torch.searchsorted(edges, x.detach()) + torch.searchsorted(edges.repeat(4, 1) * 2, x.detach(), right=True)
    bits = (numbers ^ 3) + (numbers << 1) + (numbers >> 1)
    repeated = x.repeat_interleave(torch.tensor([1, 2, 0, 3]), 0), torch.repeat_interleave(x, torch.tensor([2]), 1)
    return weigh(x * found, x * bits * 0.1, *repeated, torch.lerp(x, x.t(), 0.3), torch.copysign(x, x.detach().flip(0)))


def has_functions_of_statistics(x: Tensor) -> Tensor:
    size = x.abs() + 0.2
    parts = [torch.digamma(size), torch.digamma(20.0 * size), torch.digamma(-0.3 - 0.5 * torch.sigmoid(x)), torch.erfinv(torch.tanh(x))]
    signs = torch.signbit(torch.cat([x.detach(), torch.tensor([[0.0, -0.0, 1.0, -2.0]])])).float()
    gammas = [torch.distributions.Gamma(of, 1.0) for of in (size, size.flip(0))]
    dirichlet = torch.distributions.Dirichlet(size)
    return weigh(
        *parts, signs, torch.distributions.kl_divergence(*gammas), dirichlet.entropy(), torch.distributions.Beta(size, 2.0).entropy()
    )


def looks_bags_up(x: Tensor) -> Tensor:
    """Of the first two rows some begin where others do, and so are empty; one holds nothing but padding."""
    rows, begins = torch.tensor([[0, 3, 3], [1, 2, 2], [2, 2, 2]]), torch.tensor([0, 2, 2, 5, 7])
    ways = [{"mode": mode, **more} for mode in ("sum", "mean", "max") for more in ({}, {"padding_idx": 2})]
    of_rows = [F.embedding_bag(rows, x, **way) for way in ways]
    of_offsets = [F.embedding_bag(rows.flatten()[:8], x, begins, **way) for way in ways]
    last = F.embedding_bag(
        rows.flatten(), x, torch.tensor([0, 4, 9]), include_last_offset=True, per_sample_weights=x.flatten()[:9], mode="sum"
    )
    return weigh(*of_rows, *of_offsets, last)


def is_of_one_element(x: Tensor) -> Tensor:
    return weigh(x).reshape(1, 1)


def has_margins_of_labels(x: Tensor) -> Tensor:
    labels = torch.tensor([[0, 1, -1, 2], [1, -1, 0, 0], [2, 3, -1, 0], [3, 0, 1, -1]])
    return F.multilabel_margin_loss(x, labels) + F.multilabel_margin_loss(x * 2.0, labels, reduction="none").square().sum() * 0.01


def computes_with_bits(x: Tensor) -> Tensor:
    numbers, truths = (x.detach() * 4).long(), x.detach() > 0
    powers = (numbers**3 + numbers.int() ** 2 + numbers**0) * 0.01
    return weigh(x * powers, x * ~numbers, x * (truths ^ (x.detach() > 0.5)), x * (truths ^ True), x * (truths + (x.detach() < -0.5))) * 0.3


def writes_to_diagonals(x: Tensor) -> Tensor:
    whole = torch.stack([x, x.sin()])
    whole.diagonal(0, 1, 2).fill_(0.5)
    whole.diagonal(-1, 1, 2).mul_(3.0)
    whole.diagonal(2, 2, 1)[:, :1].add_(1.0)
    return weigh(whole, torch.diagonal_scatter(x[:, :3], x[0, :2], 1))


@pytest.mark.parametrize(
    "function",
    [
        pools_without_a_batch,
        adds_products,
        computes_with_bits,
        writes_to_diagonals,
        scans,
        turns,
        pools_volumes,
        pools_to_sizes,
        turns_volumes,
        resizes_smoothly,
        puts_every_second,
        has_statistics,
        counts_and_repeats,
        has_functions_of_statistics,
        looks_bags_up,
        is_of_one_element,
        has_margins_of_labels,
    ],
)
def test_losses_are_those_of_pytorch(function: Callable[[Tensor], Tensor]) -> None:
    check_losses(begun(function))


def test_statistics_of_which_a_step_takes_nothing_stay() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=0.0))
    plain = copy.deepcopy(model)
    optimizer, expected = torch.optim.SGD(plain.parameters(), lr=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = weigh(plain(BATCH))
        torch.autograd.backward(loss)
        optimizer.step()
        expected.append(float(loss.detach()))
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = graphc.parallelize(model, BATCH, loss=lambda output, _: weigh(output), optimizer=own)
    assert [float(parallel.step(BATCH)) for _ in range(3)] == pytest.approx(expected, abs=1e-5)
    state = parallel.state_dict()
    torch.testing.assert_close(state, plain.state_dict())


def draws(x: Tensor) -> Any:
    """A mean of waiting times, of numbers around a mean, of places by their weights, and a sum that no order changes."""
    weights = torch.tensor([0.0, 1.0, 3.0]).expand(400, 3)
    times, others = torch.empty(400).exponential_(2.0).mean(), torch.normal(torch.full((400,), 3.0), torch.full((400,), 0.5)).mean()
    others = 0.5 * (others + torch.empty(400).normal_(3.0, 0.5).mean())
    places = torch.multinomial(weights, 5, replacement=True).float().mean(), torch.multinomial(weights, 1).float().mean()
    orders = (torch.randperm(7) * 2 ** torch.arange(7)).sum().float(), torch.randperm(7).sum().float()
    return x.square().mean(), torch.stack([times, others, *places, orders[1], orders[0]])


def test_random_numbers_are_drawn_as_pytorch_draws_them() -> None:
    model = begun(draws)
    parallel = graphc.parallelize(model, BATCH, loss=lambda output, _: output, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    seen = []
    for _ in range(3):
        parallel.step(BATCH)
        seen.append(parallel.beside)
        assert seen[-1][:5].tolist() == pytest.approx([0.5, 3.0, 1.75, 1.75, 21.0], abs=0.2)
    assert len({float(found[5]) for found in seen}) > 1
