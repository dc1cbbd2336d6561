"""Code of transformers that takes another way while it is captured.

**Experts.** Its own ways sort tokens by their experts, or look up which experts have any, and so shapes depend on data. Here each expert
computes all tokens, and the share of those that did not choose it is 0: these are products, of which a plan cuts experts or tokens.

**Masks.** Where a batch has no mask, attention is without one in training. While transformers is traced it would make one that hides
nothing, for which some models have no place, and which takes memory. Others make the mask that they need, but not while they believe
themselves to be compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

REPLACED = ("eager", "grouped_mm")
"""Transformers' names of ways to compute experts that cannot be captured."""


@contextmanager
def transformers_as_captured() -> Iterator[None]:
    """Lets transformers, where it is imported, compute in such ways while this is entered."""
    with _experts_as_products(), _no_masks_where_none_is_given(), _not_compiled():
        yield


@contextmanager
def _experts_as_products() -> Iterator[None]:
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


@contextmanager
def _no_masks_where_none_is_given() -> Iterator[None]:
    package: Any = sys.modules.get("transformers.masking_utils")
    own = getattr(package, "is_tracing", None)
    if own is None:
        yield
        return
    package.is_tracing = lambda mask=None: mask is not None and own(mask)
    try:
        yield
    finally:
        package.is_tracing = own


@contextmanager
def _not_compiled() -> Iterator[None]:
    name = "is_torchdynamo_compiling"
    modules: list[Any] = [module for path, module in list(sys.modules.items()) if path.startswith("transformers.models.")]
    found = [(module, vars(module)[name]) for module in modules if name in vars(module)]
    for module, _ in found:
        setattr(module, name, lambda: False)
    try:
        yield
    finally:
        for module, own in found:
            setattr(module, name, own)


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
