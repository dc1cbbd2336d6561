"""Functions of PyTorch that a capture writes with other ops: their own ways ask for what tensors hold, or for places in memory."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..command import Error
from . import bags
from .connectionist import ctc_loss


def _fill_diagonal(x: Tensor, value: float, wrap: bool = False) -> Tensor:
    """PyTorch's own way takes places in memory, by which nothing may be written to a view while a model is captured."""
    if x.dim() != 2 or (wrap and x.shape[0] > x.shape[1]):
        return x.fill_diagonal_(value, wrap)
    return x.masked_fill_(torch.eye(*x.shape, dtype=torch.bool, device=x.device), value)


def _take(x: Tensor, index: Any) -> Any:
    """PyTorch's own way reads the number that an index without dims holds."""
    whole = index if isinstance(index, tuple) else (index,)
    if sum(part is Ellipsis for part in whole) == 1:
        place = next(place for place, part in enumerate(whole) if part is Ellipsis)
        whole = (*whole[:place], *([slice(None)] * (x.dim() - len(whole) + 1)), *whole[place + 1 :])
    at = next((place for place, part in enumerate(whole) if _is_number(part)), None)
    # With others of the same kind beside it a number is broadcast, as PyTorch itself does.
    if at is None or not all(isinstance(part, slice) for part in (*whole[:at], *whole[at + 1 :])):
        return x[index]
    return torch.index_select(x[(*whole[:at], slice(None), *whole[at + 1 :])], at, whole[at].reshape(1)).squeeze(at)


