"""Mixtures of experts of transformers, computed in a way that can be captured.

Its own ways sort tokens by their experts, or look up which experts have any, and so shapes depend on data. Here each expert computes all
tokens, and the share of those that did not choose it is 0: these are products, of which a plan cuts experts or tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

REPLACED = ("eager", "grouped_mm")
"""Transformers' names of what cannot be captured."""


@contextmanager
def experts_as_products() -> Iterator[None]:
    """Lets the experts of transformers, where it is imported, compute by products while this is entered."""
    package = sys.modules.get("transformers.integrations.moe")
    functions: Any = getattr(package, "ALL_EXPERTS_FUNCTIONS", None)
    own: dict[str, Any] | None = getattr(functions, "_local_mapping", None)
    if own is None:
        yield
        return
    before = dict(own)
    own.update({name: by_products for name in REPLACED})
    try:
        yield
    finally:
        own.clear()
        own.update(before)


def by_products(experts: Any, tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """What the experts make of tokens ``[t, d]``, each of the ones that a token chose with its weight, ``[t, k]``."""
    shares = torch.zeros(tokens.shape[0], experts.num_experts, dtype=weights.dtype, device=weights.device).scatter_add(1, chosen, weights)
    name = "gate_up_proj" if experts.has_gate else "up_proj"
    inner = _projected(experts, name, tokens.unsqueeze(0))
    inner = experts._apply_gate(inner) if experts.has_gate else experts.act_fn(inner)
    outer = _projected(experts, "down_proj", inner)
    return (outer * shares.t().unsqueeze(-1)).sum(0).to(tokens.dtype)


def _projected(experts: Any, name: str, x: Tensor) -> Tensor:
    """A layer of each expert, ``[experts, t, ..]``."""
    weight = getattr(experts, name)
    found = torch.matmul(x, weight if experts.is_transposed else weight.transpose(-2, -1))
    return found + getattr(experts, f"{name}_bias").unsqueeze(1) if experts.has_bias else found
