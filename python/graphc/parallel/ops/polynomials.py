"""Polynomials, of which ops are made that graphc has not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def polynomial(x: Tensor, factors: Sequence[float]) -> Tensor:
    """The sum of powers of x with these factors, the highest power first."""
    found = torch.full_like(x, factors[0])
    for factor in factors[1:]:
        found = found * x + factor
    return found
