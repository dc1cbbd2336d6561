"""Ops that are taken apart while a module is captured: each is a function of PyTorch's own other ops, for which there are translations.

What PyTorch takes apart by itself is not here. Formulas give the gradients that PyTorch gives, also where a naive one would give none.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.nn import functional

from . import angles, distances, exponentials, linear_algebra, orders, scans, special_functions, volumes
from .detach import detached
from .exponentials import NEAR, log1p

ATEN: Any = torch.ops.aten

MOST_FACTORS = 256
"""Elements of a dim of which a product is taken."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """What each overload of an op is in terms of others; it may leave a call as it is by giving ``NotImplemented``."""
    parts = (angles, distances, exponentials, linear_algebra, orders, scans, special_functions, volumes)
    return dict(ChainMap(_TABLE, *(part.TABLE for part in parts)))


def hardsigmoid(x: Tensor) -> Tensor:
    """A line between -3 and 3: nothing is learned beyond, and at its ends."""
    return functional.hardtanh(x / 6.0 + 0.5, 0.0, 1.0)


def hardswish(x: Tensor) -> Tensor:
    """A hard sigmoid that weighs its own argument."""
    return x * hardsigmoid(x)


def tan(x: Tensor) -> Tensor:
    """The tangent of radians."""
    return torch.sin(x) / torch.cos(x)


def is_nan(x: Tensor) -> Tensor:
    """Whether elements are no numbers."""
    return x != x if x.dtype.is_floating_point else torch.zeros_like(x, dtype=torch.bool)


def is_infinite(x: Tensor) -> Tensor:
    """Whether elements are infinite."""
    return x.abs() == math.inf if x.dtype.is_floating_point else torch.zeros_like(x, dtype=torch.bool)


def truncate(x: Tensor) -> Tensor:
    """The next integer towards 0."""
    return torch.where(x < 0, torch.ceil(x), torch.floor(x)) if x.dtype.is_floating_point else x.clone()


def round_to(x: Tensor, decimals: int = 0) -> Tensor:
    """The nearest number of so many decimals, or for less than 0 the nearest multiple of a power of ten."""
    if not x.dtype.is_floating_point or decimals == 0:
        return torch.round(x)
    power = float(10 ** abs(decimals))
    return torch.round(x * power) / power if decimals > 0 else torch.round(x / power) * power


def remainder(x: Tensor, y: Tensor | float) -> Tensor:
    """What a quotient that is rounded down leaves."""
    return x - torch.div(x, y, rounding_mode="floor") * y


def truncated_remainder(x: Tensor, y: Tensor | float) -> Tensor:
    """What a quotient that is rounded towards 0 leaves."""
    return x - torch.div(x, y, rounding_mode="trunc") * y


def flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Dims in the opposite direction."""
    for dim in dims:
        x = torch.index_select(x, dim, torch.arange(x.shape[dim] - 1, -1, -1, device=x.device))
    return x