def _is_number(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dim() == 0 and part.dtype in (torch.int64, torch.int32)


def _scatter_masked(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Elements of a source, one after the other, where a mask holds. A mask that is the same for all of the last dims takes rows."""
    if source.dtype != x.dtype or mask.dtype != torch.bool or x.shape != torch.broadcast_shapes(x.shape, mask.shape):
        return x.masked_scatter(mask, source)
    alike, dims = mask.expand(x.shape), x.dim()
    while dims > 0 and (alike.stride(dims - 1) == 0 or x.shape[dims - 1] == 1) and source.numel() % x.shape[dims - 1 :].numel() == 0:
        dims -= 1
    held, rest = alike, x.shape[dims:]
    for _ in rest:
        held = held.select(-1, 0)
    # Behind the last element that there is this is no place of the source, and taking it fails, as it does in PyTorch.
    places = (held.reshape(-1).to(torch.int64).cumsum(0) - 1).clamp(min=0)
    taken = torch.index_select(source.reshape(-1, rest.numel()), 0, places)
    return torch.where(held.reshape(*held.shape, *([1] * len(rest))), taken.reshape(x.shape), x)


def _gaussian(x: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> Tensor:
    """The likelihood under normal distributions: PyTorch's own way looks whether a variance is below 0."""
    if isinstance(var, float):
        var = var * torch.ones_like(x)
    if var.shape != x.shape and var.shape == x.shape[:-1]:
        var = var.unsqueeze(-1)
    # Gradients go to variances below the least one too.
    var = var + (var.detach().clamp(min=eps) - var.detach())
    found: Tensor = 0.5 * (torch.log(var) + (x - target).square() / var)
    found = found + 0.5 * math.log(2.0 * math.pi) if full else found
    if reduction == "none":
        return found
    return found.mean() if reduction == "mean" else found.sum()


def _quantile(x: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Tensor:
    """What stands at a share of the places of sorted elements, or between two. PyTorch's own way looks for what is no number."""
    whole, along = (x.reshape(-1), 0) if dim is None else (x, dim % x.dim())
    share = torch.as_tensor(q, dtype=x.dtype, device=x.device)
    place = share.reshape(-1) * (whole.shape[along] - 1)
    nearest = {"nearest": torch.round, "lower": torch.floor, "higher": torch.ceil}.get(interpolation)
    below, above = (nearest(place), nearest(place)) if nearest else (torch.floor(place), torch.ceil(place))
    part = torch.full_like(place, 0.5) if interpolation == "midpoint" else place - below
    ordered = torch.sort(whole, along).values
    first, second = (torch.index_select(ordered, along, at.to(torch.int64)) for at in (below, above))
    found = first + (second - first) * part.reshape([-1 if at == along else 1 for at in range(whole.dim())])
    found = torch.movedim(found, along, 0)
    if keepdim:
        found = found.reshape(-1, *([1] * x.dim())) if dim is None else found.unsqueeze(along + 1)
    return found if share.dim() else found.squeeze(0)


def _covariance(x: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Tensor:
    """How rows vary together. PyTorch's own way looks whether weights are below 0."""
    rows = x.reshape(1, -1) if x.dim() < 2 else x
    weights = fweights if aweights is None else aweights if fweights is None else fweights * aweights
    if weights is None:
        apart, total = rows - rows.mean(1, keepdim=True), torch.as_tensor(rows.shape[1] - correction, dtype=x.dtype, device=x.device)
        found = apart @ apart.t() / total
    else:
        total = weights.sum()
        apart = rows - (rows * weights).sum(1, keepdim=True) / total
        counted = total if aweights is None else (weights * aweights).sum() / total
        found = (apart * weights) @ apart.t() / (total - correction * counted)
    return found if x.dim() == 2 else found.reshape(())


def _correlation(x: Tensor) -> Tensor:
    """How rows vary together, of what they vary by themselves."""
    covariance = _covariance(x)
    if covariance.dim() == 0:
        return covariance / covariance
    deviations = torch.sqrt(torch.diagonal(covariance))
    return torch.clamp(covariance / deviations[:, None] / deviations[None], -1.0, 1.0)


def _lstm(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states of an LSTM, and the last ones with their cells: without content PyTorch 2.11 gives these two a dim too many."""
    found, *last = torch._VF.lstm(*given)
    hidden, cells = (part.squeeze(1) if part.dim() == 4 else part for part in last)
    return found, hidden, cells


def _one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """As many columns as there are classes. Without their number PyTorch's own way takes that of a batch."""
    if num_classes < 0:
        raise Error("one_hot has as many columns as a batch has classes, which is not known before a step: give it num_classes")
    return torch.nn.functional.one_hot(x, num_classes)


def _gradients(*_: Any, **__: Any) -> Any:
    """Gradients in the middle of a step.

    Raises:
        Error: always.
    """
    advice = "write the derivative down, or take a difference of two values"
    raise Error(f"the model takes gradients itself (torch.autograd.grad), and a plan has those of its loss alone: {advice}")


def _pack(*_: Any) -> Any:
    """Rows of a batch one after the other, as long as each is.

    Raises:
        Error: always.
    """
    advice = "give the module the padded batch, and mask its results, or take those at the ends by torch.gather"
    raise Error(f"pack_padded_sequence cuts a batch by lengths, which are not known before a step: {advice}")


OTHERWISE: dict[Any, Any] = {
    **bags.OTHERWISE, torch.nn.functional.one_hot: _one_hot, torch._VF._pack_padded_sequence: _pack, torch._VF.lstm: _lstm,
    **dict.fromkeys((torch.autograd.grad, Tensor.backward, torch.autograd.backward), _gradients),
    Tensor.fill_diagonal_: _fill_diagonal, Tensor.__getitem__: _take, torch.nn.functional.ctc_loss: ctc_loss,
    **dict.fromkeys((torch.quantile, Tensor.quantile), _quantile), **dict.fromkeys((torch.cov, Tensor.cov), _covariance),
    **dict.fromkeys((torch.corrcoef, Tensor.corrcoef), _correlation),
    torch.nn.functional.gaussian_nll_loss: _gaussian, Tensor.masked_scatter: _scatter_masked, torch.masked_scatter: _scatter_masked,
}  # fmt: skip
"""What is written with other ops."""
