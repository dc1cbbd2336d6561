"""Modules of PyTorch's own kind, with what trains them, and what plain PyTorch makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS, STEPS = 8, 20


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


class Places(nn.Module):
    """What takes elements from elsewhere: windows that overlap, other sizes of images, the best of a row, indices of two dims."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Conv2d(2, 3, 3), nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        small = F.interpolate(F.adaptive_avg_pool2d(x, (2, 4)), size=(5, 3), mode="bilinear")
        large = F.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=True)[..., :5, :3]
        near = F.interpolate(x, size=(5, 3), mode="nearest")
        x = (small * large + near).flatten(2)
        best, places = x.topk(4, dim=2)
        rows = torch.arange(x.shape[0], device=x.device)
        found: Tensor = self.out(best.sum(2) + x.transpose(1, 2)[rows, places[:, 0, -1] - 15])
        return found


class Apart(nn.Module):
    """What is taken apart into other ops, or put to places: norms, mirrors, products, sums at indices, volumes, turned convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.volume, self.back = nn.Linear(6, 6), nn.Conv3d(1, 2, (2, 1, 2)), nn.ConvTranspose1d(2, 1, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.normalize(self.layer(x), dim=-1) + F.elu(x.flip(-1)) + F.pad(x[:, 1:5], (1, 1), mode="reflect")
        x = torch.tanh(x)
        x = x + F.mish(x) + x.prod(-1, keepdim=True) + x.max(-1, keepdim=True).values - x.min(0).values
        x = x + torch.remainder(x, 0.7) + torch.div(torch.arange(6) - 3, 2, rounding_mode="floor") + (x > 2).any(-1, keepdim=True)
        x = torch.tanh(x)
        best, places = x.topk(2, -1)
        x = x + torch.zeros_like(x).scatter(-1, places, best) + torch.zeros_like(x).index_add(0, places[:, 0], x)
        x[:, x.shape[1] - 1] += torch.diagonal(x, 0, 0, 1).mean()
        y = self.back(self.volume(x.view(-1, 1, 2, 1, 3)).view(-1, 2, 2)).squeeze(1)
        found: Tensor = torch.cat([x[:, :1] * y, x[:, :1] + F.logsigmoid(y)], -1)[:, :5]
        return found


class Views(nn.Module):
    """Two views of a sample go through one encoder, one after the other, as those who learn without labels have it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.out = nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Linear(16, 5)
        self.plain = nn.BatchNorm1d(5, affine=False, momentum=0.3)

    def forward(self, x: Tensor) -> Tensor:
        first, second = (self.plain(self.out(F.relu(self.norm(self.first(view))))) for view in x.unbind(1))
        found: Tensor = first @ second.t() / x.shape[0]
        return found


def correlation(output: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The loss of Barlow twins, with samples for dims."""
    return F.mse_loss(output, torch.eye(output.shape[0]))


WEIGHTS = torch.tensor([0.1, 0.3, 0.2, 0.25, 0.15])


def weighted(output: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Losses of classes that have weights, and of probabilities."""
    hard = F.cross_entropy(output, batch[1], weight=WEIGHTS, label_smoothing=0.1, ignore_index=0)
    soft = F.cross_entropy(output, F.one_hot(batch[1], 5) * 0.7 + 0.06)
    return hard + soft + F.binary_cross_entropy_with_logits(output, F.one_hot(batch[1], 5).float())


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
    "places": Case(
        Places,
        labels,
        lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
        lambda of: (torch.randn(ROWS, 2, 7, 9, generator=of), torch.randint(5, (ROWS,), generator=of)),
    ),
    "apart": Case(
        Apart,
        weighted,
        lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
        lambda of: (torch.randn(ROWS, 6, generator=of), torch.randint(5, (ROWS,), generator=of)),
    ),
    "views": Case(
        Views,
        correlation,
        lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        lambda of: (torch.randn(ROWS, 2, 12, generator=of) * 2 + 1, torch.randint(5, (ROWS,), generator=of)),
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


def flat(state: dict[str, Tensor]) -> dict[str, list[float]]:
    return {name: tensor.double().flatten().tolist() for name, tensor in state.items()}


class Wrong(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


def asserts(x: Tensor) -> Tensor:
    """It stands here as pytest writes the assertions of its own files anew."""
    assert torch.all(x < 1e9).item(), "they are finite"
    assert (x > -1e9).all(), (
        "in several lines"
    )  # fmt: skip
    if x.max() >= 1e9:
        raise ValueError(f"they are less than {1e9}")
    if x.dim() == 2 and not (x.min() > -1e9):
        raise ValueError
    return x.square().mean()
