"""Windows of volumes, taken apart into those of images: along width and height, and then along the depth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

ATEN: Any = torch.ops.aten


def max_pool(
    x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,), dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The greatest of each window; where it is takes the indices of images, which graphc has not."""
    kernel, padding, dilation = (_of_dims(given) for given in (kernel_size, padding, dilation))
    stride = _of_dims(stride or kernel)

    def pool(images: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        own = [_flat(given, first, last, neutral) for given, neutral in ((kernel, 1), (stride, 1), (padding, 0), (dilation, 1))]
        found: tuple[Tensor, Tensor] = ATEN.max_pool2d_with_indices(images, *own, ceil_mode)
        return found

    volumes = _batched(x)
    flat, places = pool(volumes.flatten(1, 2), 1, 3)
    columns = [part.unflatten(1, volumes.shape[1:3]).flatten(-2) for part in (flat, places)]
    deep, depths = pool(columns[0], 0, 1)
    depths = torch.div(depths, columns[0].shape[-1], rounding_mode="floor")
    whole = torch.gather(columns[1], -2, depths) + depths * (x.shape[-1] * x.shape[-2])
    shape = [*x.shape[:-3], deep.shape[-2], *flat.shape[-2:]]
    return deep.reshape(shape), whole.reshape(shape)


def average_pool(
    x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,), ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """The mean of each window, or its sum by another divisor."""
    kernel, padding = _of_dims(kernel_size), _of_dims(padding)
    stride = _of_dims(stride or kernel)
    divisors = (None, None) if divisor_override is None else (1, divisor_override)

    def pool(images: Tensor, first: int, last: int, divisor: int | None) -> Tensor:
        own = [_flat(given, first, last, neutral) for given, neutral in ((kernel, 1), (stride, 1), (padding, 0))]
        found: Tensor = ATEN.avg_pool2d(images, *own, ceil_mode, count_include_pad, divisor)
        return found

    volumes = _batched(x)
    flat = pool(volumes.flatten(1, 2), 1, 3, divisors[0])
    deep = pool(flat.unflatten(1, volumes.shape[1:3]).flatten(-2), 0, 1, divisors[1])
    return deep.reshape([*x.shape[:-3], deep.shape[-2], *flat.shape[-2:]])


def adaptive_average_pool(x: Tensor, output_size: Sequence[int]) -> Tensor:
    """Means of as many windows as are asked for."""
    depth, height, width = output_size
    volumes = _batched(x)
    flat = functional.adaptive_avg_pool2d(volumes.flatten(1, 2), (height, width))
    deep = functional.adaptive_avg_pool2d(flat.unflatten(1, volumes.shape[1:3]).flatten(-2), (depth, height * width))
    return deep.reshape([*x.shape[:-3], depth, height, width])


def adaptive_max_pool(x: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The greatest of as many windows of images as are asked for, and where it is."""
    values, columns = _greatest(x, -1, output_size[1])
    values, rows = _greatest(values, -2, output_size[0])
    return values, rows * x.shape[-1] + torch.gather(columns, -2, rows)


def _greatest(x: Tensor, dim: int, count: int) -> tuple[Tensor, Tensor]:
    extent = x.shape[dim]
    found = []
    for at in range(count):
        first, end = at * extent // count, -(-(at + 1) * extent // count)
        values, places = x.narrow(dim, first, end - first).max(dim, keepdim=True)
        found.append((values, places + first))
    return torch.cat([values for values, _ in found], dim), torch.cat([places for _, places in found], dim)


def transposed(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
    """The turned correlation of volumes, as the sum of those of images for each place in the depth of the kernels."""
    stride, padding, dilation, more, groups = how
    depth, total = weight.shape[2], None
    for at in range(depth):
        images = x.transpose(1, 2).flatten(0, 1)
        own = functional.conv_transpose2d(images, weight[:, :, at], None, stride[1:], padding[1:], more[1:], groups, dilation[1:])
        apart = own.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2).unsqueeze(3)
        spread = functional.pad(apart, (0, 0, 0, 0, 0, stride[0] - 1)).flatten(2, 3)
        # Behind the last image there is room for the others of the kernel, or less where strides are longer.
        behind = dilation[0] * (depth - 1 - at) + 1 - stride[0]
        placed = functional.pad(spread, (0, 0, 0, 0, dilation[0] * at - padding[0], behind + more[0] - padding[0]))
        total = placed if total is None else total + placed
    assert total is not None, "kernels have a depth"
    return total if bias is None else total + bias[:, None, None, None]


def _batched(x: Tensor) -> Tensor:
    """Volumes of a batch."""
    return x if x.dim() == 5 else x.unsqueeze(0)


def _of_dims(given: Sequence[int]) -> list[int]:
    """One number for each dim."""
    return list(given) if len(given) == 3 else 3 * list(given)


def _flat(given: Sequence[int], first: int, last: int, neutral: int) -> list[int]:
    """The numbers of two dims: those of a range, of which one that is missing is neutral."""
    own = list(given[first:last])
    return own if len(own) == 2 else [*own, neutral]


TABLE: dict[Any, Callable[..., Any]] = {
    ATEN.max_pool3d_with_indices.default: max_pool,
    ATEN.avg_pool3d.default: average_pool,
    ATEN._adaptive_avg_pool3d.default: adaptive_average_pool,
    ATEN.adaptive_max_pool2d.default: adaptive_max_pool,
}
