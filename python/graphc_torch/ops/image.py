"""Ops of images ``[n, channels, h, w]``, or ``[n, h, w, channels]``: convolutions, pooling, resizing.

Images with channels last are handed to PyTorch as what they are, its memory format ``channels_last``. A border that PyTorch's own
padding lacks (another one before than behind) is added first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from ..plan import Op, scalar
from .base import Call, Port, Run, dim_of, into, op

_ATEN: Any = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Window:
    """How a window goes over an image, and the border that is added before."""

    strides: list[int]
    dilations: list[int]
    padding: list[int]
    """What PyTorch pads itself, before and behind: 0 where ``border`` does."""
    border: list[int]
    """``[left, right, top, bottom]``, as torch.nn.functional.pad has it; zeros where nothing is added."""

    @classmethod
    def of(cls, op: Op, limit: list[int] | None = None) -> Window:
        """That of an op; PyTorch pads where both sides are alike and no more than ``limit``."""
        window = op["window"]
        top, left, bottom, right = window["pads"]
        alike = (top, left) == (bottom, right)
        if alike and (limit is None or (top <= limit[0] and left <= limit[1])):
            padding, border = [top, left], [0, 0, 0, 0]
        else:
            padding, border = [0, 0], [left, right, top, bottom]
        return cls(list(window["strides"]), list(window["dilations"]), padding, border)

    def padded(self, x: Tensor, value: float = 0.0) -> Tensor:
        """The image with the border that PyTorch does not add itself."""
        return functional.pad(x, self.border, value=value) if any(self.border) else x

    def cropped(self, x: Tensor) -> Tensor:
        """The inverse of it."""
        left, right, top, bottom = self.border
        return x[:, :, top : x.shape[2] - bottom, left : x.shape[3] - right] if any(self.border) else x

    def extents(self, image: tuple[int, ...]) -> list[int]:
        """The shape of an image with its border."""
        left, right, top, bottom = self.border
        n, c, h, w = image
        return [n, c, h + top + bottom, w + left + right]


def first(tensor: Tensor, last: bool) -> Tensor:
    """An image as ``[n, c, h, w]``, wherever its channels lie."""
    return tensor.permute(0, 3, 1, 2) if last else tensor


def convolved(call: Call) -> Callable[[], Tensor]:
    """What computes a convolution, in the order of the image's dims."""
    of, last = call.op, call.op.get("channels_last", False)
    window, groups = Window.of(of), int(of["groups"])
    x, k = first(call.operand(0), last), call.operand(1)
    if groups > 1:
        x = _own_channels(x, call.operands[1], groups)
        groups = x.shape[1] // k.shape[1]
    settings = (None, window.strides, window.padding, window.dilations, groups)

    def run() -> Tensor:
        y = functional.conv2d(window.padded(x), k, *settings)
        return y.permute(0, 2, 3, 1) if last else y

    return run


def _own_channels(x: Tensor, kernels: Port, groups: int) -> Tensor:
    """The channels of each group that a rank's kernels meet, where those are split."""
    held, origin = kernels.tensor.shape[1], kernels.origin[1]
    if held == kernels.shape[1]:
        return x
    local = x.shape[1] // kernels.shape[1]
    parts = x.unflatten(1, (local, kernels.shape[1]))[:, :, origin : origin + held]
    own: Tensor = parts.flatten(1, 2)
    return own


@op("convolution")
def convolution(call: Call) -> Run:
    """(x, k [o, c / groups, kh, kw]) -> the correlation of images with kernels."""
    return into(call.result(), convolved(call))


