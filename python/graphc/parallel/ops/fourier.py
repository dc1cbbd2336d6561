"""Fourier transforms, as products with matrices of cosines and sines: one for each dim."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..text import Value, Writer
from .call import Unsupported
from .complex_numbers import ComplexCall, Handler, Pair, real_pair

MOST_PLACES = 4096
"""Places of the longest dim, whose matrices have the square of it."""


def of_complex(call: ComplexCall) -> Pair:
    """From complex numbers to complex ones."""
    x, dims = call.pair("self"), _dims(call)
    sign = -1.0 if call["forward"] else 1.0
    return _scaled(call, _turned(call.writer, x, dims, sign), [x.real.shape[dim] for dim in dims])


def of_real(call: ComplexCall) -> Pair:
    """From real numbers to complex ones; of the last dim half of them say all."""
    x, dims = call.tensor("self"), _dims(call)
    last, extents = dims[-1], [x.shape[dim] for dim in dims]
    count = extents[-1] // 2 + 1 if call["onesided"] else extents[-1]
    first = _along(call.writer, real_pair(call.writer, x), last, _waves(extents[-1], count, -1.0), is_real=True)
    return _scaled(call, _turned(call.writer, first, dims[:-1], -1.0), extents)


def to_real(call: ComplexCall) -> Value:
    """From half of the complex numbers back to real ones."""
    x, dims, extent = call.pair("self"), _dims(call), int(call["last_dim_size"])
    extents = [*(x.real.shape[dim] for dim in dims[:-1]), extent]
    x = _turned(call.writer, x, dims[:-1], 1.0)
    cosines, sines = _waves(extent, extent // 2 + 1, 1.0)
    # Those in between stand for two.
    twice = torch.full((extent // 2 + 1, 1), 2.0, dtype=cosines.dtype)
    twice[0] = 1.0
    if extent % 2 == 0:
        twice[-1] = 1.0
    matrices = ((cosines * twice).t(), (sines * twice).t())
    return _scaled(call, _along(call.writer, x, dims[-1], matrices), extents).real


def _dims(call: ComplexCall) -> list[int]:
    rank = len(call.arguments["self"].meta["val"].shape)
    return [dim % rank for dim in call["dim"]]


def _turned(writer: Writer, x: Pair, dims: Sequence[int], sign: float) -> Pair:
    for dim in dims:
        extent = x.real.shape[dim]
        x = _along(writer, x, dim, _waves(extent, extent, sign))
    return x


def _waves(extent: int, count: int, sign: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines, ``[count, extent]``: a row for each frequency."""
    if extent > MOST_PLACES:
        raise Unsupported(f"graphc transforms dims of up to {MOST_PLACES} places, and one has {extent}")
    turns = (torch.arange(count)[:, None] * torch.arange(extent)) % extent
    angles = turns.double() * (2.0 * math.pi / extent)
    return torch.cos(angles), sign * torch.sin(angles)


def _along(writer: Writer, x: Pair, dim: int, matrices: tuple[Tensor, Tensor], is_real: bool = False) -> Pair:
    """A dim times a complex matrix."""
    last = x.real.rank - 1
    order = [other for other in range(last + 1) if other != dim]
    order.append(dim)
    back = [order.index(other) for other in range(last + 1)]
    cosines, sines = (writer.content(part.float().contiguous()) for part in matrices)

    def times(part: Value, matrix: Value) -> Value:
        moved = writer.transpose(part, order)
        rows = moved if moved.rank > 1 else writer.reshape(moved, (1, *moved.shape))
        found = writer.matmul(rows, matrix, transpose_b=True)
        return writer.transpose(found if moved.rank > 1 else writer.reshape(found, found.shape[1:]), back)

    real, imaginary = times(x.real, cosines), times(x.real, sines)
    if is_real:
        return Pair(real, imaginary)
    real = writer.binary("sub", real, times(x.imaginary, sines))
    return Pair(real, writer.binary("add", imaginary, times(x.imaginary, cosines)))


def _scaled(call: ComplexCall, x: Pair, extents: Sequence[int]) -> Pair:
    """Divided by the number of places, by its root, or by nothing."""
    places = math.prod(extents)
    factor = {0: 1.0, 1: 1.0 / math.sqrt(places), 2: 1.0 / places}[int(call["normalization"])]
    return Pair(call.writer.scale(x.real, factor), call.writer.scale(x.imaginary, factor))


TABLE: dict[str, Handler] = {
    "_fft_c2c": of_complex,
    "_fft_r2c": of_real,
    "_fft_c2r": to_real,
}
