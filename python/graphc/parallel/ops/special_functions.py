"""The gamma function, the inverse of the error function, and other functions of statistics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .detach import detached
from .polynomials import polynomial

ATEN: Any = torch.ops.aten

STEPS_UP = 6
"""How far from 0 the gamma function's series is taken: its terms left out are less than 1e-8."""

FAR = 100.0
"""From here on it is taken where it is: products of steps would overflow."""

NEAR_MIDDLE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
"""Factors of the polynomial of Giles for numbers up to 0.9966, the highest power first."""

NEAR_ENDS = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip
"""Those for numbers beyond."""


def log_gamma(x: Tensor) -> Tensor:
    """The logarithm of the gamma function's size: by Stirling's series far from 0, to which its recursion and its reflection lead."""
    above = torch.where(x < 0.5, 1.0 - x, x)
    is_near = above < FAR
    below, far = torch.ones_like(above), torch.where(is_near, above, 1.0)
    for _ in range(STEPS_UP):
        below, far = below * far, far + 1.0
    far = torch.where(is_near, far, above)
    below = torch.where(is_near, below, 1.0)
    square = 1.0 / (far * far)
    series = (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0))) / far
    found = (far - 0.5) * torch.log(far) - far + 0.5 * math.log(2.0 * math.pi) + series - torch.log(below)
    reflected = math.log(math.pi) - torch.log(torch.sin(math.pi * torch.where(x < 0.5, x, 0.5)).abs()) - found
    return torch.where(x < 0.5, reflected, found)


def digamma(x: Tensor) -> Tensor:
    """The slope of the logarithm of the gamma function, by the same series, recursion and reflection."""
    above = torch.where(x < 0.5, 1.0 - x, x)
    steps, far = torch.zeros_like(above), above
    for _ in range(STEPS_UP):
        steps, far = steps + 1.0 / far, far + 1.0
    square = 1.0 / (far * far)
    series = square * (1.0 / 12.0 - square * (1.0 / 120.0 - square * (1.0 / 252.0)))
    found = torch.log(far) - 0.5 / far - series - steps
    angle = math.pi * torch.where(x < 0.5, x, 0.25)
    return torch.where(x < 0.5, found - math.pi * torch.cos(angle) / torch.sin(angle), found)


def inverse_error_function(x: Tensor) -> Tensor:
    """The number whose error function is x, by two polynomials (Giles, "Approximating the erfinv function", 2012, for float32)."""
    known = detached(x)
    depth = -torch.log((1.0 - known) * (1.0 + known))
    is_near = depth < 5.0
    near = polynomial(torch.where(is_near, depth, 0.0) - 2.5, NEAR_MIDDLE)
    far = polynomial(torch.sqrt(torch.where(is_near, 5.0, depth)) - 3.0, NEAR_ENDS)
    is_end = known.abs() == 1.0
    found = torch.where(is_end, known * math.inf, torch.where(is_near, near, far) * known)
    # Its slope is one over that of the error function.
    slope = 0.5 * math.sqrt(math.pi) * torch.exp(torch.where(is_end, 0.0, found).square())
    return found + (x - known) * detached(slope)


def has_sign(x: Tensor) -> Tensor:
    """Whether a number is below 0, or the 0 with a sign."""
    return torch.where(x == 0, 1.0 / x < 0, x < 0)


TABLE: dict[Any, Callable[..., Any]] = {
    ATEN.lgamma.default: log_gamma,
    ATEN.digamma.default: digamma,
    ATEN.erfinv.default: inverse_error_function,
    ATEN.signbit.default: has_sign,
}
