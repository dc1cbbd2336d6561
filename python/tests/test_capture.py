"""What a capture makes of a model's code beside its ops: branches, checks, random numbers, experts, complex numbers."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import Wrong, asserts
from torch import Tensor, nn

import graphc
from graphc.parallel.known import Known
from graphc.parallel.of_transformers import by_experts
from graphc.parallel.ops.special_functions import digamma, inverse_error_function, log_gamma

pytestmark = pytest.mark.usefixtures("exporter", "command")

BATCH = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))


def begun(function: Callable[[Tensor], Any]) -> Wrong:
    torch.manual_seed(0)
    return Wrong(function)


def check_losses(model: nn.Module, batch: Any = BATCH, steps: int = 3) -> None:
    """Checks that a plan has PyTorch's losses."""
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    expected = []
    for _ in range(steps):
        optimizer.zero_grad()
        output = plain(**batch) if isinstance(batch, dict) else plain(batch)
        loss = output if isinstance(output, Tensor) else output.loss
        torch.autograd.backward(loss)
        optimizer.step()
        expected.append(float(loss.detach()))
    parallel = graphc.parallelize(model, batch, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert [float(parallel.step(batch)) for _ in range(steps)] == pytest.approx(expected, abs=1e-5)
    assert expected[0] != pytest.approx(expected[-1], abs=1e-4)


def leaves_layers_out(x: Tensor) -> Tensor:
    return x.mean() if torch.rand([]) < 0.0 else x.square().mean()


def branches_on_masks(x: Tensor) -> Tensor:
    mask, positions = torch.ones_like(x), torch.arange(4)
    mask[:, positions + 0] = 1.0
    if torch.all(mask == 1) and not positions[0] > 0:
        x = x * 2.0
    mask[0, 0] = 0.0
    if torch.all(mask == 1):
        x = x + 100.0
    return (x * mask).square().mean() * positions.max().item()


def fills_a_diagonal(x: Tensor) -> Tensor:
    mask = torch.zeros(2, 4, 4)
    mask[1].fill_diagonal_(1.0)
    return (x * mask).square().mean()


def has_a_distribution(x: Tensor) -> Tensor:
    spread = F.softplus(x) + 0.5
    return -torch.distributions.StudentT(2.0 + spread, x, spread).log_prob(torch.ones(4)).mean()


def takes_windows(x: Tensor) -> Tensor:
    return x.unfold(-1, 3, 1).square().sum(-1).mean() + x.unfold(0, 2, 2)[0, :, 1].mean() + x.max() - x.min()


def pools(x: Tensor) -> Tensor:
    image = (x @ x.t()).reshape(1, 1, 4, 4)
    image = F.pad(image, (0, 1, 0, 0))
    pooled = [
        F.avg_pool2d(image, 2, 2, ceil_mode=True),
        F.avg_pool2d(image, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        F.avg_pool2d(image, (2, 3), (3, 3), (1, 1), ceil_mode=True),
        F.avg_pool2d(image, 2, divisor_override=3),
    ]
    return torch.cat([(part * torch.arange(1.0, 1.0 + part.numel()).view_as(part)).flatten() for part in pooled]).mean()


def puts_to_indices(x: Tensor) -> Tensor:
    rows, apart_columns, columns = torch.tensor([[0], [2]]), torch.tensor([0, 1, 3]), torch.tensor([1, 1, 3])
    whole = torch.zeros(2, 4, 4, 3)
    whole[:, rows, apart_columns] += x[:2, :3, None]
    put: Any = torch.ops.aten.index_put.default
    added = put(torch.zeros(2, 4, 4, 3), [None, rows, columns], x[:2, :3, None], True)
    apart = put(torch.zeros(4, 2, 4), [columns, None, torch.tensor([0, 2, 3])], x[:3, :2], True)
    folded = F.fold(x.reshape(1, 4, 4), (3, 3), 2)
    return ((whole + 2 * added) * torch.arange(3.0)).square().mean() + apart.square().mean() + folded.square().mean()


def transforms(x: Tensor) -> Tensor:
    half = torch.fft.rfft(x)
    back = torch.fft.irfft(half * torch.tensor([1.0, 0.5j, 0.25]), n=5)
    whole = torch.fft.fft2(x, norm="ortho")
    return back.square().mean() + (whole * whole.conj()).real.mean() + half.abs().mean() + torch.fft.fftn(x).real.square().mean()


def turns(x: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.reshape(4, 2, 2))
    angles = torch.polar(torch.ones(2), torch.arange(2.0) + 0.3)
    turned = torch.view_as_real(pairs * angles + pairs[:, :1] / angles)
    return (turned * torch.arange(4.0)[:, None, None]).square().mean() + torch.stack([pairs.real, pairs.imag]).cumsum(0).mean()


def filters_by_complex_numbers(x: Tensor) -> Tensor:
    """A state space's kernel, modes that are mixed as neural operators have it, and what is made of angles."""
    poles = torch.complex(-torch.exp(x[0]), x[1])
    kernel = torch.einsum("n,nl->l", torch.complex(x[2], x[3]), torch.exp(poles[:, None] * torch.arange(5.0) * 0.3)).real
    modes = torch.fft.rfft(x)
    mixed = torch.einsum("bm,mo->bo", modes, torch.view_as_complex(x.reshape(-1, 2)[:6]).reshape(3, 2)) ** 2
    angles = (modes + 3.0j * modes[0]).angle() + (1.0 / (modes + 4.0)).abs() + torch.angle(x[:, :3])
    turned = (mixed.real * torch.arange(2.0) + mixed.imag).square().mean() + angles.square().mean()
    return 0.1 * kernel.square().mean() + 0.01 * turned


def loops_over_experts(x: Tensor) -> Tensor:
    """Each row is computed by the two best of four experts, the last of which may have no row."""
    scores, chosen = x.softmax(-1).topk(2, -1)
    mask = F.one_hot(chosen, 4).permute(2, 1, 0)
    found = torch.zeros_like(x)
    for expert in torch.greater(mask.sum((-1, -2)), 0).nonzero():
        place, row = torch.where(mask[expert].squeeze(0))
        factor = float(f"{expert[0]}") + 1.0
        weight = (x.detach()[:, :, None] * x.detach()[:, None])[expert[0]]
        rows = torch.tanh(F.linear(x[None, row].reshape(-1, 4), torch.eye(4).flip(0) * factor).matmul(weight.t()))
        found.index_add_(0, row, rows * scores[row, place, None])
    return found.square().mean()


def selects_rows(x: Tensor) -> Tensor:
    (row,) = torch.where(x[:, 0] > 0)
    (column,) = torch.where(x[0] > 0)
    return (x.index_add(0, row, 2.0 * x[row]) * x.index_add(0, column, x.t()[column] / 2)).square().mean()


def multiplies_rows(x: Tensor) -> Tensor:
    (row,) = torch.where(x[:, 0] > 0)
    found = torch.tanh(x[row].matmul(x.detach() * 0.5)) @ torch.eye(4).flip(0)
    return x.index_add(0, row, torch.mm(found, torch.eye(4))).square().mean()


def classifies_in_time(x: Tensor) -> Tensor:
    """Of texts that are shorter than others, have letters twice, or none at all; of one there is not time enough."""
    scores = torch.cat([x, x.flip(0), x.sin(), 2.0 * x.cos()]).reshape(4, 4, 4).log_softmax(-1)
    labels = torch.tensor([[1, 1, 2], [3, -1, 2], [-1, -1, -1], [3, 3, 3]]) + 0 * x[:, :3].detach().long()
    mask, frames = labels >= 0, torch.tensor([4, 3, 2, 4])
    found = F.ctc_loss(scores, labels.masked_select(mask), frames, mask.sum(-1), zero_infinity=True)
    texts = torch.tensor([[1, 2], [2, 1], [1, 0], [3, 3]])
    return found + 0.1 * F.ctc_loss(scores, texts, torch.full((4,), 4), torch.tensor([2, 2, 1, 2]), reduction="sum")


def sorts(x: Tensor) -> Tensor:
    best, places = x.sort(0, descending=True)
    least = x.detach().mul(3).round().to(torch.int64).sort(stable=True)
    return (best * x.gather(1, places) * least.values * x.gather(1, least.indices) * x.argsort()).mean()


def splits_by_experts(x: Tensor) -> Tensor:
    """Rows in the order of their experts, of which one has none, and each expert's own."""
    chosen = (x.detach()[:, 0] > 0).to(torch.int64) * 2
    order = chosen.sort(0).indices
    counts = F.one_hot(chosen, 3).sum(0).tolist()
    parts = x[order].split(counts, dim=0)
    found = torch.cat([F.relu(part) * float(number + 1) for number, part in enumerate(parts)], dim=0)
    return torch.zeros_like(x).index_add(0, order, found).square().mean()


def has_the_mean_of_rows(x: Tensor) -> Tensor:
    return x[torch.where(x[:, 0] > 0)[0]].mean() + x.square().mean()


def has_losses_of_what_a_mask_takes(x: Tensor) -> Tensor:
    """Logarithms of what the mask leaves out would be no numbers."""
    mask, rows = x.detach() > 0, x.detach()[:, 0] > -0.5
    difference = torch.log(x[mask]) - x.detach()[mask]
    found = torch.sqrt(difference.pow(2).mean() + 1.0) + difference.sum() + x[rows].mean(0).sum() + F.mse_loss(x[rows], x.sin()[rows])
    labels = torch.tensor([0, 3, 1, 2])
    return found + F.cross_entropy(x[rows], labels[rows]) + F.l1_loss(x[mask], x.detach()[mask] * 2.0, reduction="sum")


def joins_at_places(x: Tensor) -> Tensor:
    """With what was there, and without."""
    places, found = torch.tensor([[0, 1, 0, 1], [2, 2, 2, 2], [0, 0, 0, 0], [3, 1, 3, 0]]), x.sum()
    for reduce in ("sum", "prod", "amax", "amin", "mean"):
        for include_self in (False, True) if reduce == "mean" else (False,):
            joined = torch.scatter_reduce(x * 0.5, 1, places, x, reduce, include_self=include_self)
            found = found + (joined * torch.arange(1.0, 5.0)).square().mean()
    whole = torch.scatter_reduce(torch.zeros(4, dtype=torch.int64), 0, places[0], (x.detach()[0] * 4).long(), "amax", include_self=False)
    return (found + whole.sum()) * 0.05


def samples_a_grid(x: Tensor) -> Tensor:
    image, grid = (x @ x.t()).reshape(1, 1, 4, 4), x.reshape(1, 2, 4, 2) * 1.5
    corners = F.grid_sample(image, grid, align_corners=True) + F.grid_sample(image, grid, "bilinear", "border", False)
    return (corners + F.grid_sample(image, grid, "nearest", "zeros", False)).square().mean() * 0.05


def attends_to_no_key(x: Tensor) -> Tensor:
    """As texts that are padded in front do: by a mask that is known, and by one of data."""
    heads = x.reshape(1, 2, 4, 2)
    known = torch.tensor([[False, False, False, False], [True, False, False, False], [True, True, False, False], [True, True, True, False]])
    found = F.scaled_dot_product_attention(heads, heads, heads, attn_mask=known)
    seen = x.detach() > 0.3
    found = found + F.scaled_dot_product_attention(heads, heads, heads, attn_mask=seen)
    added = torch.zeros(4, 4).masked_fill(~seen, -torch.inf)
    found = found + F.scaled_dot_product_attention(heads, heads, heads, attn_mask=added)
    wider = F.scaled_dot_product_attention(heads, heads, heads.repeat(1, 1, 1, 2), attn_mask=added)
    return (found + heads + wider[..., 2:]).square().mean()


def attends_to_shared_keys(x: Tensor) -> Tensor:
    """Four heads of queries to two of keys: with a mask, and with values of another width."""
    queries, keys = x.reshape(1, 4, 4, 1).expand(1, 4, 4, 2), torch.stack([x[:, :2], x[:, 2:]])[None]
    found = F.scaled_dot_product_attention(queries, keys, keys, attn_mask=x.detach() > -0.5, enable_gqa=True)
    wider = F.scaled_dot_product_attention(queries, keys, x.reshape(1, 2, 4, 2).repeat(1, 1, 1, 2), is_causal=True, enable_gqa=True)
    return (torch.cat([found, wider * 2.0], -1) + 1.0).square().mean()


def clamps_what_is_not_finite(x: Tensor) -> Tensor:
    x = x * 2.0
    if not torch.isfinite(x).all():
        x = torch.clamp(x, -1.0, 1.0)
    if torch.isnan(x).any() | x.isinf().any(-1).logical_not().logical_not().any():
        x = x * 0.0
    return x.square().mean() if torch.isinf(x).any().item() is False else x.mean()


def draws_between(x: Tensor) -> Tensor:
    drawn = torch.empty(4).uniform_(1.0, 2.0)
    return x.square().mean() + 0.0 * drawn.sum() + (torch.clamp(drawn, 2.0, 3.0) - torch.clamp(drawn, 0.0, 1.0)).sum()


def makes_as_many_as_a_tensor_says(x: Tensor) -> Tensor:
    count = torch.arange(4).max() + 1
    x = x + count.new_zeros(4) + count.view(1) * count.expand(4) * 0.1
    return (x + x.new_zeros(count) + torch.arange(count) + torch.zeros(count, count)).square().mean()


def takes_strides_of_what_is_turned(x: Tensor) -> Tensor:
    return torch.as_strided(x.t(), (3, 4, 2), (4, 1, 4)).square().mean()


def has_kernels_without_padding(x: Tensor) -> Tensor:
    image, kernels = x.reshape(1, 1, 4, 4), x[:2].reshape(2, 1, 2, 2)
    return F.conv2d(image, kernels, stride=2, padding="valid").square().mean() + F.conv2d(image, kernels, padding="same").square().mean()


def takes_at_a_place_of_data(x: Tensor) -> Tensor:
    place = x.detach().sum(0).topk(2).indices
    return (x[:, place[0]] * x[place[1]] * x[..., place[1]]).mean() + x.square().mean()


def puts_rows_to_places_of_data(x: Tensor) -> Tensor:
    """As images among words: whole rows, and elements; checks of how many there are."""
    held = x.detach()[:, 0] > 0
    rows = held.unsqueeze(-1).expand_as(x)
    if x[rows].numel() > x.numel():
        raise ValueError("other rows")
    assert x[rows].numel() != -1
    found = torch.masked_scatter(x.sin(), rows, x.flip(0) * 2.0)
    return (found * x.masked_scatter(x.detach() > 0.2, x.cos())).square().mean()


def writes_rows_where_a_mask_holds(x: Tensor) -> Tensor:
    """As features of images that are written over words: as many rows as the mask has places, elements, and one row for all."""
    order = x.detach()[:, 0].argsort()
    rows, elements = order < 2, x.detach().argsort(1) < 2
    found = x * 1.0
    found[rows] = x[:2].sin() * 3.0
    found[elements] = x.flatten()[:8].cos()
    found[rows] = x[2:3] * 0.5
    return found.square().mean()


@pytest.mark.parametrize(
    "function",
    [
        writes_rows_where_a_mask_holds,
        puts_rows_to_places_of_data,
        has_the_mean_of_rows,
        has_losses_of_what_a_mask_takes,
        joins_at_places,
        samples_a_grid,
        takes_at_a_place_of_data,
        attends_to_no_key,
        attends_to_shared_keys,
        clamps_what_is_not_finite,
        has_kernels_without_padding,
        draws_between,
        makes_as_many_as_a_tensor_says,
        takes_strides_of_what_is_turned,
        loops_over_experts,
        selects_rows,
        multiplies_rows,
        classifies_in_time,
        sorts,
        splits_by_experts,
        leaves_layers_out,
        branches_on_masks,
        asserts,
        fills_a_diagonal,
        has_a_distribution,
        takes_windows,
        puts_to_indices,
        pools,
        transforms,
        turns,
        filters_by_complex_numbers,
    ],
)
def test_losses_are_those_of_pytorch(function: Callable[[Tensor], Tensor]) -> None:
    check_losses(begun(function))


def test_integers_are_drawn_anew_at_each_step() -> None:
    model = begun(lambda x: (0.0 * x).mean() + torch.randint(2, 5, (400,)).float().mean() + 10.0 * torch.randint(3, (1, 40)).amax())
    parallel = graphc.parallelize(model, BATCH, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    means = [float(parallel.step(BATCH)) - 20.0 for _ in range(4)]
    assert means == pytest.approx([3.0] * 4, abs=0.2)
    assert len(set(means)) > 1


def leaves_layers_out_at_times(x: Tensor) -> Tensor:
    return x.mean() if torch.rand([]) < 0.1 else x.square().mean()


def draws_by_python(x: Tensor) -> Tensor:
    return x.mean() * random.random()


def branches_on_weights(x: Tensor) -> Tensor:
    return x.mean() if x.sum() > 0 else x.square().mean()


def rolls_by_data(x: Tensor) -> Tensor:
    return (x.roll(int(x.argmax()), 1) * x).mean()


def gives_complex_numbers(x: Tensor) -> Tensor:
    return torch.fft.fft(x).tan().real.mean()


def has_the_greatest_of_rows(x: Tensor) -> Tensor:
    return x[torch.where(x[:, 0] > 0)[0]].amax()


def compares_rows_of_two_masks(x: Tensor) -> Tensor:
    return F.mse_loss(x[x > 0], x[x < 0])


def counts_rows(x: Tensor) -> Tensor:
    row = torch.where(x[:, 0] > 0)[0]
    return x.sum() / row.shape[0]


def lists_rows(x: Tensor) -> Tensor:
    return x.sum() * len(torch.where(x[:, 0] > 0)[0].tolist())


def adds_for_each_row(x: Tensor) -> Tensor:
    found = x.sum()
    for row in (x[:, 0] > 0).nonzero():
        found = found + x[row].sum()
    return found


def counts_by_list(x: Tensor) -> Tensor:
    return x.sum() * sum((x > 0).sum(0).tolist())


def joins_half_of_what_it_splits(x: Tensor) -> Tensor:
    parts = x.split((x.detach() > 0).sum(0).tolist())
    return torch.cat(parts[:2]).mean()


def has_targets_in_a_row(x: Tensor) -> Tensor:
    return F.ctc_loss(x[:, None].log_softmax(-1), torch.tensor([1, 2]), torch.tensor([4]), torch.tensor([2]))


def branches_on_a_count_of_elements(x: Tensor) -> Tensor:
    return x.mean() if x[x > 0].numel() > 3 else x.square().mean()


def divides_by_a_number(x: Tensor) -> Tensor:
    return x.mean() / x.detach().abs().mean().item()


def has_as_many_columns_as_classes(x: Tensor) -> Tensor:
    return (F.one_hot(x.detach().argmax(1)) * x).mean()


def packs_rows(x: Tensor) -> Tensor:
    return nn.utils.rnn.pack_padded_sequence(x[:, :, None], torch.tensor([4, 3, 2, 1]), batch_first=True).data.mean()


def puts_rows_elsewhere(x: Tensor) -> Tensor:
    row, other = torch.where(x[:, 0] > 0)[0], torch.where(x[:, 1] > 0)[0]
    return torch.zeros_like(x).index_add(0, other, x[row]).mean()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (divides_by_a_number, r"\(.*line \d+, .*\) has no translation: the number .* is not known .*, without \.item\(\)"),
        (has_as_many_columns_as_classes, r"one_hot has as many columns .*: give it num_classes \(.*test_capture\.py, line \d+\)"),
        (packs_rows, "pack_padded_sequence cuts a batch by lengths, which are not known before a step: give the module the padded batch"),
        (has_the_greatest_of_rows, "`amax` is computed of rows that a condition selects, and how many these are depends on data: compute"),
        (compares_rows_of_two_masks, "`mse_loss` is computed of rows that a condition selects"),
        (counts_rows, "`shape` is computed of rows that a condition selects"),
        (lists_rows, "a branch or a number is made of rows that a condition selects"),
        (adds_for_each_row, "`add` is computed of rows that a condition selects"),
        (counts_by_list, "the model computes with numbers that it reads of a tensor, which are not known before a step: use the tensor"),
        (joins_half_of_what_it_splits, "`cat` is computed of rows that a condition selects"),
        (has_targets_in_a_row, r"targets \[n, s\] in a plan: fill the targets up to one length"),
        (branches_on_a_count_of_elements, "a branch or a number is made of rows that a condition selects"),
        (puts_rows_elsewhere, "`index_add` is computed of rows that a condition selects"),
        (leaves_layers_out_at_times, r"the model branches on a random number.*: set that probability \(`layerdrop`\) to 0"),
        (draws_by_python, "the model draws random numbers by `random` or numpy, and they would be the same at each step"),
        (
            branches_on_weights,
            r"a branch, a shape, .* depends on what a tensor holds.*: use torch\.where, .* \(.*test_capture\.py, line \d+\)",
        ),
        (
            rolls_by_data,
            r"a number as `int\(x\)` gives it, .*: use torch\.where, or torch\.gather at the places .*test_capture\.py, line \d+",
        ),
        (
            lambda x: F.embedding_bag(torch.zeros(1, 2).long(), x, max_norm=1.0),
            r"embedding_bag with max_norm changes the table or its gradient",
        ),
        (lambda x: F.embedding(torch.zeros(1, 2).long(), x, max_norm=1.0), r"embedding with max_norm changes the table while it is read"),
        (
            lambda x: torch.autograd.grad(x.square().sum(), x, create_graph=True)[0].mean(),
            r"the model takes gradients itself .*: write the",
        ),
        (gives_complex_numbers, r"aten\.sin\.default \(.*\) has no translation of complex numbers"),
    ],
)
def test_what_cannot_be_captured_is_said(function: Callable[[Tensor], Any], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    model = begun(function)
    with pytest.raises(graphc.Error, match=said):
        graphc.parallelize(model, BATCH, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    # PyTorch would print the graph, and log that it does not know the place.
    assert capfd.readouterr().err == ""


def test_a_norm_with_a_mean_over_all_batches_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None))
    with pytest.raises(graphc.Error, match="`1` has a mean over all batches, which graphc has not: give it a momentum, not None"):
        graphc.parallelize(model, BATCH, loss=lambda y, _: y.mean(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def test_what_a_norm_keeps_of_a_batch_is_read_in_the_next_step() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.layer(x)).square().mean() + self.norm.running_mean.sum()

    model = Twice()
    said = r"test_capture\.py, line \d+, .*: what the norm keeps of batches is read again in the same step: let it be read in the next step"
    with pytest.raises(graphc.Error, match=said):
        graphc.parallelize(model, BATCH, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def test_what_is_written_to_is_known_or_forgotten() -> None:
    unknown = torch.ones(2)
    with Known() as known:
        x = torch.zeros(3)
        view, copied = x[1:], x.to(torch.float64)
        view += 1.0
        assert known._contents[x].tolist() == [0.0, 1.0, 1.0] and known._contents[copied].tolist() == [0.0] * 3
        same = x.to(torch.float32)
        same[0] = 5.0
        assert known._contents[x].tolist() == [5.0, 1.0, 1.0]
        view.copy_(unknown)
        assert x not in known._contents and same not in known._contents and copied in known._contents
        first, _ = copied.view(3, 1).chunk(2)
        first[0].copy_(unknown[0])
        assert copied not in known._contents
        drawn, left = torch.bernoulli(torch.ones(2)), torch.ones(2).uniform_()
        assert drawn not in known._contents and left not in known._contents and torch.equal(torch.ones(2), torch.full((2,), 1.0))
        assert (torch.rand(2) >= 0.0) in known._contents and (torch.rand(2) > 0.5) not in known._contents


class Frozen(nn.Module):
    """A buffer that is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("scale", nn.Parameter(torch.full((4,), 0.5), requires_grad=False), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(x) * self.scale).square().mean()


def test_a_buffer_may_be_a_parameter() -> None:
    torch.manual_seed(0)
    model = Frozen()
    check_losses(model)
    assert isinstance(model.scale, nn.Parameter)


class Strided(nn.Module):
    """It computes extents of a buffer that is saved nowhere, and may count in it."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.layer, self.counts = nn.Linear(4, 4), counts
        self.register_buffer("stride", torch.tensor(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        width = torch.ceil(x.shape[-1] / self.stride).to(torch.int64) * 3
        x = x + 0.01 * float(width)
        if self.counts:
            self.stride += 1
        return F.pad(self.layer(x), (0, width - 4)).square().mean()


def test_a_buffer_that_is_saved_nowhere_is_known() -> None:
    torch.manual_seed(0)
    check_losses(Strided(counts=False))
    model = Strided(counts=True)
    with pytest.raises(graphc.Error, match="the model branches on a buffer, and changes one"):
        graphc.parallelize(model, BATCH, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


class Converting(nn.Module):
    """It converts a part while it computes, to the type that the part has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        print("converted", file=sys.stderr)
        return self.layer.to(torch.float32)(x).square().mean()  # type: ignore[no-any-return]


def test_a_part_may_be_converted_to_its_own_type(capfd: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    check_losses(Converting())
    # What a model prints is printed while it is captured as well, which is once.
    assert capfd.readouterr().err == 4 * "converted\n"


def test_a_mask_that_is_made_unless_compiled_is_made() -> None:
    transformers: Any = pytest.importorskip("transformers", minversion="5.0")
    torch.manual_seed(0)
    config = transformers.LongT5Config(
        vocab_size=31, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, dropout_rate=0.0, local_radius=3,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    tokens = torch.randint(2, 31, (2, 6))
    check_losses(transformers.LongT5ForConditionalGeneration(config).train(), {"input_ids": tokens, "labels": tokens})


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize(("has_gate", "has_bias"), [(True, False), (False, True)])
def test_experts_compute_the_rows_that_chose_them(is_transposed: bool, has_gate: bool, has_bias: bool) -> None:
    torch.manual_seed(0)
    experts, width, inner = 3, 4, 5
    shapes = {"gate_up_proj" if has_gate else "up_proj": (2 * inner if has_gate else inner, width), "down_proj": (width, inner)}
    weights = {name: torch.randn(experts, *(reversed(shape) if is_transposed else shape)) for name, shape in shapes.items()}
    biases = {f"{name}_bias": torch.randn(experts, shape[0]) for name, shape in shapes.items()}
    form = {"num_experts": experts, "is_transposed": is_transposed, "has_gate": has_gate, "has_bias": has_bias}
    module = SimpleNamespace(**form, **weights, **biases, act_fn=F.silu, _apply_gate=lambda x: F.silu(x[..., :inner]) * x[..., inner:])
    tokens, shares = torch.randn(6, width), torch.rand(6, 2)
    chosen = torch.stack([torch.randperm(experts)[:2] for _ in range(6)])

    def layer(name: str, expert: int, x: Tensor) -> Tensor:
        weight = weights[name][expert]
        found = x @ (weight if is_transposed else weight.t())
        return found + biases[f"{name}_bias"][expert] if has_bias else found

    expected = torch.zeros_like(tokens)
    for row in range(6):
        for place, expert in enumerate(chosen[row].tolist()):
            x = layer("gate_up_proj" if has_gate else "up_proj", expert, tokens[row])
            x = module._apply_gate(x) if has_gate else F.silu(x)
            expected[row] += shares[row, place] * layer("down_proj", expert, x)
    for samples in (1, 2, 4):
        torch.testing.assert_close(by_experts(samples, module, tokens, chosen, shares), expected)


def test_experts_of_transformers_are_captured() -> None:
    transformers: Any = pytest.importorskip("transformers", minversion="5.0")
    torch.manual_seed(0)
    config = transformers.OlmoeConfig(
        vocab_size=31, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        num_experts=4, num_experts_per_tok=2, pad_token_id=0, eos_token_id=1, use_cache=False,
    )  # fmt: skip
    tokens = torch.randint(2, 31, (2, 6))
    check_losses(transformers.OlmoeForCausalLM(config).train(), {"input_ids": tokens, "labels": tokens})


def test_experts_with_biases_are_captured() -> None:
    transformers: Any = pytest.importorskip("transformers", minversion="5.0")
    torch.manual_seed(0)
    config = transformers.GptOssConfig(
        vocab_size=31, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=8,
        num_local_experts=4, num_experts_per_tok=2, sliding_window=4, pad_token_id=0, eos_token_id=1, use_cache=False,
    )  # fmt: skip
    model = transformers.GptOssForCausalLM(config).train()
    for name, parameter in model.named_parameters():
        if name.endswith("_bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    tokens = torch.randint(2, 31, (2, 6))
    check_losses(model, {"input_ids": tokens, "labels": tokens})


@pytest.mark.parametrize(("function", "exactly"), [(log_gamma, torch.lgamma), (digamma, torch.digamma)])
def test_functions_of_gamma_are_pytorchs(function: Callable[[Tensor], Tensor], exactly: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor([0.01, 0.1, 0.5, 1.0, 1.5, 2.0, 7.0, 100.0, 1e4, 1e8, -0.3, -1.5, -7.2], requires_grad=True)
    exact = x.detach().double().requires_grad_()
    found, expected = function(x), exactly(exact)
    torch.autograd.backward([found.sum(), expected.sum()])
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-6)
    assert x.grad is not None and exact.grad is not None
    assert x.grad.tolist() == pytest.approx(exact.grad.tolist(), rel=1e-5, abs=1e-6)


def test_the_inverse_of_the_error_function_is_pytorchs() -> None:
    x = torch.tensor([-1.0, -0.9999999, -0.99, -0.5, -1e-6, 0.0, 1e-3, 0.7, 0.9966, 0.997, 0.999999, 1.0])
    with torch.no_grad():
        found = inverse_error_function(x)
    assert found.tolist() == pytest.approx(torch.erfinv(x.double()).tolist(), rel=1e-5)
