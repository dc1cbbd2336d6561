"""Modules as people write them with PyTorch alone, and those of diffusers: `benchmarks/modules.py --others` trains them with its others."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from modules_kinds import CLASSES, ROWS, TIME, WORDS, Batch, Loss, Module, classes, labelled, words
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm


class Translator(nn.Module):
    """PyTorch's own encoder and decoder, of texts that are filled up behind."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 32, padding_idx=0), nn.Parameter(torch.randn(1, TIME, 32) * 0.1)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        other = nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.decoder, self.head = nn.TransformerDecoder(other, 2, nn.LayerNorm(32)), nn.Linear(32, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x == 0
        read = self.encoder(self.words(x) + self.places, src_key_padding_mask=hidden)
        before = torch.cat([torch.ones_like(x[:, :1]), x[:, :-1]], 1)
        mask = nn.Transformer.generate_square_subsequent_mask(TIME)
        found = self.words(before) * math.sqrt(32) + self.places
        found = self.decoder(found, read, tgt_mask=mask, memory_key_padding_mask=hidden, tgt_is_causal=True)
        return F.cross_entropy(self.head(found).view(-1, WORDS), x.view(-1), ignore_index=0, label_smoothing=0.1)


class Tagger(nn.Module):
    """Two LSTMs under a conditional random field."""

    def __init__(self, tags: int = 5) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(WORDS, 16), nn.LSTM(16, 12, 2, batch_first=True, bidirectional=True)
        self.scores, self.steps = nn.Linear(24, tags), nn.Parameter(torch.randn(tags, tags) * 0.1)
        self.first, self.last = nn.Parameter(torch.zeros(tags)), nn.Parameter(torch.zeros(tags))

    def forward(self, x: Tensor) -> Tensor:
        mask, tags = x != 2, x % 5
        scores, rows = self.scores(self.lstm(self.words(x))[0]), torch.arange(x.size(0))
        own = self.first[tags[:, 0]] + scores[:, 0].gather(1, tags[:, :1]).squeeze(1)
        all_ = self.first + scores[:, 0]
        for at in range(1, x.size(1)):
            own = own + (self.steps[tags[:, at - 1], tags[:, at]] + scores[rows, at, tags[:, at]]) * mask[:, at]
            further = torch.logsumexp(all_.unsqueeze(2) + self.steps + scores[:, at].unsqueeze(1), 1)
            all_ = torch.where(mask[:, at].unsqueeze(1), further, all_)
        ends = tags.gather(1, mask.long().sum(1, keepdim=True) - 1).squeeze(1)
        return (torch.logsumexp(all_ + self.last, 1) - own - self.last[ends]).mean()


