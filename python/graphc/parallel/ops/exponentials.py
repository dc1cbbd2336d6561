"""Exponentials and logarithms near 1, and functions that are made of them: right to float32, and with gradients that do not overflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .polynomials import polynomial

ATEN: Any = torch.ops.aten

NEAR = 0.1
"""Up to here power series are taken: their terms left out are less than 1e-8 of them, and what is taken beyond is right to 1e-6."""


def log1p(x: Tensor) -> Tensor:
    """The logarithm of 1 + x; near 0, where that sum would round x away, by the first terms of its series."""
    return _near_zero(x, torch.log(1.0 + x), [(-1.0) ** power / (power + 1) for power in range(8)])


def expm1(x: Tensor) -> Tensor:
    """The exponential of x, less 1; near 0 by the first terms of its series."""
    return _near_zero(x, torch.exp(x) - 1.0, [1.0 / math.factorial(power + 1) for power in range(7)])


def _near_zero(x: Tensor, far: Tensor, factors: Sequence[float]) -> Tensor:
    """A power series in x without a constant, where x is so near to 0 that these factors are enough for float32; else ``far``."""
    near = torch.clamp(x, -NEAR, NEAR)
    return torch.where(x.abs() < NEAR, polynomial(near, factors[::-1]) * near, far)


def elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    """The same above 0, and an exponential below."""
    below = expm1(torch.clamp(x, max=0.0) * input_scale)
    return torch.where(x > 0, x * scale, below * (alpha * scale))


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """The same above 0, and an exponential below whose slope at 0 is 1."""
    return elu(x, alpha, 1.0, 1.0 / alpha)


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """The rectified unit without its kink, and itself from a threshold on, where the exponential would overflow."""
    scaled = x * beta
    is_far = scaled > threshold
    return torch.where(is_far, x, log1p(torch.exp(torch.where(is_far, 0.0, scaled))) * (1.0 / beta))


def mish(x: Tensor) -> Tensor:
    """The hyperbolic tangent of softplus, which weighs its own argument."""
    return x * torch.tanh(softplus(x))


def sinh(x: Tensor) -> Tensor:
    """The hyperbolic sine."""
    return 0.5 * (expm1(x) - expm1(-x))


def cosh(x: Tensor) -> Tensor:
    """The hyperbolic cosine."""
    return 0.5 * (torch.exp(x) + torch.exp(-x))


def atanh(x: Tensor) -> Tensor:
    """The inverse of the hyperbolic tangent."""
    return 0.5 * (log1p(x) - log1p(-x))


def weighed_logarithm(x: Tensor, y: Tensor) -> Tensor:
    """A factor times a logarithm, which is 0 where the factor is and there is no logarithm."""
    is_nothing = (x == 0.0) & (y <= 0.0)
    return x * torch.log(torch.where(is_nothing, 1.0, y))


def weighed_log1p(x: Tensor, y: Tensor) -> Tensor:
    """The same with the logarithm of 1 + y."""
    is_nothing = (x == 0.0) & (y <= -1.0)
    return x * log1p(torch.where(is_nothing, 0.0, y))


TABLE: dict[Any, Callable[..., Any]] = {
    ATEN.log1p.default: log1p,
    ATEN.expm1.default: expm1,
    ATEN.elu.default: elu,
    ATEN.celu.default: celu,
    ATEN.xlogy.Tensor: weighed_logarithm,
    ATEN.special_xlog1py.default: weighed_log1p,
    ATEN.softplus.default: softplus,
    ATEN.mish.default: mish,
    ATEN.sinh.default: sinh,
    ATEN.cosh.default: cosh,
    ATEN.atanh.default: atanh,
}