@op("convolution_input_grad")
def convolution_input_grad(call: Call) -> Run:
    """(k, dy) -> dx."""
    last = call.op.get("channels_last", False)
    k, dy, dx = call.operand(0), first(call.operand(1), last), first(call.result(), last)
    window = Window.of(call.op)
    extents, groups = window.extents(tuple(dx.shape)), max(dx.shape[1] // max(k.shape[1], 1), 1)
    shape = dy.new_empty(1).expand(extents)

    def run() -> None:
        found = _backward(dy, shape, k, window, groups, [True, False, False])[0]
        dx.copy_(window.cropped(found))

    return run


@op("convolution_kernel_grad")
def convolution_kernel_grad(call: Call) -> Run:
    """(x, dy) -> dk."""
    last = call.op.get("channels_last", False)
    x, dy, dk = first(call.operand(0), last), first(call.operand(1), last), call.result()
    window = Window.of(call.op)
    groups, shape = max(x.shape[1] // max(dk.shape[1], 1), 1), dy.new_empty(1).expand(dk.shape)
    if list(dk.shape[2:]) == [1, 1] and window.padding == [0, 0] and not any(window.border):
        # On processors without AVX-512 oneDNN writes behind its own memory where such a kernel leaves pixels of fewer than 8 channels
        # out. Here those that it meets are picked first.
        down, right = window.strides
        x, window = x[:, :, ::down, ::right], replace(window, strides=[1, 1])
    pixels = dy.shape[0] * dy.shape[2] * dy.shape[3]
    if groups == 1 and dy.device.type == "cpu" and dy.dtype is torch.float32 and 0 < pixels <= dk.shape[0]:
        return _few_pixels(x, dy, dk, window)

    def run() -> None:
        dk.copy_(_backward(dy, window.padded(x), shape, window, groups, [False, True, False])[1])

    return run


def _few_pixels(x: Tensor, dy: Tensor, dk: Tensor, window: Window) -> Run:
    """The gradient of kernels as one product, where what it takes of an image is no larger than they are.

    What oneDNN spends then goes into its own order of such kernels.
    """
    channels, rows = dk.shape[0], dk.view(dk.shape[0], -1)
    settings: list[Any] = [list(dk.shape[2:]), window.dilations, window.padding, window.strides]

    def run() -> None:
        taken = functional.unfold(window.padded(x), *settings).transpose(1, 2)
        torch.mm(dy.transpose(0, 1).reshape(channels, -1), taken.reshape(-1, rows.shape[1]), out=rows)

    return run


def _backward(dy: Tensor, x: Tensor, k: Tensor, window: Window, groups: int, which: list[bool]) -> Any:
    settings = (window.strides, window.padding, window.dilations, False, [0, 0], groups, which)
    return _ATEN.convolution_backward(dy, x, k, None, *settings)


def _pool_window(call: Call) -> tuple[list[int], Window]:
    kernel = list(call.op["kernel"])
    return kernel, Window.of(call.op, [extent // 2 for extent in kernel])


@op("max_pool")
def max_pool(call: Call) -> Run:
    """The greatest of each window, borders left out."""
    last = call.op.get("channels_last", False)
    kernel, window = _pool_window(call)
    x, y = first(call.operand(0), last), first(call.result(), last)
    settings = (kernel, window.strides, window.padding, window.dilations)
    return into(y, lambda: functional.max_pool2d(window.padded(x, -math.inf), *settings))


@op("max_pool_grad")
def max_pool_grad(call: Call) -> Run:
    """(x, dy) -> dx: each gradient at the first element that is the greatest of its window."""
    last = call.op.get("channels_last", False)
    kernel, window = _pool_window(call)
    x, dy, dx = first(call.operand(0), last), first(call.operand(1), last), first(call.result(), last)
    settings = (kernel, window.strides, window.padding, window.dilations, False)

    def run() -> None:
        padded = window.padded(x, -math.inf)
        places = _ATEN.max_pool2d_with_indices(padded, *settings)[1]
        found = _ATEN.max_pool2d_with_indices_backward(dy, padded, *settings, places)
        dx.copy_(window.cropped(found))

    return run


@dataclass(frozen=True, slots=True)
class Means:
    """The windows of an average pool as two matrices, one for each dim, and what sums are divided by."""

    rows: Tensor
    """[h', h]: 1 where a window reads."""
    columns: Tensor
    """[w', w]"""
    divisors: Tensor
    """[h', w']"""

    @classmethod
    def of(cls, call: Call, extents: tuple[int, int], device: torch.device) -> Means:
        """Those of an op on images of this height and width."""
        window, counts = call.op["window"], []
        matrices = []
        for dim in range(2):
            matrix, within = _reads(call.op["kernel"][dim], window, dim, extents[dim])
            matrices.append(matrix.to(device))
            counts.append(within if call.op["count_border"] else matrix.sum(1))
        divisors = (counts[0].unsqueeze(1) * counts[1].unsqueeze(0)).to(device)
        return cls(matrices[0], matrices[1], divisors)


def _reads(kernel: int, window: dict[str, Any], dim: int, extent: int) -> tuple[Tensor, Tensor]:
    """Which elements each place reads, [places, extent], and how many of its window lie in image or border."""
    before, behind = window["pads"][dim], window["pads"][dim + 2]
    stride, dilation = window["strides"][dim], window["dilations"][dim]
    places = (extent + before + behind - dilation * (kernel - 1) - 1) // stride + 1
    at = torch.arange(places).unsqueeze(1) * stride + torch.arange(kernel).unsqueeze(0) * dilation
    within = (at < extent + before + behind).sum(1).float()
    rows = at - before
    inside = (rows >= 0) & (rows < extent)
    matrix = torch.zeros(places, extent).scatter_add_(1, torch.where(inside, rows, 0), inside.float())
    return matrix, within


@op("average_pool")
def average_pool(call: Call) -> Run:
    """The mean of each window."""
    last = call.op.get("channels_last", False)
    x, y = first(call.operand(0), last), first(call.result(), last)
    means = Means.of(call, (x.shape[2], x.shape[3]), x.device)
    return into(y, lambda: means.rows @ x.float() @ means.columns.T / means.divisors)


@op("average_pool_grad")
def average_pool_grad(call: Call) -> Run:
    """Dy -> dx."""
    last = call.op.get("channels_last", False)
    dy, dx = first(call.operand(0), last), first(call.result(), last)
    means = Means.of(call, (dx.shape[2], dx.shape[3]), dy.device)
    return into(dx, lambda: means.rows.T @ (dy.float() / means.divisors) @ means.columns)


@op("resize")
def resize(call: Call) -> Run:
    """Another extent of a dim, by interpolation: a product with a matrix of weights."""
    axis = dim_of(call.operands[0], call.op["axis"])
    x, y = call.operand(0), call.result()
    weights = taps(call.op["sampling"], x.shape[axis], call.op["extent"]).to(x.device)
    return into(y, lambda: (x.movedim(axis, -1).float() @ weights.T).movedim(-1, axis))


@op("resize_grad")
def resize_grad(call: Call) -> Run:
    """Its gradient: a product with the matrix transposed."""
    axis = dim_of(call.operands[0], call.op["axis"])
    dy, dx = call.operand(0), call.result()
    weights = taps(call.op["sampling"], call.op["extent"], dy.shape[axis]).to(dy.device)
    return into(dx, lambda: (dy.movedim(axis, -1).float() @ weights).movedim(-1, axis))


def taps(sampling: dict[str, Any], start: int, to: int) -> Tensor:
    """The weights [to, start] of elements in each element of a result, computed in f64."""
    matrix = torch.zeros(to, start, dtype=torch.float64)
    for index in range(to):
        for element, weight in _weights(sampling, _place(sampling, index, start, to), start):
            clamped = min(max(element, 0), start - 1)
            if weight != 0.0 and not (sampling["inside"] and clamped != element):
                matrix[index, clamped] += weight
    sums = matrix.sum(1, keepdim=True)
    return (matrix / torch.where(sums == 0.0, 1.0, sums)).float()


def _place(sampling: dict[str, Any], index: int, start: int, to: int) -> float:
    """The place in the operand for an index of the result, in f32 and in the order of graphc's operations."""
    coordinates = sampling["coordinates"]
    if coordinates in ("half_pixel_or_first", "align_corners") and to == 1:
        return 0.0
    numbers = [float(index), float(start), float(to), scalar(sampling["scale"])]
    at, extent, result, scale = torch.tensor(numbers, dtype=torch.float32)
    if coordinates == "asymmetric":
        return float(at * (1.0 / scale))
    if coordinates == "align_corners":
        return float(at * (extent - 1.0) / (result - 1.0))
    center = (at + 0.5) / scale
    if coordinates == "half_pixel_symmetric":
        return float(extent / 2.0 * (1.0 - result / (scale * extent)) + center - 0.5)
    return float(center - 0.5)


def _weights(sampling: dict[str, Any], place: float, start: int) -> list[tuple[int, float]]:
    """Elements about a place, which need not exist, with weights that need not add up to 1."""
    name = sampling["filter"]
    nearest = {
        "floor": math.floor(place),
        "ceil": math.ceil(place),
        "nearest_before": math.ceil(place - 0.5),
        "nearest_behind": math.floor(place + 0.5),
    }
    if isinstance(name, str) and name in nearest:
        return [(nearest[name], 1.0)]
    cubic = scalar(name["cubic"]) if isinstance(name, dict) else None
    narrow = min(scalar(sampling["scale"]), 1.0) if sampling["smooth"] else 1.0
    reach = math.ceil((1.0 if cubic is None else 2.0) / narrow)
    begin = max(math.floor(place) - reach + 1, -2 * start)
    end = min(math.floor(place) + reach, 3 * start)
    return [(at, _weight(cubic, (at - place) * narrow)) for at in range(begin, end + 1)]


def _weight(cubic: float | None, distance: float) -> float:
    x = abs(distance)
    if cubic is None:
        return max(1.0 - x, 0.0)
    if x <= 1.0:
        return ((cubic + 2.0) * x - (cubic + 3.0)) * x * x + 1.0
    return ((cubic * x - 5.0 * cubic) * x + 8.0 * cubic) * x - 4.0 * cubic if x < 2.0 else 0.0