class GraphAttention(nn.Module):
    """Attention along the edges of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 16, bias=False), nn.Linear(16, CLASSES)
        self.source, self.target = (nn.Parameter(torch.randn(2, 8) * 0.3) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        rows, nodes, _ = x.shape
        source, target = torch.tensor([0, 1, 2, 3, 4, 0, 2, 4]), torch.tensor([1, 2, 3, 4, 0, 2, 0, 1])
        hidden = self.inner(x).view(rows, nodes, 2, 8)
        parts = (torch.einsum("bnhd,hd->bnh", hidden, weight) for weight in (self.source, self.target))
        scores = F.leaky_relu(next(parts)[:, source] + next(parts)[:, target], 0.2)
        places = target.view(1, -1, 1).expand(rows, -1, 2)
        greatest = torch.full((rows, nodes, 2), -1e9).scatter_reduce(1, places, scores.detach(), "amax")
        weights = torch.exp(scores - greatest[:, target])
        weights = weights / (torch.zeros(rows, nodes, 2).index_add(1, target, weights)[:, target] + 1e-16)
        places = target.view(1, -1, 1, 1).expand(rows, -1, 2, 8)
        found = torch.zeros(rows, nodes, 2, 8).scatter_add_(1, places, hidden[:, source] * weights.unsqueeze(-1))
        return self.head(F.elu(found.flatten(2)).mean(1))


class TimeConvolutions(nn.Module):
    """Gated convolutions that see further from layer to layer, with normalized weights."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((4, 1), (8, 2), (8, 4))
        self.layers = nn.ModuleList(weight_norm(nn.Conv1d(width, 16, 3, padding=2 * far, dilation=far)) for width, far in sizes)
        self.head = spectral_norm(nn.Linear(8, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        found = torch.zeros(())
        for number, layer in enumerate(self.layers):
            inner, gate = layer(x)[:, :, : -2 * 2**number].chunk(2, 1)
            inner = torch.tanh(inner) * torch.sigmoid(gate)
            x = inner if number == 0 else x + inner
            found = found + x
        return self.head(found.amax(-1))


class Rays(nn.Module):
    """The colours of rays through a field, as NeRF has them."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(39, 32), nn.ReLU(), nn.Linear(32, 32), nn.Softplus(), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        times = torch.linspace(0.5, 3.0, 16)
        points = x[:, None, :3] + F.normalize(x[:, 3:], dim=-1)[:, None] * times[:, None]
        waves = [function(2.0**power * points) for power in range(6) for function in (torch.sin, torch.cos)]
        found = self.field(torch.cat([points, *waves], -1))
        steps = torch.cat([times[1:] - times[:-1], torch.tensor([1e10])])
        opaque = 1.0 - torch.exp(-F.relu(found[..., 3] + 0.5) * steps)
        passed = torch.cumprod(torch.cat([torch.ones_like(opaque[:, :1]), 1.0 - opaque + 1e-10], -1), -1)[:, :-1]
        return ((opaque * passed)[..., None] * torch.sigmoid(found[..., :3])).sum(1)


class Flow(nn.Module):
    """A differential equation by Runge and Kutta, whose result is read by weights that another layer makes."""

    def __init__(self) -> None:
        super().__init__()
        self.slope, self.weights = nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 6)), nn.Linear(6, 6 * CLASSES)

    def change(self, time: float, y: Tensor) -> Tensor:
        found: Tensor = self.slope(torch.cat([y, torch.full_like(y[:, :1], time)], 1))
        return found

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for number in range(4):
            time = number / 4
            first = self.change(time, y)
            second = self.change(time + 0.125, y + 0.125 * first)
            third = self.change(time + 0.125, y + 0.125 * second)
            y = y + (first + 2.0 * second + 2.0 * third + self.change(time + 0.25, y + 0.25 * third)) / 24
        return torch.einsum("bi,bij->bj", y, self.weights(x).view(-1, 6, CLASSES))


class Angles(nn.Module):
    """Classes by angles with a margin, as ArcFace has them."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.centres = nn.Linear(6, 8), nn.Parameter(torch.randn(CLASSES, 8))

    def forward(self, x: Tensor) -> Tensor:
        found = F.linear(F.normalize(torch.tanh(self.features(x))), F.normalize(self.centres))
        return torch.acos(found.clamp(-1.0 + 1e-6, 1.0 - 1e-6))


def with_margin(output: Any, batch: Any) -> Tensor:
    """Cross entropy of cosines, with 0.3 more of an angle to each row's own class."""
    own = F.one_hot(batch[1], CLASSES).to(output.dtype)
    return F.cross_entropy(8.0 * torch.cos(output + 0.3 * own), batch[1])


def focal(output: Any, batch: Any) -> Tensor:
    """Cross entropy that counts more where a class is not seen yet."""
    losses = F.cross_entropy(output, batch[1], reduction="none")
    return ((1.0 - torch.exp(-losses)) ** 2 * losses).mean()


def written(make: Callable[[], nn.Module], batch: Callable[[], Batch], loss: Loss = labelled) -> Module:
    return Module("torch", make, batch, loss)


def filled_up() -> Batch:
    """Texts of which some end early."""
    lengths = torch.tensor([[8], [6], [5], [8]])
    return torch.where(torch.arange(TIME) < lengths, words(), 0), classes()


class Called(nn.Module):
    """A module that is called in a way of its own."""

    def __init__(self, own: nn.Module, call: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.own, self.call = own, call

    def forward(self, x: Tensor) -> Any:
        return self.call(self.own, x)


def diffusing(name: str, call: Callable[[Any, Tensor], Any], shape: tuple[int, ...], **options: Any) -> Module:
    """A model of diffusers that learns to give other numbers of the same shape."""

    def make() -> nn.Module:
        own = getattr(importlib.import_module("diffusers"), name)(**options)
        for part in own.modules():
            if hasattr(part, "dropout_prob"):
                part.dropout_prob = 0.0
        return Called(own, call)

    def loss(output: Any, batch: Any) -> Tensor:
        return F.mse_loss(output.sample, batch[1]) + (0.0 if getattr(output, "commit_loss", None) is None else output.commit_loss)

    return Module("diffusers", make, lambda: (torch.randn(ROWS, *shape), torch.randn(ROWS, *shape)), loss)


def texts(x: Tensor, width: int = 16) -> Tensor:
    """What stands for the texts of pictures."""
    return x.flatten(1)[:, : 4 * width].view(-1, 4, width)


def flux(model: Any, x: Tensor) -> Any:
    rows = torch.arange(16)
    places = torch.stack([torch.zeros(16), rows // 4, rows % 4], 1)
    return model(x, texts(x), x[:, 0].repeat(1, 4), x[:, 0, 0].sigmoid(), places, torch.zeros(4, 3))


UNET = {"sample_size": 16, "layers_per_block": 1, "block_out_channels": (16, 32), "norm_num_groups": 4, "in_channels": 3, "out_channels": 3}
CODES = {
    "block_out_channels": (8, 16), "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
    "norm_num_groups": 4,
}  # fmt: skip

WRITTEN = {
    "nn.TransformerDecoder": written(Translator, filled_up, lambda output, _: output),
    "LSTM with CRF": written(Tagger, lambda: (words(), classes()), lambda output, _: output),
    "Graph attention": written(GraphAttention, lambda: (torch.randn(ROWS, 5, 6), classes())),
    "TCN": written(TimeConvolutions, lambda: (torch.randn(ROWS, 4, 16), classes()), focal),
    "NeRF": written(Rays, lambda: (torch.randn(ROWS, 6), torch.rand(ROWS, 3)), lambda output, batch: F.mse_loss(output, batch[1])),
    "Neural ODE": written(Flow, lambda: (torch.randn(ROWS, 6), classes())),
    "ArcFace": written(Angles, lambda: (torch.randn(ROWS, 6), classes()), with_margin),
    "UNet": diffusing("UNet2DModel", lambda model, x: model(x, torch.tensor([3])), (3, 16, 16), **UNET, attention_head_dim=8,
                      down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D")),
    "UNet with texts": diffusing("UNet2DConditionModel", lambda model, x: model(x, torch.tensor(3), texts(x)), (3, 16, 16), **UNET,
                                 down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), attention_head_dim=4,
                                 up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=16),
    "UNet of films": diffusing("UNet3DConditionModel", lambda model, x: model(x, torch.tensor(3), texts(x, 8)), (3, 2, 8, 8),
                               **{**UNET, "sample_size": 8, "block_out_channels": (8, 16)}, cross_attention_dim=8, attention_head_dim=4,
                               down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
                               up_block_types=("UpBlock3D", "CrossAttnUpBlock3D")),
    "AutoencoderKL": diffusing("AutoencoderKL", lambda model, x: model(x), (3, 16, 16), **CODES),
    "VQModel": diffusing("VQModel", lambda model, x: model(x), (3, 16, 16), **CODES, num_vq_embeddings=16),
    "DiT": diffusing("DiTTransformer2DModel", lambda model, x: model(x, torch.arange(len(x)), torch.arange(len(x))), (3, 8, 8),
                     num_attention_heads=2, attention_head_dim=8, in_channels=3, out_channels=3, num_layers=2, sample_size=8, patch_size=2,
                     num_embeds_ada_norm=20, norm_num_groups=1),
    "Stable Diffusion 3": diffusing("SD3Transformer2DModel", lambda model, x: model(x, texts(x), texts(x)[:, 0], torch.arange(len(x))),
                                    (3, 8, 8), sample_size=8, patch_size=2, in_channels=3, out_channels=3, num_layers=2,
                                    attention_head_dim=8, num_attention_heads=2, joint_attention_dim=16, caption_projection_dim=16,
                                    pooled_projection_dim=16, pos_embed_max_size=8),
    "Flux": diffusing("FluxTransformer2DModel", flux, (16, 4), patch_size=1, in_channels=4, num_layers=1, num_single_layers=1,
                      attention_head_dim=16, num_attention_heads=2, joint_attention_dim=16, pooled_projection_dim=16,
                      axes_dims_rope=(4, 4, 8)),
    "Sana": diffusing("SanaTransformer2DModel", lambda model, x: model(x, texts(x), x[:, 0, 0, 0]), (4, 8, 8), in_channels=4,
                      out_channels=4, num_attention_heads=2, attention_head_dim=8, num_layers=1, num_cross_attention_heads=2,
                      cross_attention_head_dim=8, cross_attention_dim=16, caption_channels=16, sample_size=8, patch_size=1),
    "Wan": diffusing("WanTransformer3DModel", lambda model, x: model(x, torch.arange(len(x)), texts(x)), (4, 2, 8, 8), patch_size=(1, 2, 2),
                     num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=16, freq_dim=16, ffn_dim=32,
                     num_layers=1, rope_max_seq_len=32),
    "CogVideoX": diffusing("CogVideoXTransformer3DModel", lambda model, x: model(x, texts(x), torch.arange(len(x))), (2, 4, 8, 8),
                           num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=4, time_embed_dim=8, text_embed_dim=16,
                           num_layers=1, sample_width=8, sample_height=8, sample_frames=5, patch_size=2, max_text_seq_length=4),
}  # fmt: skip
