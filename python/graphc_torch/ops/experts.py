"""Tokens to experts and back, with a static capacity.

Which token has which place follows from the choices of its group alone, which every rank has whole: all first choices before all
second ones, and of one choice in order of the tokens. What has no place is dropped. Where experts share a block of places, the tokens
of each come behind those of the one before.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Call, Port, Run, op, wide
from .places import checked


@dataclass(frozen=True, slots=True)
class Routes:
    """Where the choices of this rank's tokens go, as far as it holds both ends."""

    group: Tensor
    token: Tensor
    choice: Tensor
    block: Tensor
    place: Tensor


def shares(experts: int, blocks: int) -> int:
    """How many experts share a block of places."""
    return experts // max(blocks, 1)


def _experts(call: Call, y: Port) -> int:
    """The number of experts whose places come back."""
    return int(call.op.get("experts") or y.shape[0])


def _routes(chosen: Tensor, shape: tuple[int, int], places: Port, experts: int) -> Routes:
    """The routes that end in a part of places and begin in ``shape``, number and first of its tokens."""
    groups, tokens, choices = chosen.shape
    blocks, _, capacity, _ = places.shape
    share = shares(experts, blocks)
    flat = chosen.transpose(1, 2).reshape(groups, choices * tokens)
    hot = torch.nn.functional.one_hot(flat, experts)
    counts = hot.sum(1).reshape(groups, blocks, share)
    first = (counts.cumsum(-1) - counts).reshape(groups, 1, experts)
    place = ((hot.cumsum(1) - 1 + first) * hot).sum(-1)
    count, start = shape
    token = torch.arange(tokens, device=chosen.device).repeat(choices)
    kept = (place < capacity) & (token >= start) & (token < start + count)
    block = flat // share
    kept &= _within(block, places, 0) & _within(place, places, 2)
    group, index = kept.nonzero(as_tuple=True)
    block, place = block[group, index] - places.origin[0], place[group, index] - places.origin[2]
    return Routes(group, token[index] - start, index // tokens, block, place)


def _within(values: Tensor, port: Port, dim: int) -> Tensor:
    first = port.origin[dim]
    return (values >= first) & (values < first + port.tensor.shape[dim])


def _weighted(call: Call, routes: Routes, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows times the weights of their choices, and which of them this rank has weights for."""
    if len(call.operands) < 3:
        return rows, torch.ones_like(routes.token, dtype=torch.bool)
    port = call.operands[2]
    local = routes.choice - port.origin[2]
    here = (local >= 0) & (local < port.tensor.shape[2])
    if port.tensor.shape[2] == 0:
        return rows, here
    weights = wide(port.tensor)[routes.group, routes.token, torch.where(here, local, 0)]
    return rows * weights.unsqueeze(-1), here


@op("dispatch")
def dispatch(call: Call) -> Run:
    """(x [g, t, d], chosen [g, t, k] [, weights]) -> [blocks, g, capacity, d]: tokens at the places that they have."""
    x, chosen, y = call.operands[0], call.operand(1), call.results[0]
    experts = call.op["experts"]
    check = checked("expert", chosen, experts)

    def run() -> None:
        check()
        tokens = (x.tensor.shape[1], x.origin[1])
        routes = _routes(chosen, tokens, y, experts)
        rows, here = _weighted(call, routes, wide(x.tensor)[routes.group, routes.token])
        rows = torch.where(here.unsqueeze(-1), rows, 0.0).to(y.tensor.dtype)
        y.tensor.zero_().index_put_((routes.block, routes.group, routes.place), rows, accumulate=True)

    return run


@op("combine")
def combine(call: Call) -> Run:
    """(y [blocks, g, capacity, d], chosen [g, t, k] [, weights]) -> [g, t, d]: the sum over the places of each token."""
    y, chosen, x = call.operands[0], call.operand(1), call.results[0]
    experts = _experts(call, y)
    check = checked("expert", chosen, experts)

    def run() -> None:
        check()
        tokens = (x.tensor.shape[1], x.origin[1])
        routes = _routes(chosen, tokens, y, experts)
        rows, here = _weighted(call, routes, wide(y.tensor)[routes.block, routes.group, routes.place])
        sums = torch.zeros(x.tensor.shape, dtype=rows.dtype, device=rows.device)
        rows = torch.where(here.unsqueeze(-1), rows, 0.0)
        x.tensor.copy_(sums.index_put_((routes.group, routes.token), rows, accumulate=True))

    return run


@op("combine_weights_grad")
def combine_weights_grad(call: Call) -> Run:
    """(y [blocks, g, capacity, d], chosen [g, t, k], x [g, t, d]) -> [g, t, k]: products of tokens with their places."""
    y, chosen, x, result = call.operands[0], call.operand(1), call.operand(2), call.results[0]
    experts = _experts(call, y)
    check = checked("expert", chosen, experts)

    def run() -> None:
        check()
        tokens = (result.tensor.shape[1], result.origin[1])
        routes = _routes(chosen, tokens, y, experts)
        local = routes.choice - result.origin[2]
        here = (local >= 0) & (local < result.tensor.shape[2])
        rows = wide(y.tensor)[routes.block, routes.group, routes.place]
        products = (rows * wide(x)[routes.group, routes.token]).sum(-1).to(result.tensor.dtype)
        result.tensor.zero_()
        result.tensor[routes.group[here], routes.token[here], local[here]] = products[here]

    return run
