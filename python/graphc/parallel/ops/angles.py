"""Inverses of trigonometric and hyperbolic functions, and the error function's rest.

Polynomials are those of Cephes (Moshier, `asinf`, `atanf`) and of Numerical Recipes (6.2, `erfcc`): right to some 1e-7 of each value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .polynomials import polynomial

ATEN: Any = torch.ops.aten

ARCSINE = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
ARCTANGENT = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
REST = (
    0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223,
)  # fmt: skip

LARGE = 1e9
"""Beyond, the square of a number and 1 are the square alone."""


def asin(x: Tensor) -> Tensor:
    """The angle in radians whose sine this is."""
    half, is_far = _of_half(x)
    found = torch.where(is_far, 0.5 * math.pi - 2.0 * half, half)
    return torch.where(x < 0, -found, found)


def acos(x: Tensor) -> Tensor:
    """The angle in radians whose cosine this is."""
    half, is_far = _of_half(x)
    near = torch.where(x < 0, 0.5 * math.pi + half, 0.5 * math.pi - half)
    far = torch.where(x < 0, math.pi - 2.0 * half, 2.0 * half)
    return torch.where(is_far, far, near)


def _of_half(x: Tensor) -> tuple[Tensor, Tensor]:
    """The arc sine of a size up to 0.5, or of the root of half of what is missing to 1; and where it is that."""
    size = _size(x)
    is_far = size > 0.5
    square = torch.where(is_far, 0.5 * (1.0 - size), size * size)
    root = torch.where(is_far, torch.sqrt(torch.where(is_far, square, 1.0)), size)
    return polynomial(square, ARCSINE) * square * root + root, is_far


def atan(x: Tensor) -> Tensor:
    """The angle in radians whose tangent this is."""
    size = _size(x)
    is_far, is_near = size > math.tan(0.375 * math.pi), size < math.tan(0.125 * math.pi)
    turned = torch.where(is_far, -1.0 / torch.where(is_far, size, 1.0), (size - 1.0) / (torch.where(is_far, 1.0, size) + 1.0))
    own = torch.where(is_near, size, turned)
    base = torch.where(is_near, 0.0, torch.where(is_far, 0.5 * math.pi, 0.25 * math.pi))
    square = own * own
    found = base + (polynomial(square, ARCTANGENT) * square * own + own)
    return torch.where(x < 0, -found, found)


def atan2(y: Tensor, x: Tensor) -> Tensor:
    """The angle of a point."""
    is_steep = _size(y) > _size(x)
    above, below = torch.where(is_steep, x, y), torch.where(is_steep, y, x)
    angle = atan(above / torch.where(below == 0, 1.0, below))
    steep = torch.where(y < 0, -0.5 * math.pi, 0.5 * math.pi) - angle
    flat = angle + torch.where(x < 0, torch.where(y < 0, -math.pi, math.pi), 0.0)
    return torch.where(is_steep, steep, flat)


def asinh(x: Tensor) -> Tensor:
    """The inverse of the hyperbolic sine."""
    size = _size(x)
    is_large = size > LARGE
    own = torch.where(is_large, 1.0, size)
    square = own * own
    found = torch.log1p(own + square / (torch.sqrt(square + 1.0) + 1.0))
    found = torch.where(is_large, torch.log(torch.where(is_large, size, 1.0)) + math.log(2.0), found)
    return torch.where(x < 0, -found, found)


def acosh(x: Tensor) -> Tensor:
    """The inverse of the hyperbolic cosine."""
    is_large = x > LARGE
    above = torch.where(is_large, 2.0, x) - 1.0
    found = torch.log1p(above + torch.sqrt(above * (above + 2.0)))
    return torch.where(is_large, torch.log(torch.where(is_large, x, 1.0)) + math.log(2.0), found)


def erfc(x: Tensor) -> Tensor:
    """What the error function leaves to 1, also where it is nearly 1."""
    is_far = x > 0.5
    far = torch.where(is_far, x, 1.0)
    part = 1.0 / (1.0 + 0.5 * far)
    return torch.where(is_far, part * torch.exp(polynomial(part, REST) - far * far), 1.0 - torch.erf(x))


def _size(x: Tensor) -> Tensor:
    """The absolute value, with a gradient at 0."""
    return torch.where(x < 0, -x, x)


def angle(x: Tensor) -> Tensor:
    """The angle of complex numbers to the real ones above 0, and of real ones 0 or half a turn."""
    if not x.is_complex():
        return torch.where(x < 0, math.pi, torch.where(x == x, 0.0, x))
    parts = torch.view_as_real(x)
    return torch.atan2(parts[..., 1], parts[..., 0])


TABLE: dict[Any, Callable[..., Any]] = {
    ATEN.asin.default: asin,
    ATEN.acos.default: acos,
    ATEN.atan.default: atan,
    ATEN.atan2.default: atan2,
    ATEN.angle.default: angle,
    ATEN.asinh.default: asinh,
    ATEN.acosh.default: acosh,
    ATEN.erfc.default: erfc,
}
