"""Loops over places that a condition selects, which a graph computes for all places: what they leave behind is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from cases import Wrong
from test_capture import BATCH, begun, check_losses
from torch import Tensor, nn

import graphc

pytestmark = pytest.mark.usefixtures("exporter", "command")


def counts_rounds(x: Tensor) -> Tensor:
    count = 0
    for _ in (x[:, 0] > 0).nonzero():
        count += 1
    return x.square().mean() * count


def counts_rounds_that_look_at_places(x: Tensor) -> Tensor:
    count = 0
    for row in (x[:, 0] > 0).nonzero():
        count += 1
        x[row].sum()
    return x.square().mean() * count


def numbers_rounds(x: Tensor) -> Tensor:
    found = x.mean()
    for number, row in enumerate(torch.where(x[:, 0] > 0)[0]):
        found = found + (number * x[row]).sum()
    return found


def computes_again_in_each_round(x: Tensor) -> Tensor:
    for row in (x[:, 0] > 0).nonzero():
        x[row].sum()
        x = x * 1.5
    return x.square().mean()


def unpacks_places(x: Tensor) -> Tensor:
    found = x.mean()
    for (row,) in (x[:, 0] > 0).nonzero():
        found = found + x[row].sum()
    return found


def writes_in_each_round(x: Tensor) -> Tensor:
    found = x.clone()
    for row in (x[:, 0] > 0).nonzero():
        x[row].sum()
        found.mul_(2.0)
    return found.square().mean()


def stops_at_the_first_place(x: Tensor) -> Tensor:
    found = torch.zeros_like(x)
    mask = (x > 0).t()
    for column in (mask.sum(-1) > 0).nonzero():
        (row,) = torch.where(mask[column].squeeze(0))
        found.index_add_(0, row, x[row])
        break
    return (found + x).square().mean()


def lists_results(x: Tensor) -> Tensor:
    found = []
    for row in (x[:, 0] > 0).nonzero():
        found.append(x[row])
    return torch.cat(found).mean()


def counts_places(x: Tensor) -> Tensor:
    return x.square().mean() * len(torch.where(x[:, 0] > 0)[0].unbind(0))


def returns_what_the_last_round_made(x: Tensor) -> Tensor:
    found = x.mean()
    for row in (x[:, 0] > 0).nonzero():
        x[row].sum()
        found = x.square().mean()
    return found


def check_refused(function: Callable[[Tensor], Tensor], said: str) -> None:
    """Checks that a function is refused with this text and one of its lines."""
    model: Wrong = begun(function)
    with pytest.raises(graphc.Error, match=rf"{said}.*\(.*test_loops\.py, line \d+\)"):
        graphc.parallelize(model, BATCH, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (counts_rounds, "does not look at them"),
        (counts_rounds_that_look_at_places, "changes `count`"),
        (numbers_rounds, "changes `number`"),
        (computes_again_in_each_round, "a tensor that a loop over places of a condition has computed is used after that round"),
        (unpacks_places, "`add` is computed of rows that a condition selects"),
        (writes_in_each_round, "writes to a tensor"),
        (stops_at_the_first_place, "ends before the last one"),
        (lists_results, "changes `found`"),
        (counts_places, "are counted or taken by their number"),
        (returns_what_the_last_round_made, "is given back"),
    ],
)
def test_what_a_loop_leaves_behind_is_refused(function: Callable[[Tensor], Tensor], said: str) -> None:
    check_refused(function, said)


def makes_anew_in_each_round(x: Tensor) -> Tensor:
    """Names and factors that depend on the place alone."""
    mask, found, scale = (x > 0).t(), torch.zeros_like(x), 2.0
    for column in (mask.sum(-1) > 0).nonzero():
        name, factor = f"{column[0]}", scale * (int(column) + 1)
        rows = torch.where(mask[column].squeeze(0))[0]
        weight = torch.eye(4) * factor
        weight.add_(len(name) * 0.1)
        found = found.index_add(0, rows, x[rows] @ weight)
    return (found + x).square().mean()


def test_a_loop_may_make_anew_what_depends_on_the_place() -> None:
    check_losses(begun(makes_anew_in_each_round))


def writes_rows_of_another_condition(x: Tensor) -> Tensor:
    row, found = torch.where(x[:, 0] > 0)[0], torch.zeros_like(x)
    for column in (x.sum(0) > 0).nonzero():
        x[:, column].sum()
        found.index_add_(0, row, x[row])
    return found.square().mean()


def writes_to_rows_of_before(x: Tensor) -> Tensor:
    row = torch.where(x[:, 0] > 0)[0]
    rows = x[row]
    for column in (x.sum(0) > 0).nonzero():
        x[:, column].sum()
        rows.mul_(2.0)
    return x.index_add(0, row, rows).square().mean()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (writes_rows_of_another_condition, "writes to rows of another one"),
        (writes_to_rows_of_before, "writes to a tensor"),
    ],
)
def test_a_round_writes_where_its_place_is_there(function: Callable[[Tensor], Tensor], said: str) -> None:
    check_refused(function, said)


def takes_what_a_known_mask_holds(x: Tensor) -> Tensor:
    upper, last = torch.ones(4, 4).triu(1).bool(), torch.arange(4) > 1
    products, found = x @ x.t(), torch.zeros_like(x)
    for number in range(2):
        own = torch.arange(4) % 2 == number
        found[own] = x[own] * (number + 1)
    found[:, last] = found[:, ~last] * 2.0
    return (products[upper].mean() + found.square().sum() / x[last].shape[0] + x[..., last].mean()) * 0.1


def puts_rows_back(x: Tensor) -> Tensor:
    """Rows, elements, and what was added to a copy of them, to the places of their condition."""
    rows, elements, found = x[:, 0] > 0, x > 0.1, x.clone()
    found[rows] = x[rows] @ torch.eye(4).flip(0)
    found[elements] += found[elements].exp()
    column = torch.where(x[:, 1] > 0)[0]
    other = x[column]
    other += 1.0
    found[column] = F.relu(other * 2.0, inplace=True)
    places = torch.where(x > 0.4)
    found[places] = 0.5
    return (found.square() + x).mean()


def computes_along_rows(x: Tensor) -> Tensor:
    """What is taken along the other dims of rows: the greatest of each, shares, and a number by its place."""
    mask, found = x[:, 1] > 0, torch.zeros(len(x))
    rows = x[mask]
    best, place = rows.max(1)
    found[mask] = best + rows.softmax(dim=-1).gather(1, place.unsqueeze(1)).squeeze(1) * rows.norm(dim=1) + rows.mean(1)
    return found.tanh().mean() + x.tanh().mean()


def fills_places_along_a_dim(x: Tensor) -> Tensor:
    places = torch.nonzero(x.detach()[:, 0] > 0)
    found = x.tanh().index_fill(0, places.squeeze(), 0.5)
    found.index_fill_(1, torch.nonzero(x.detach()[0] > 0).squeeze(1).view(-1), 0.25)
    return found.square().mean()


def fills_rows_with_a_row(x: Tensor) -> Tensor:
    found = x.clone()
    found[x.detach()[:, 0] > 0] = x.sin()[0]
    return found.square().mean()


def puts_rows_back_in_rounds(x: Tensor) -> Tensor:
    mask, found = (x > 0).t(), x * 0.5
    for column in (mask.sum(-1) > 0).nonzero():
        rows = torch.where(mask[column].squeeze(0))[0]
        found[rows] = x[rows].tanh() * (int(column) + 1)
    return found.square().mean()


def has_normal_likelihoods(x: Tensor) -> Tensor:
    """With variances below the least one."""
    loss = F.gaussian_nll_loss(x, x.detach().cos(), x.square(), full=True, eps=0.05)
    return loss + F.gaussian_nll_loss(x, x.detach().sin(), x[:, 0].exp(), reduction="sum") + F.gaussian_nll_loss(x, x.detach(), 0.5)


@pytest.mark.parametrize(
    "function",
    [
        has_normal_likelihoods,
        takes_what_a_known_mask_holds,
        puts_rows_back,
        computes_along_rows,
        fills_places_along_a_dim,
        fills_rows_with_a_row,
        puts_rows_back_in_rounds,
    ],
)
def test_what_a_condition_selects_goes_back_to_its_places(function: Callable[[Tensor], Tensor]) -> None:
    check_losses(begun(function))


class Scattered(nn.Module):
    """Rows of a source at places of data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        mask = (x[:, :1] > 0).expand_as(x)
        return x.masked_scatter(mask, self.layer(source)).square().mean()


def test_too_few_rows_for_the_places_of_a_mask_are_said() -> None:
    model = Scattered()
    batch = {"x": torch.tensor([[1.0] * 4, [-1.0] * 4, [1.0] * 4]), "source": torch.ones(2, 4)}
    parallel = graphc.parallelize(model, batch, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    parallel.step(batch)
    with pytest.raises(graphc.Error, match="index 2 is out of range: it must be from 0 to 1"):
        parallel.step({**batch, "x": torch.ones(3, 4)})
