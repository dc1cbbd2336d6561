"""The loss of connectionist temporal classification, step by step, as PyTorch has no parts of it that can be captured.

The forward variables of Graves et al. (2006, section 4.1), as logarithms: one for each label and each blank between them, for all texts
of a batch at once. A graph has the ops of each step of time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..command import Error

NEVER = -1e30
"""The logarithm of a probability of 0, whose gradient is no ``nan``."""

UNLIKELY = -1e29
"""Below it nothing was possible."""


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """What ``torch.nn.functional.ctc_loss`` gives, of log-probabilities ``[t, n, classes]`` and targets ``[n, s]``.

    Raises:
        Error: where targets stand behind each other, so that their places depend on data.
    """
    if log_probs.dim() != 3 or targets.dim() != 2:
        raise Error("ctc_loss takes log-probabilities [t, n, classes] and targets [n, s] in a plan: fill the targets up to one length")
    frames, labels = (torch.as_tensor(lengths, device=log_probs.device) for lengths in (input_lengths, target_lengths))
    steps, count, _ = log_probs.shape
    # What fills targets up is looked up as well, and needs a class.
    held = torch.arange(targets.shape[1], device=targets.device) < labels.unsqueeze(1)
    targets = torch.where(held, targets, blank).to(torch.int64)
    blanks = torch.full_like(targets, blank)
    states = torch.cat([torch.stack([blanks, targets], 2).flatten(1), blanks[:, :1]], 1)
    skips = torch.cat([torch.zeros_like(states[:, :2], dtype=torch.bool), (states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2])], 1)
    emitted = log_probs.transpose(0, 1).gather(2, states.unsqueeze(1).expand(count, steps, states.shape[1]))
    begins = torch.arange(states.shape[1], device=targets.device) < 2
    found = torch.where(begins, emitted[:, 0], NEVER)
    for step in range(1, steps):
        before = torch.stack([found, _later(found, 1), torch.where(skips, _later(found, 2), NEVER)])
        found = torch.where((frames > step).unsqueeze(1), _log_of_sum(before) + emitted[:, step], found)
    place = torch.arange(states.shape[1], device=targets.device) - 2 * labels.unsqueeze(1)
    ends = _log_of_sum(torch.where((place == 0) | (place == -1), found, NEVER).t())
    losses = torch.where(ends < UNLIKELY, 0.0 if zero_infinity else torch.inf, -ends)
    if reduction == "mean":
        return (losses / labels.clamp(min=1)).mean()
    return losses.sum() if reduction == "sum" else losses


def to_the_left(values: Tensor, mask: Tensor) -> Tensor:
    """The elements of each row at which a mask holds, ``[n, s]``, behind each other; zeros behind them."""
    places = torch.where(mask, mask.to(torch.int64).cumsum(1) - 1, values.shape[1])
    room = torch.zeros_like(torch.cat([values, values[:, :1]], 1))
    return room.scatter(1, places, values)[:, :-1]


def _later(x: Tensor, count: int) -> Tensor:
    """The states before those of each place, ``[n, states]``."""
    return torch.nn.functional.pad(x, (count, 0), value=NEVER)[:, : x.shape[1]]


def _log_of_sum(x: Tensor) -> Tensor:
    """The logarithm of the sum over dim 0 of what has these logarithms."""
    greatest = x.detach().amax(0)
    return (x - greatest).exp().sum(0).log() + greatest
