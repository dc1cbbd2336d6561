"""Counter-based random numbers: functions of (seed, key, step, element of the whole tensor) alone, so that every mesh draws the same.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Words are kept in 64-bit integers, as PyTorch
has no arithmetic of unsigned 32 bits; the bits are graphc's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

MASK = 0xFFFF_FFFF
MULTIPLIERS = (0xD251_1F53, 0xCD9E_8D57)
WEYL = (0x9E37_79B9, 0xBB67_AE85)
BLOCK = 1 << 15
"""Elements that are drawn at one time on the processor: what its cache holds."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Names one stream of random numbers."""

    seed: int
    """The job's seed."""
    key: int
    """The op's key."""
    step: int
    """The training step, 0 for what does not change."""

    def words(self, elements: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Four random words of each element, as i64 in [0, 2^32)."""
        mixed = self.seed ^ _rotated(self.key * 0x9E37_79B9_7F4A_7C15, 17)
        key = [mixed & MASK, mixed >> 32]
        a, b = elements & MASK, elements >> 32
        c = torch.full_like(a, self.step & MASK)
        d = torch.full_like(a, self.step >> 32)
        for _ in range(10):
            first, second = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
            a = second.bitwise_right_shift(32).bitwise_and_(MASK).bitwise_xor_(b).bitwise_xor_(key[0])
            c = first.bitwise_right_shift(32).bitwise_and_(MASK).bitwise_xor_(d).bitwise_xor_(key[1])
            b, d = second.bitwise_and_(MASK), first.bitwise_and_(MASK)
            key = [(key[0] + WEYL[0]) & MASK, (key[1] + WEYL[1]) & MASK]
        return a, b, c, d

    def integers(self, elements: Tensor) -> Tensor:
        """Whole numbers in [0, 2^24) of which :meth:`uniform` is a 2^-24th."""
        return self.words(elements)[0].bitwise_right_shift_(8)

    def uniform(self, elements: Tensor) -> Tensor:
        """Numbers in [0, 1), multiples of 2^-24, of f32."""
        return self.integers(elements).to(torch.float32).mul_(2.0**-24)

    def normal(self, elements: Tensor) -> Tensor:
        """Numbers of the standard normal distribution, computed in f64 and rounded to f32."""
        first, second, _, _ = self.words(elements)
        radius = (first.to(torch.float64) + 1.0).mul_(2.0**-32).log_().mul_(-2.0).sqrt_()
        angle = second.to(torch.float64).mul_(2.0**-32).mul_(math.tau)
        return (radius * angle.cos_()).to(torch.float32)


def draw(kind: str, a: float, b: float, stream: Stream, elements: Tensor) -> Tensor:
    """Numbers of a distribution, in f32: ``normal`` with mean a and deviation b, or ``uniform`` in [a, b)."""
    if kind == "normal":
        return stream.normal(elements).to(torch.float64).mul_(b).add_(a).to(torch.float32)
    return stream.uniform(elements).to(torch.float64).mul_(b - a).add_(a).to(torch.float32)


def key_of(name: str) -> int:
    """A key from a name: FNV-1a, 64 bits."""
    key = 0xCBF2_9CE4_8422_2325
    for byte in name.encode():
        key = (key ^ byte) * 0x0000_0100_0000_01B3 & 0xFFFF_FFFF_FFFF_FFFF
    return key


def positions(shape: tuple[int, ...], origin: tuple[int, ...], extent: tuple[int, ...], device: torch.device) -> Tensor:
    """The row-major positions in a whole tensor of this shape of the elements of a part, shaped as the part."""
    place = torch.zeros((), dtype=torch.int64, device=device)
    stride = 1
    for dim in reversed(range(len(shape))):
        along = torch.arange(origin[dim], origin[dim] + extent[dim], device=device) * stride
        place = place + along.view([-1] + [1] * (len(shape) - 1 - dim))
        stride *= shape[dim]
    return place.expand(extent)


def blocks(elements: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The elements of a flat tensor a block after the other; on an accelerator all at once."""
    size = BLOCK if elements.device.type == "cpu" else max(elements.numel(), 1)
    for begin in range(0, elements.numel(), size):
        part = slice(begin, begin + size)
        yield part, elements[part]


def _rotated(word: int, by: int) -> int:
    word &= 0xFFFF_FFFF_FFFF_FFFF
    return (word << by | word >> (64 - by)) & 0xFFFF_FFFF_FFFF_FFFF
