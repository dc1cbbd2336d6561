"""Recurrent cells over a whole sequence, a step after the other. Gates stand in the order of ONNX."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import PlanError
from .base import Call, Run, op, wide

GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
"""Cells, and how many gates they have."""


def _cell(call: Call) -> str:
    cell: str = call.op["cell"]
    if cell not in GATES:
        raise PlanError(f"`{cell}` is no recurrent cell that this version has")
    return cell


def _order(time: int, reverse: bool) -> list[int]:
    return list(range(time - 1, -1, -1) if reverse else range(time))


@op("recurrence")
def recurrence(call: Call) -> Run:
    """(x [n, t, g h], r [g h, h], b [g h], s0 [n, h] [, c0]) -> (y [n, t, h] [, c])."""
    cell, operands = _cell(call), [port.tensor for port in call.operands]
    results = [port.tensor for port in call.results]
    steps = _order(operands[0].shape[1], call.op["reverse"])

    def run() -> None:
        x, r, b, state, *kept = (wide(operand) for operand in operands)
        turned, memory = r.T, kept[0] if kept else state
        for at in steps:
            shares = torch.addmm(b, state, turned)
            state, memory = _step(cell, x[:, at], shares, state, memory)
            results[0][:, at] = state
            if len(results) > 1:
                results[1][:, at] = memory

    return run


def _step(cell: str, x: Tensor, p: Tensor, state: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """The state, and what is kept, after a step."""
    if cell == "lstm":
        i, o, f, g = (x + p).chunk(4, 1)
        kept = torch.sigmoid(f) * kept + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(kept), kept
    if cell == "gru":
        (xz, xr, xm), (pz, pr, pm) = x.chunk(3, 1), p.chunk(3, 1)
        z, r = torch.sigmoid(xz + pz), torch.sigmoid(xr + pr)
        return (1.0 - z) * torch.tanh(xm + r * pm) + z * state, kept
    return (torch.tanh(x + p) if cell == "tanh" else torch.relu(x + p)), kept


@op("recurrence_grad")
def recurrence_grad(call: Call) -> Run:
    """The gradients of x and of the first state, from those of all states."""
    cell, operands = _cell(call), [port.tensor for port in call.operands]
    results, reverse = [port.tensor for port in call.results], bool(call.op["reverse"])
    backward = {"lstm": _lstm, "gru": _gru}.get(cell, _plain)

    def run() -> None:
        backward([wide(operand) for operand in operands], results, reverse, cell)

    return run


def _lstm(operands: list[Tensor], results: list[Tensor], reverse: bool, _cell: str) -> None:
    r, gates, first, cells, dy, *dc = operands
    of_state, of_kept = torch.zeros_like(first), torch.zeros_like(first)
    time = gates.shape[1]
    for at in _order(time, not reverse):
        before = at + 1 if reverse else at - 1
        previous = cells[:, before] if 0 <= before < time else first
        i, o, f, g = gates[:, at].chunk(4, 1)
        i, o, f, g, out = torch.sigmoid(i), torch.sigmoid(o), torch.sigmoid(f), torch.tanh(g), torch.tanh(cells[:, at])
        of_state = of_state + dy[:, at]
        of_cell = of_kept + of_state * o * (1.0 - out * out)
        of_cell = of_cell + dc[0][:, at] if dc else of_cell
        parts = [of_cell * g * i * (1.0 - i), of_state * out * o * (1.0 - o)]
        parts += [of_cell * previous * f * (1.0 - f), of_cell * i * (1.0 - g * g)]
        found = torch.cat(parts, 1)
        results[0][:, at] = found
        of_kept, of_state = of_cell * f, found @ r
    results[1].copy_(of_state)
    results[2].copy_(of_kept)


def _gru(operands: list[Tensor], results: list[Tensor], reverse: bool, _cell: str) -> None:
    weight, x, p, states, dy = operands
    of_state = torch.zeros_like(states[:, 0])
    for at in _order(x.shape[1], not reverse):
        (xz, xr, xm), (pz, pr, pm) = x[:, at].chunk(3, 1), p[:, at].chunk(3, 1)
        z, r = torch.sigmoid(xz + pz), torch.sigmoid(xr + pr)
        new, before = torch.tanh(xm + r * pm), states[:, at]
        of_state = of_state + dy[:, at]
        of_new = of_state * (1.0 - z) * (1.0 - new * new)
        gates = [of_state * (before - new) * z * (1.0 - z), of_new * pm * r * (1.0 - r)]
        of_p = torch.cat([*gates, of_new * r], 1)
        results[0][:, at] = torch.cat([*gates, of_new], 1)
        results[1][:, at] = of_p
        of_state = of_state * z + of_p @ weight
    results[2].copy_(of_state)


def _plain(operands: list[Tensor], results: list[Tensor], reverse: bool, cell: str) -> None:
    weight, y, dy = operands
    of_state = torch.zeros_like(y[:, 0])
    for at in _order(y.shape[1], not reverse):
        state = y[:, at]
        slope = (state > 0.0).float() if cell == "relu" else 1.0 - state * state
        found = slope * (of_state + dy[:, at])
        results[0][:, at] = found
        of_state = found @ weight
    results[1].copy_(of_state)
