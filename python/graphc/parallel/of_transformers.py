"""Code of transformers that takes another way while it is captured.

**Experts.** Its own ways sort tokens by their experts, or look up which experts have any, and so shapes depend on data. Here they go to
places of which there are as many as choices, and each expert computes the tokens that chose it (:mod:`.experts`).

**Masks.** Where a batch has no mask, attention is without one in training. While transformers is traced it would make one that hides
nothing, for which some models have no place, and which takes memory. What a mask holds that a model makes itself (of positions, say) is
known, and so it is looked at as ever. Others make the mask that they need, but not while they believe
themselves to be compiled.

**Checks.** Whether as many places wait for images as there are images, for example, is no part of a graph: such checks are passed over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .experts import combine, dispatch, grouped_matmul
from .known import content

REPLACED = ("batched_mm", "eager", "grouped_mm")
"""Transformers' names of ways to compute experts: their shapes depend on data, or each row has matrices of its own."""


@contextmanager
def transformers_as_captured(batch: Any) -> Iterator[None]:
    """Lets transformers, where it is imported, compute in such ways while this is entered and a model takes a batch."""
    not_compiled = _functions_of_models("is_torchdynamo_compiling", lambda: False)
    unchecked = _functions_of_models("torch_compilable_check", lambda *_, **__: None)
    with _experts_in_groups(_samples(batch)), _no_masks_where_none_is_given(), not_compiled, unchecked:
        yield


def _samples(batch: Any) -> int:
    """How many samples a batch has: the rows of its first tensor."""
    leaves: list[Any] = tree_leaves(batch)
    return next((int(leaf.shape[0]) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > 0), 1)


@contextmanager
def _experts_in_groups(samples: int) -> Iterator[None]:
    package = sys.modules.get("transformers.integrations.moe")
    functions: Any = getattr(package, "ALL_EXPERTS_FUNCTIONS", None)
    own: dict[str, Any] | None = getattr(functions, "_local_mapping", None)
    if own is None:
        yield
        return
    before = dict(own)
    own.update({name: partial(by_experts, samples) for name in REPLACED})
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
    package.is_tracing = lambda mask=None: mask is not None and own(mask) and content(mask) is None
    try:
        yield
    finally:
        package.is_tracing = own


@contextmanager
def _functions_of_models(name: str, other: Callable[..., Any]) -> Iterator[None]:
    """Puts another function in the place of one that models have imported by its name."""
    modules: list[Any] = [module for path, module in list(sys.modules.items()) if path.startswith("transformers.models.")]
    found = [(module, vars(module)[name]) for module in modules if name in vars(module)]
    for module, _ in found:
        setattr(module, name, other)
    try:
        yield
    finally:
        for module, own in found:
            setattr(module, name, own)


def by_experts(samples: int, experts: Any, tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """What the experts make of tokens ``[t, d]``, each of the ones that a token chose with its weight, ``[t, k]``.

    Tokens are cut into as many equal groups as there are samples, where that is possible. A plan divides groups among ranks.
    """
    count, width = tokens.shape
    groups = samples if count % max(samples, 1) == 0 else 1
    chosen, weights = (of.reshape(groups, count // groups, of.shape[-1]) for of in (chosen, weights))
    x = tokens.reshape(groups, count // groups, width)
    if experts.has_bias:
        # A bias is the matrix's row for an element that is 1 at places of tokens, and 0 at others.
        x = torch.cat([x, torch.ones_like(x[..., :1])], -1)
    taken = dispatch(x, chosen, experts.num_experts)
    inner = grouped_matmul(taken, *_matrices(experts, "gate_up_proj" if experts.has_gate else "up_proj", chosen))
    inner = experts._apply_gate(inner) if experts.has_gate else experts.act_fn(inner)
    if experts.has_bias:
        inner = torch.cat([inner, taken[..., -1:]], -1)
    outer = grouped_matmul(inner, *_matrices(experts, "down_proj", chosen))
    found: Tensor = combine(outer, chosen, weights.to(outer.dtype), experts.num_experts)
    return found.reshape(count, found.shape[-1]).to(tokens.dtype)


def _matrices(experts: Any, name: str, chosen: Tensor) -> tuple[Tensor, Tensor, bool]:
    """The matrices of a layer of all experts with their biases, the choices, and whether the matrices are transposed."""
    weight: Tensor = getattr(experts, name)
    inner = 1 if experts.is_transposed else 2
    if experts.has_bias:
        weight = torch.cat([weight, getattr(experts, f"{name}_bias").unsqueeze(inner)], inner)
    return weight, chosen, not experts.is_transposed
