"""Decompositions of matrices, column by column: losses of trainings beside PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_capture import BATCH, begun, check_losses
from test_functions import weigh
from torch import Tensor, nn
from torch.distributions import MultivariateNormal
from torch.nn.utils import parametrizations

pytestmark = pytest.mark.usefixtures("exporter", "command")

LINALG: Any = torch.linalg


def pair(x: Tensor) -> Tensor:
    """Two matrices that are far from having no inverse, whose rows are to be exchanged."""
    x = torch.tanh(x) + torch.tensor([[0.0, 2.0, 0.0, 0.0], [0.0, 0.0, -3.0, 0.0], [2.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 4.0]])
    return torch.stack([x, x.flip(0).sin() + 2.0 * torch.eye(4)])


def positive(x: Tensor) -> Tensor:
    return pair(x) @ pair(x).mT + 0.5 * torch.eye(4)


def takes_roots(x: Tensor) -> Tensor:
    whole = positive(x)
    root = LINALG.cholesky(whole)
    solved = torch.cholesky_solve(x[:, :2], root), torch.cholesky_solve(x[:, :2], root.mT, upper=True)
    # Of a matrix that is not symmetric the lower half is read, and both have gradients.
    own = LINALG.cholesky(x + 6.0 * torch.eye(4))
    return weigh(root, LINALG.cholesky(whole, upper=True), *solved, own)


def solves_triangles(x: Tensor) -> Tensor:
    lower = pair(x).tril() + 3.0 * torch.eye(4)
    found = [LINALG.solve_triangular(lower, x[:, :3], upper=False), LINALG.solve_triangular(lower.mT, x, upper=True)]
    found += [LINALG.solve_triangular(lower, x[:2], upper=False, left=False)]
    return weigh(*found, LINALG.solve_triangular(lower * 0.1, x, upper=False, unitriangular=True))


def solves(x: Tensor) -> Tensor:
    whole = pair(x)
    found = [LINALG.solve(whole, x[:, :2]), LINALG.solve(whole[0], x[0]), LINALG.solve(whole, x[:3], left=False)]
    return weigh(*found, LINALG.inv(whole))


def has_determinants(x: Tensor) -> Tensor:
    whole = pair(x)
    sign, size = LINALG.slogdet(whole)
    return weigh(LINALG.det(whole) * 0.01, sign, size, torch.logdet(positive(x))) * 0.1


def has_exponentials(x: Tensor) -> Tensor:
    return weigh(torch.matrix_exp(x), torch.matrix_exp(torch.stack([x * 3.0 - (x * 3.0).mT, x * 0.1]))) * 0.1


def reflects(x: Tensor) -> Tensor:
    return weigh(LINALG.householder_product(x * 0.3, x[0]), LINALG.householder_product(torch.stack([x, x.sin()])[:, :, :2], x[:2, :2]))


def is_likely(x: Tensor) -> Tensor:
    spread = positive(x)
    shapes = MultivariateNormal(x[0], spread[0]), MultivariateNormal(x[:2], scale_tril=LINALG.cholesky(spread))
    return -sum((shape.log_prob(torch.ones(2, 4)).mean() for shape in shapes), start=torch.zeros(())) * 0.1


@pytest.mark.parametrize("function", [takes_roots, solves_triangles, solves, has_determinants, has_exponentials, reflects, is_likely])
def test_losses_are_those_of_pytorch(function: Callable[[Tensor], Tensor]) -> None:
    check_losses(begun(function))


class Orthogonal(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.out = nn.Linear(4, 4), nn.Linear(4, 4)
        parametrizations.orthogonal(self.layer, orthogonal_map=way)

    def forward(self, x: Tensor) -> Tensor:
        return weigh(self.out(torch.tanh(self.layer(x))))


@pytest.mark.parametrize("way", ["matrix_exp", "cayley", "householder"])
def test_orthogonal_weights_are_trained_as_by_pytorch(way: str) -> None:
    check_losses(Orthogonal(way), BATCH)
