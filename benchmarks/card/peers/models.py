"""The models of the kit in PyTorch, of the same sizes as graphc's."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_models import ResNet50


def made(sizes: dict[str, Any]) -> nn.Module:
    """The model of these sizes, as `card_models` has written them."""
    of = lambda *names: [sizes[name] for name in names]
    match sizes["kind"]:
        case "resnet":
            return ResNet50(*of("classes", "blocks", "width"))
        case "llama":
            return Llama(*of("layers", "width", "heads", "shared", "hidden", "vocabulary", "time", "base"))
        case "gpt2":
            return Gpt2(*of("layers", "width", "heads", "time", "vocabulary"))
        case kind:
            raise ValueError(f"no model of kind {kind}")


class Attention(nn.Module):
    """Causal self-attention whose heads share keys and values in groups, or have their own."""

    def __init__(self, width: int, heads: int, shared: int, rotary: bool) -> None:
        super().__init__()
        self.heads, self.shared, self.rotary = heads, shared, rotary
        head = width // heads
        bias = not rotary
        self.qkv = nn.Linear(width, (heads + 2 * shared) * head, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor, angles: Tensor | None) -> Tensor:
        batch, time, width = x.shape
        head = width // self.heads
        parts = self.qkv(x).split([self.heads * head, self.shared * head, self.shared * head], dim=-1)
        q, k, v = (part.view(batch, time, -1, head).transpose(1, 2) for part in parts)
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.shared != self.heads)
        return self.out(y.transpose(1, 2).reshape(batch, time, width))


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions: both halves of a head as the parts of complex numbers."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Gpt2Block(nn.Module):
    """A block of GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads, heads, rotary=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x), None)
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2, whose head is its table of tokens; no dropout."""

    def __init__(self, layers: int, width: int, heads: int, time: int, vocabulary: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(time, width)
        self.h = nn.ModuleList(Gpt2Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


class LlamaBlock(nn.Module):
    """A block of LLaMA."""

    def __init__(self, width: int, heads: int, shared: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.attention = Attention(width, heads, shared, rotary=True)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        x = x + self.attention(self.first(x), angles)
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """LLaMA, with a head of its own."""

    angles: Tensor

    def __init__(self, layers: int, width: int, heads: int, shared: int, hidden: int, vocabulary: int, time: int, base: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, shared, hidden) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, vocabulary, bias=False)
        half = width // heads // 2
        rates = base ** (-torch.arange(half) / half)
        self.register_buffer("angles", torch.arange(time)[:, None] * rates, persistent=False)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.angles)
        return self.head(self.norm(x))

