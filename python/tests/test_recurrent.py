"""Recurrent layers whose last states are used, in the same step or in the next one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_capture import check_losses
from torch import Tensor, nn

import graphc

pytestmark = pytest.mark.usefixtures("exporter", "command")


class Classifier(nn.Module):
    """It reads a text, and tells by the last states of all layers and directions what it is."""

    def __init__(self, kind: type[nn.RNNBase], layers: int, both: bool, given: bool) -> None:
        super().__init__()
        self.text = kind(3, 5, layers, batch_first=True, bidirectional=both)
        count = layers * (2 if both else 1)
        self.begins = nn.Parameter(torch.full((2, count, 1, 5), 0.1)) if given else None
        self.classes = nn.Linear(count * 5, 4)

    def forward(self, x: Tensor) -> Tensor:
        is_lstm, begins = isinstance(self.text, nn.LSTM), None
        if self.begins is not None:
            whole = self.begins.expand(-1, -1, x.shape[0], -1).contiguous()
            begins = (whole[0], whole[1]) if is_lstm else whole[0]
        _, last = self.text(x, begins)
        hidden, cells = last if is_lstm else (last, last)
        found = self.classes((hidden + cells).transpose(0, 1).flatten(1))
        return nn.functional.cross_entropy(found, torch.arange(len(x)))


@pytest.mark.parametrize(
    ("kind", "layers", "both", "given"),
    [(nn.LSTM, 1, False, False), (nn.LSTM, 2, True, True), (nn.GRU, 1, True, True), (nn.RNN, 2, False, False)],
)
def test_the_last_states_are_pytorchs(kind: type[nn.RNNBase], layers: int, both: bool, given: bool) -> None:
    torch.manual_seed(0)
    check_losses(Classifier(kind, layers, both, given), torch.randn(4, 6, 3))


class Reader(nn.Module):
    """It goes on in each batch where the last one has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.classes = nn.LSTM(3, 5), nn.Linear(5, 2)
        self.register_buffer("hidden", torch.zeros(1, 4, 5))
        self.register_buffer("cells", torch.zeros(1, 4, 5))

    def forward(self, x: Tensor) -> Tensor:
        found, (hidden, cells) = self.text(x, (self.hidden, self.cells))
        self.hidden, self.cells = hidden.detach(), cells.detach()
        return self.classes(found).square().mean()


def test_states_go_on_in_the_next_batch() -> None:
    torch.manual_seed(0)
    check_losses(Reader(), torch.randn(6, 4, 3), steps=5)


class Growing(nn.Module):
    """Its state is longer after each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(0, 4))

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x)
        self.seen = torch.cat([self.seen, found.detach()])
        return found.mean() - self.seen.mean()


def test_a_state_of_another_shape_is_refused() -> None:
    model: Any = Growing()
    said = (
        r"the model puts torch\.float32\[2, 4\] in the place of its buffer `seen`, which is torch\.float32\[0, 4\]: let it be of one shape"
    )
    with pytest.raises(graphc.Error, match=said):
        graphc.parallelize(model, torch.ones(2, 4), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
