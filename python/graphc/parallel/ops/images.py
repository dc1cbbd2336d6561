"""Convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..text import Value
from .call import Call, Result, Unsupported, pair


def convolution(call: Call) -> Value:
    """Correlation of images, or of sequences as images of one row, or what turns one back; plus a bias for each channel."""
    writer, x, kernels, bias = call.writer, call.tensor("input"), call.tensor("weight"), call.optional("bias")
    if x.rank not in (3, 4):
        raise Unsupported("graphc has it in one and two dims")
    dims = call.tensor("weight").rank - 2
    # One number stands for all dims, as of `padding="valid"`.
    strides, pads, dilations = (list(call[name]) * (dims if len(call[name]) == 1 else 1) for name in ("stride", "padding", "dilation"))
    if x.rank == 3:
        x, kernels = (writer.reshape(part, (*part.shape[:2], 1, part.shape[2])) for part in (x, kernels))
        strides, pads, dilations = [1, *strides], [0, *pads], [1, *dilations]
    shape = (*call.shape[:2], *([1] if len(call.shape) == 3 else []), *call.shape[2:])
    window = _window(strides, [*pads, *pads], dilations)
    attributes: dict[str, Any] = {"window": window, "groups": int(call["groups"])}
    if call["transposed"]:
        found = writer.node("convolution_input_grad", [kernels, x], x.dtype, shape, extents=list(shape[2:]), **attributes)
    else:
        found = writer.node("convolution", [x, kernels], x.dtype, shape, **attributes)
    if bias is not None:
        found = writer.binary("add", found, writer.reshape(bias, (bias.shape[0], 1, 1)))
    return writer.reshape(found, call.shape)


def max_pool(call: Call) -> Result:
    """The greatest of each window, whose indices nothing may use."""
    x, kernel, window = _pooled(call)
    found = call.writer.node("max_pool", [x], x.dtype, _batched(call.shape), kernel=kernel, window=window)
    return (call.writer.reshape(found, call.shape), None)


def average_pool(call: Call) -> Value:
    """The mean of each window, or its sum by another divisor."""
    x, kernel, window = _pooled(call)
    divisor = call["divisor_override"]
    border = bool(call["count_include_pad"]) or divisor is not None
    found = call.writer.node("average_pool", [x], x.dtype, _batched(call.shape), kernel=kernel, window=window, count_border=border)
    found = call.writer.reshape(found, call.shape)
    if divisor is not None:
        return call.writer.scale(found, math.prod(kernel) / float(divisor))
    if border and window["pads"][2:] != window["pads"][:2]:
        factors = call.writer.content(_of_cut_windows(call, x, kernel, window))
        return call.writer.binary("mul", found, call.writer.cast(factors, x.dtype))
    return found


def _of_cut_windows(call: Call, x: Value, kernel: Sequence[int], window: dict[str, Any]) -> Tensor:
    """By how much more than all places of a window those count that are not behind the border, in which it is cut off."""
    factors: list[Tensor] = []
    for dim in (0, 1):
        first = torch.arange(call.shape[dim - 2]) * window["strides"][dim] - window["pads"][dim]
        last = torch.clamp(first + kernel[dim], max=x.shape[2 + dim] + window["pads"][dim])
        factors.append(kernel[dim] / (last - first).float())
    return torch.outer(*factors)


def adaptive_average_pool(call: Call) -> Value:
    """Means of as many windows as are asked for."""
    x = call.tensor("self")
    inside, outside = x.shape[-2:], call.shape[-2:]
    if any(extent % count for extent, count in zip(inside, outside, strict=True)):
        # Windows that differ, or overlap, are products with what each takes of whom.
        return _mixed(call, x, [_shares(extent, count) for extent, count in zip(inside, outside, strict=True)])
    kernel = [extent // count for extent, count in zip(inside, outside, strict=True)]
    window = _window(kernel, [0] * 4, [1, 1])
    x = call.writer.reshape(x, _batched(x.shape))
    found = call.writer.node("average_pool", [x], x.dtype, _batched(call.shape), kernel=kernel, window=window, count_border=True)
    return call.writer.reshape(found, call.shape)


def smoothed(resize: Any, call: Call) -> Value:
    """Images of another size, of which each element is a mean of more than its neighbours where they get smaller."""
    x, shares = call.tensor("self"), list[Tensor]()
    call.arguments.get("output_size")
    scales = _scales(call, x)
    for extent, count, scale in zip(x.shape[-2:], call.shape[-2:], scales, strict=True):
        whole = resize(torch.eye(extent)[None, None], [count, extent], bool(call["align_corners"]), scale, None)
        shares.append(whole[0, 0].contiguous())
    return _mixed(call, x, shares)


def _mixed(call: Call, x: Value, shares: Sequence[Tensor]) -> Value:
    """Products of images with what each row of a result takes of whom, and each column."""
    writer = call.writer
    rows, columns = (writer.cast(writer.content(part), x.dtype) for part in shares)
    across = writer.matmul(x, columns, transpose_b=True)
    return writer.matmul(writer.expand(rows, (*x.shape[:-2], *rows.shape)), across)


def _shares(extent: int, count: int) -> Tensor:
    """Of each of so many means, which share of it each element is."""
    return functional.adaptive_avg_pool1d(torch.eye(extent)[None], count)[0].t().contiguous()


def interpolation(sampling: str, call: Call) -> Value:
    """Images of another size, resized along one dim after the other."""
    x = call.tensor("input" if "input" in call.arguments else "self")
    corners = bool(call.arguments.get("align_corners"))
    for place, (outside, scale) in enumerate(zip(call.shape[2:], _scales(call, x), strict=True)):
        axis = 2 + place
        coordinates = "asymmetric" if sampling == "floor" else "align_corners" if corners else "half_pixel"
        how = {"filter": sampling, "coordinates": coordinates, "scale": scale, "smooth": False, "inside": False}
        shape = (*x.shape[:axis], outside, *x.shape[axis + 1 :])
        x = call.writer.node("resize", [x], x.dtype, shape, axis=axis, extent=outside, sampling=how)
    return x


def _scales(call: Call, x: Value) -> list[float]:
    """Elements of the result for each of the operand, in each dim."""
    names = ("scales_h", "scales_w") if x.rank == 4 else ("scales",)
    given = call.arguments.get("scale_factors") or [call.arguments.get(name) for name in names]
    extents = zip(call.shape[2:], x.shape[2:], given, strict=True)
    return [outside / inside if scale is None else float(scale) for outside, inside, scale in extents]


def _pooled(call: Call) -> tuple[Value, list[int], dict[str, Any]]:
    x = call.tensor("self")
    x = call.writer.reshape(x, _batched(x.shape))
    kernel = pair(call["kernel_size"])
    strides, pads = pair(call["stride"] or kernel), pair(call["padding"])
    dilations = pair(call.arguments.get("dilation", 1))
    ends = [_behind(x.shape[2 + dim], call.shape[dim - 2], (kernel[dim], strides[dim], pads[dim], dilations[dim])) for dim in (0, 1)]
    return x, kernel, _window(strides, [*pads, *ends], dilations)


def _batched(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of images of a batch: of one where there is none."""
    return (1,) * (4 - len(shape)) + shape


def _behind(inside: int, outside: int, way: tuple[int, int, int, int]) -> int:
    """The border behind a dim, which is wider where a window that is cut off counts too."""
    kernel, stride, pad, dilation = way
    reached = (outside - 1) * stride + (kernel - 1) * dilation + 1
    return max(pad, reached - inside - pad)


def _window(strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]) -> dict[str, Any]:
    return {"strides": list(strides), "pads": list(pads), "dilations": list(dilations)}


TABLE: dict[str, Callable[[Call], Result]] = {
    "convolution": convolution,
    "max_pool2d_with_indices": max_pool,
    "avg_pool2d": average_pool,
    "_adaptive_avg_pool2d": adaptive_average_pool,
    "upsample_bilinear2d": partial(interpolation, "linear"),
    **{name: partial(smoothed, getattr(torch.ops.aten, name)) for name in ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")},
    "upsample_linear1d": partial(interpolation, "linear"),
    **{name: partial(interpolation, "floor") for name in ("upsample_nearest1d", "upsample_nearest2d")},
}
