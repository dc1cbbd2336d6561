"""The tensors of a module by their names."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def device_of(model: nn.Module) -> torch.device:
    """Where a model is; one that is nowhere yet goes to a card where there is one."""
    found = next((tensor.device for tensor in tensors_of(model).values()), torch.device("cpu"))
    if found.type == "meta":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(found.type)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers, tied ones under each of their names."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}


def names_of(model: nn.Module) -> dict[int, str]:
    """The first name of each tensor of a model, by its identity."""
    found: dict[int, str] = {}
    for name, tensor in tensors_of(model).items():
        found.setdefault(id(tensor), name)
    return found


def canonical_names(model: nn.Module, names: Mapping[int, str]) -> dict[str, str]:
    """The name in the graph of each name of the model; what has come to it since has its own."""
    return {name: names.get(id(tensor), name) for name, tensor in tensors_of(model).items()}
