"""What a capture knows before a step: tensors that were made before it, and what holds for all random numbers."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import pytest
import torch
from test_capture import begun, check_losses
from test_gradients import refuse
from torch import Tensor, nn

pytestmark = pytest.mark.usefixtures("exporter", "command")

EDGES = torch.tensor([[0, 1, 1, 2, 3], [1, 1, 2, 0, 3]])


def takes_edges_without_loops(x: Tensor) -> Tensor:
    """As layers of graphs do, whose edges are the same at each step."""
    edges = EDGES[:, EDGES[0] != EDGES[1]]
    count = int(edges.max()) + 1
    edges = torch.cat([edges, torch.arange(count).expand(2, -1)], 1)
    assert edges.shape[1] == 6, "three edges, and three loops"
    return torch.zeros(4, 4).index_add(0, edges[1], x[edges[0]]).square().mean()


def leaves_no_layer_out(x: Tensor) -> Tensor:
    if torch.rand(1).item() <= 0.0 or not torch.rand([]).item() > 0.0:
        return x.mean()
    return x.square().mean() if torch.rand(1).item() < 1.0 else x.mean()


def has_constants_of_an_old_kind(x: Tensor) -> Tensor:
    return (x * torch.sqrt(torch.FloatTensor([0.5]).to(x.device))).square().mean()


def warns(x: Tensor) -> Tensor:
    if x.ne(0).logical_and(x > 1e9).any().item():
        warnings.warn(f"numbers of {x.shape[0]} rows are large", UserWarning, stacklevel=2)
    return x.square().mean()


def leaves_no_layer_out_by_python(x: Tensor) -> Tensor:
    probability = random.uniform(0, 1)
    return x.mean() if probability < 0.0 or random.random() > 1.0 else x.square().mean()


@pytest.mark.parametrize(
    "function", [takes_edges_without_loops, leaves_no_layer_out, leaves_no_layer_out_by_python, has_constants_of_an_old_kind, warns]
)
def test_losses_are_those_of_pytorch(function: Callable[[Tensor], Tensor]) -> None:
    check_losses(begun(function))


def leaves_layers_out_by_python(x: Tensor) -> Tensor:
    return x.mean() if random.uniform(0, 1) < 0.1 else x.square().mean()


def leaves_layers_out(x: Tensor) -> Tensor:
    return x.mean() if torch.rand(1).item() <= 0.1 else x.square().mean()


def warns_and_goes_on(x: Tensor) -> Tensor:
    if (x > 1e9).any().item():
        warnings.warn("numbers are large", stacklevel=2)
        x = x * 1e-9
    return x.square().mean()


def test_branches_that_do_more_than_warn_are_refused() -> None:
    refuse(begun(warns_and_goes_on), "a branch, a shape, or a number as `int\\(x\\)` gives it, depends on what a tensor holds")


def test_branches_that_random_numbers_decide_are_refused() -> None:
    refuse(
        begun(leaves_layers_out_by_python), "the model draws random numbers by `random` or numpy, and they would be the same at each step"
    )
    refuse(begun(leaves_layers_out), r"the model branches on a random number.*: set that probability \(`layerdrop`\) to 0")


class Counting(nn.Module):
    """A model that counts its steps in a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.steps = nn.Linear(4, 4), torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        x = self.layer(x) if self.steps < 2 else 2.0 * self.layer(x)
        return x.square().mean()


def test_a_constant_that_a_step_changes_is_refused() -> None:
    refuse(Counting(), r"it writes to a tensor that it keeps and that is no buffer: register it \(register_buffer\)")


class Complex(nn.Module):
    """A filter of frequencies, in either form."""

    def __init__(self, is_real: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, filters = nn.Linear(4, 4), torch.randn(3, dtype=torch.complex64)
        self.filters = nn.Parameter(torch.view_as_real(filters) if is_real else filters)

    def forward(self, x: Tensor) -> Tensor:
        filters = self.filters if self.filters.is_complex() else torch.view_as_complex(self.filters)
        return torch.fft.irfft(torch.fft.rfft(self.layer(x)) * filters, n=4).square().mean()


def test_a_complex_weight_is_refused_with_what_stands_for_it() -> None:
    refuse(Complex(False), "`filters` is torch.complex64, which graphc has not: let it be torch.view_as_real of that")
    check_losses(Complex(True))