def windows(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    """Windows of a dim, which may overlap; the elements of each are the last dim."""
    dim = dim % x.dim()
    firsts = torch.arange(0, x.shape[dim] - size + 1, step, device=x.device)
    places = firsts.unsqueeze(1) + torch.arange(size, device=x.device)
    taken = torch.index_select(x, dim, places.flatten())
    return torch.movedim(taken.unflatten(dim, [firsts.shape[0], size]), dim + 1, -1)


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Elements of which two indices differ by a number, as the last dim."""
    rows, columns = x.shape[dim1], x.shape[dim2]
    first, last = max(0, -offset), max(0, min(rows, columns - offset))
    at = torch.arange(first, max(first, last), device=x.device)
    flat = torch.movedim(x, (dim1, dim2), (-2, -1)).flatten(-2)
    return torch.index_select(flat, -1, at * columns + at + offset)


def diagonal_scatter(x: Tensor, part: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Elements in the place of those of which two indices differ by a number."""
    dim1, dim2 = dim1 % x.dim(), dim2 % x.dim()
    rows, columns = (torch.arange(x.shape[dim], device=x.device) for dim in (dim1, dim2))
    taken = (rows - max(0, -offset)).clamp(0, part.shape[-1] - 1)
    spread = torch.index_select(part.to(x.dtype), -1, taken).unsqueeze(-1)
    along = [[-1 if at == dim else 1 for at in range(x.dim())] for dim in (dim1, dim2)]
    is_taken = columns.reshape(along[1]) - rows.reshape(along[0]) == offset
    return torch.where(is_taken, torch.movedim(spread, (-2, -1), (dim1, dim2)).contiguous(), x)


def differing_bits(x: Tensor, y: Any) -> Tensor:
    """The bits that one of two integers has, or whether one of two truths holds."""
    found: Tensor = x != y if x.dtype == torch.bool else (x | y) - (x & y)
    return found


def reflection_pad(x: Tensor, padding: Sequence[int]) -> Tensor:
    """Borders that repeat what is inside, as a mirror does."""
    return _bordered(x, padding, lambda places, extent: (extent - 1) - ((extent - 1) - places.abs()).abs())


def replication_pad(x: Tensor, padding: Sequence[int]) -> Tensor:
    """Borders that repeat the outermost elements."""
    return _bordered(x, padding, lambda places, extent: places.clamp(0, extent - 1))


def _bordered(x: Tensor, padding: Sequence[int], inside: Callable[[Tensor, int], Tensor]) -> Tensor:
    for index in range(len(padding) // 2):
        dim = x.dim() - 1 - index
        extent = x.shape[dim]
        places = torch.arange(-padding[2 * index], extent + padding[2 * index + 1], device=x.device)
        x = torch.index_select(x, dim, inside(places, extent))
    return x


def binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    """The loss of probabilities, whose logarithms are -100 and more; its gradient is bounded too, where one is 0 or 1."""
    known = detached(x)
    slope = detached((known - target) / torch.clamp((1.0 - known) * known, min=1e-12))
    losses = (target - 1.0) * torch.clamp(log1p(-known), min=-100.0) - target * torch.clamp(torch.log(known), min=-100.0)
    losses = losses + slope * (x - known)
    losses = losses if weight is None else losses * weight
    return losses.mean() if reduction == 1 else losses.sum() if reduction == 2 else losses


def any_of(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Whether anything of dims, or of all, is not 0."""
    dims = list(range(x.dim())) if dim is None else dim
    return torch.amax((x != 0).to(torch.float32), dims, keepdim) > 0.5


def all_of(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Whether nothing of dims, or of all, is 0."""
    dims = list(range(x.dim())) if dim is None else dim
    return torch.amin((x != 0).to(torch.float32), dims, keepdim) > 0.5


def product(x: Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """The product of a dim, by halves."""
    if x.shape[dim] > MOST_FACTORS:
        return NotImplemented
    x = x if dtype is None else x.to(dtype)
    while x.shape[dim] > 1:
        half = x.shape[dim] // 2
        joined = x.narrow(dim, 0, half) * x.narrow(dim, half, half)
        x = torch.cat([joined, x.narrow(dim, 2 * half, 1)], dim) if x.shape[dim] % 2 else joined
    return x if keepdim else x.squeeze(dim)


def whole_product(x: Tensor, *, dtype: torch.dtype | None = None) -> Any:
    """The product of all elements."""
    return product(x.reshape(-1), 0, dtype=dtype)


def clamp(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Bounds that are tensors."""
    x = x if low is None else torch.where(x < low, low, x)
    return x if high is None else torch.where(x > high, high, x)


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Any:
    """Correlation of volumes, as the sum of those of images for each place in the depth of the kernels; all else is left as it is."""
    stride, padding, dilation, transposed, more, groups = how
    if x.dim() != 5:
        return NotImplemented
    if transposed:
        return volumes.transposed(x, weight, bias, stride, padding, dilation, more, groups)
    depth, total = weight.shape[2], None
    x = functional.pad(x, (0, 0, 0, 0, padding[0], padding[0]))
    places = (x.shape[2] - dilation[0] * (depth - 1) - 1) // stride[0] + 1
    for at in range(depth):
        first = at * dilation[0]
        images = x[:, :, first : first + (places - 1) * stride[0] + 1 : stride[0]].transpose(1, 2)
        found = functional.conv2d(images.flatten(0, 1), weight[:, :, at], None, stride[1:], padding[1:], dilation[1:], groups)
        total = found if total is None else total + found
    assert total is not None, "kernels have a depth"
    whole = total.unflatten(0, (x.shape[0], places)).transpose(1, 2)
    return whole if bias is None else whole + bias[:, None, None, None]


def as_strided(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Any:
    """Elements by their places in memory, of a tensor that lies there as a whole; one with all of them is left as it is."""
    order = sorted(range(x.dim()), key=lambda dim: -x.stride()[dim])
    x = x.permute(order)
    if not x.is_contiguous() or math.prod(size) == x.numel():
        return NotImplemented
    return torch.index_select(x.reshape(-1), 0, _places(size, stride, offset, x)).reshape(list(size))


def as_strided_scatter(x: Tensor, part: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Any:
    """Elements put to places in memory, of a tensor that lies there as a whole."""
    if not x.is_contiguous():
        return NotImplemented
    return torch.scatter(x.reshape(-1), 0, _places(size, stride, offset, x), part.reshape(-1)).reshape(x.shape)


def _places(size: Sequence[int], stride: Sequence[int], offset: int | None, x: Tensor) -> Tensor:
    found = torch.full([1] * len(size), offset or 0, device=x.device)
    for dim, (extent, step) in enumerate(zip(size, stride, strict=True)):
        along = torch.arange(extent, device=x.device) * step
        found = found + along.reshape([-1] + [1] * (len(size) - 1 - dim))
    return found.reshape(-1)


def scatter_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Any:
    """Elements joined at places where what was there counts for nothing, or their means; all else is left as it is."""
    if reduce == "mean":
        ones = torch.ones_like(x) if include_self else torch.scatter(torch.ones_like(x), dim, index, 0.0)
        total = x if include_self else torch.scatter(x, dim, index, 0.0)
        return torch.scatter_add(total, dim, index, source) / torch.scatter_add(ones, dim, index, torch.ones_like(source))
    if include_self:
        return NotImplemented
    bare = torch.scatter(x, dim, index, _neutral(reduce, x.dtype))
    return torch.scatter_reduce(bare, dim, index, source, reduce)


def _neutral(reduce: str, dtype: torch.dtype) -> float:
    """What changes nothing when it is joined in this way."""
    if reduce in ("sum", "prod"):
        return 0 if reduce == "sum" else 1
    if dtype.is_floating_point:
        return -math.inf if reduce == "amax" else math.inf
    return torch.iinfo(dtype).min if reduce == "amax" else torch.iinfo(dtype).max


def sinc(x: Tensor) -> Tensor:
    """sin(pi x) / (pi x), and near 0 the first terms of its series: 1 at 0, where it is level."""
    angle = x * math.pi
    is_near = angle.abs() < NEAR
    square = torch.where(is_near, angle, 0.0).square()
    series = 1.0 - square * (1.0 / 6.0) * (1.0 - square * (1.0 / 20.0))
    far = torch.where(is_near, 1.0, angle)
    return torch.where(is_near, series, torch.sin(far) / far)


def slice_scatter(x: Tensor, part: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    """Every so many elements of a dim in the place of what was there; a range is left as it is."""
    if step == 1:
        return NotImplemented
    if part.shape[dim] == 0:
        return x.clone()
    first, last, _ = slice(start, end).indices(x.shape[dim])
    places = torch.arange(x.shape[dim], device=x.device) - first
    taken = torch.index_select(part, dim, torch.div(places, step, rounding_mode="floor").clamp(0, part.shape[dim] - 1))
    is_taken = (places >= 0) & (places < last - first) & (torch.remainder(places, step) == 0)
    return torch.where(is_taken.reshape([-1 if at == dim % x.dim() else 1 for at in range(x.dim())]), taken.to(x.dtype), x)


def margins_of_labels(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """By how much less than 1 each label is above what is no label; labels end at -1. PyTorch's own way counts those behind, too."""
    rows, labels = torch.atleast_2d(x), torch.atleast_2d(target)
    classes = torch.arange(rows.shape[1], device=x.device)
    is_label = torch.cumsum((labels < 0).to(torch.int64), -1) == 0
    own = torch.gather(rows, 1, labels.clamp(min=0))
    is_target = torch.any((labels.unsqueeze(-1) == classes) & is_label.unsqueeze(-1), 1)
    missing = torch.clamp(1.0 - own.unsqueeze(-1) + rows.unsqueeze(1), min=0.0)
    counted = is_label.unsqueeze(-1) & torch.logical_not(is_target).unsqueeze(1)
    losses = torch.where(counted, missing, 0.0).sum([1, 2]) / rows.shape[1]
    found = losses.mean() if reduction == 1 else losses.sum() if reduction == 2 else losses.reshape(x.shape[:-1])
    return found, is_target.to(x.dtype).reshape(target.shape)


def exponential(x: Tensor, rate: float = 1.0, generator: Any = None) -> Tensor:
    """Random waiting times."""
    return -torch.log(1.0 - torch.rand(x.shape, dtype=x.dtype, device=x.device)) / rate


def normal(mean: Tensor | float, deviation: Tensor | float, generator: Any = None) -> Tensor:
    """Random numbers around a mean, with a standard deviation."""
    like = mean + deviation * 0.0
    assert isinstance(like, Tensor), "one of both is a tensor"
    return mean + deviation * torch.randn(like.shape, dtype=like.dtype, device=like.device)


def normal_like(x: Tensor, mean: float = 0.0, deviation: float = 1.0, generator: Any = None) -> Tensor:
    """Random numbers around a mean, in the place of others."""
    return torch.randn(x.shape, dtype=x.dtype, device=x.device) * deviation + mean


def permutation(count: int, **options: Any) -> Tensor:
    """Numbers in a random order."""
    return torch.rand(count, device=options.get("device")).argsort().to(options.get("dtype") or torch.int64)


def drawn(weights: Tensor, count: int, replacement: bool = False, generator: Any = None) -> Tensor:
    """Random places, each as likely as its weight says, by the first of waiting times."""
    rates = weights.unsqueeze(-2).expand(*weights.shape[:-1], count, weights.shape[-1]) if replacement else weights
    times = exponential(rates) / torch.where(rates > 0, rates, 1e-30)
    return torch.argmax(-times, -1) if replacement else torch.topk(-times, count, -1).indices


def trilinear(
    a: Tensor, b: Tensor, c: Tensor, expand1: Sequence[int], expand2: Sequence[int], expand3: Sequence[int], sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:  # fmt: skip
    """The products of three tensors, each with dims of its own, summed over some."""
    for dims, given in ((expand1, 0), (expand2, 1), (expand3, 2)):
        for dim in sorted(dims):
            a, b, c = (part.unsqueeze(dim) if place == given else part for place, part in enumerate((a, b, c)))
    return (a * b * c).sum(list(sumdim))


def leaky(x: Tensor, noise: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, generator: Any = None) -> Any:
    """The rectified unit whose slope below 0 is random in training, and else their mean."""
    return NotImplemented if training else (functional.leaky_relu(x, (lower + upper) / 2), noise)


def uniform(x: Tensor, low: float = 0.0, high: float = 1.0, generator: Any = None) -> Tensor:
    """Random numbers between two."""
    return torch.rand(x.shape, dtype=x.dtype, device=x.device) * (high - low) + low


_TABLE: dict[Any, Callable[..., Any]] = {
    ATEN.uniform.default: uniform,
    ATEN.sinc.default: sinc,
    ATEN.hypot.default: lambda x, y: torch.sqrt(x.square() + y.square()),
    ATEN.slice_scatter.default: slice_scatter,
    ATEN.multilabel_margin_loss_forward.default: margins_of_labels,
    ATEN.exponential.default: exponential,
    **{getattr(ATEN.normal, name): normal for name in ("Tensor_Tensor", "Tensor_float", "float_Tensor")},
    ATEN.normal_functional.default: normal_like,
    ATEN.randperm.default: permutation,
    ATEN.multinomial.default: drawn,
    ATEN.copysign.Tensor: lambda x, y: torch.where(y < 0, -x.abs(), x.abs()),
    **{overload: differing_bits for overload in (ATEN.bitwise_xor.Scalar, ATEN.bitwise_xor.Tensor)},
    ATEN.__lshift__.Scalar: lambda x, places: x * 2**places,
    ATEN.__rshift__.Scalar: lambda x, places: torch.div(x, 2**places, rounding_mode="floor"),
    ATEN._trilinear.default: trilinear,
    ATEN.rrelu_with_noise_functional.default: leaky,
    ATEN.log2.default: lambda x: torch.log(x) * (1.0 / math.log(2.0)),
    ATEN.log10.default: lambda x: torch.log(x) * (1.0 / math.log(10.0)),
    ATEN.exp2.default: lambda x: torch.exp(x * math.log(2.0)),
    ATEN.hardsigmoid.default: hardsigmoid,
    ATEN.hardswish.default: hardswish,
    ATEN.tan.default: tan,
    ATEN.isnan.default: is_nan,
    ATEN.isinf.default: is_infinite,
    ATEN.trunc.default: truncate,
    ATEN.round.decimals: round_to,
    ATEN.remainder.Tensor: remainder,
    ATEN.remainder.Scalar: remainder,
    ATEN.fmod.Tensor: truncated_remainder,
    ATEN.fmod.Scalar: truncated_remainder,
    ATEN.flip.default: flip,
    ATEN.unfold.default: windows,
    ATEN.diagonal.default: diagonal,
    ATEN.diagonal_scatter.default: diagonal_scatter,
    **{getattr(ATEN, f"reflection_pad{dims}d").default: reflection_pad for dims in (1, 2, 3)},
    **{getattr(ATEN, f"replication_pad{dims}d").default: replication_pad for dims in (1, 2, 3)},
    ATEN.binary_cross_entropy.default: binary_cross_entropy,
    ATEN.max.default: lambda x: torch.amax(x, list(range(x.dim()))),
    ATEN.min.default: lambda x: torch.amin(x, list(range(x.dim()))),
    **{overload: any_of for overload in (ATEN.any.default, ATEN.any.dim, ATEN.any.dims)},
    **{overload: all_of for overload in (ATEN.all.default, ATEN.all.dim, ATEN.all.dims)},
    ATEN.prod.dim_int: product,
    ATEN.prod.default: whole_product,
    ATEN.clamp.Tensor: clamp,
    ATEN.addmv.default: lambda x, matrix, vector, *, beta=1, alpha=1: beta * x + alpha * (matrix @ vector),
    ATEN.addbmm.default: lambda x, a, b, *, beta=1, alpha=1: beta * x + alpha * (a @ b).sum(0),
    ATEN.fmax.default: lambda x, y: torch.where((x >= y) | (y != y), x, y),
    ATEN.fmin.default: lambda x, y: torch.where((x <= y) | (y != y), x, y),
    ATEN.convolution.default: convolution,
    ATEN.as_strided.default: as_strided,
    ATEN.as_strided_scatter.default: as_strided_scatter,
    ATEN.scatter_reduce.two: scatter_reduce,
    ATEN.grid_sampler_2d.default: decomposition_table[ATEN.grid_sampler_2d.default],
}
