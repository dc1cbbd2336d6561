"""What a model keeps of a step for the next one, while it is captured: buffers that it puts others in the place of, and plain attributes.

A buffer that is replaced is written to instead, and so it is part of a plan. Attributes of Python are not: the graph has what they held
when it was captured. Most are none that matter, as caches and what is there to be looked at, and so the graph is captured again with
those that the first step leaves: it must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..command import Error
from .known import MOST_ELEMENTS, content

PLAIN = (int, float, str, type(None), torch.Size)
"""Types of attributes that are looked at, beside tensors."""

OF_MODULES = frozenset(vars(nn.Module()))
"""Attributes that every module has."""


@dataclass
class Attributes:
    """Attributes that a model has changed in a step, and what the step leaves in them."""

    changed: dict[tuple[str, str], Any] = field(default_factory=dict)
    """By the name of the part and that of the attribute."""

    @contextmanager
    def watched(self, model: nn.Module) -> Iterator[None]:
        """Looks at a model's attributes before a step and after it, and leaves those from before."""
        parts = dict(model.named_modules())
        before = {name: (_own(part), dict(part._buffers)) for name, part in parts.items()}
        try:
            yield
            for name, part in parts.items():
                attributes, buffers = before[name]
                _write_to(name, part, buffers)
                # Buffers that are new are kept as attributes are.
                new = {key: value for key, value in part._buffers.items() if buffers.get(key) is None and value is not None}
                for key, value in (_own(part) | new).items():
                    if _is_changed(attributes.get(key), value):
                        self.changed[name, key] = _left(value) if isinstance(value, Tensor) else value
        finally:
            for name, part in parts.items():
                _put_back(part, *before[name])


@contextmanager
def attributes_of(model: nn.Module, given: Mapping[tuple[str, str], Any]) -> Iterator[None]:
    """A model with other attributes, by the names of parts and their own."""
    parts = dict(model.named_modules())
    before = {name: _own(parts[name]) for name, _ in given}
    for (name, key), value in given.items():
        parts[name].__dict__[key] = value
    try:
        yield
    finally:
        for name, attributes in before.items():
            _put_back(parts[name], attributes, parts[name]._buffers)


def plain_attributes(part: nn.Module) -> dict[str, Any]:
    """What a part of a module has of its own in attributes that are no tensors, parts or other objects."""
    return {key: value for key, value in vars(part).items() if isinstance(value, PLAIN) and key not in OF_MODULES}


def _own(part: nn.Module) -> dict[str, Any]:
    return {key: value for key, value in vars(part).items() if key not in OF_MODULES}


def _put_back(part: nn.Module, attributes: Mapping[str, Any], buffers: Mapping[str, Tensor | None]) -> None:
    part._non_persistent_buffers_set -= {key for key in part._buffers if key not in buffers}
    part._buffers = dict(buffers)
    for key in [key for key in vars(part) if key not in OF_MODULES and key not in attributes]:
        del part.__dict__[key]
    part.__dict__.update(attributes)


def _write_to(name: str, part: nn.Module, buffers: Mapping[str, Tensor | None]) -> None:
    """Writes what stands in the place of buffers into these.

    Raises:
        Error: where it depends on a batch or on weights, and is of another shape or type.
    """
    for key, own in buffers.items():
        now = part._buffers.get(key)
        if now is own or own is None:
            continue
        if now is not None and now.shape == own.shape and now.dtype == own.dtype:
            with torch.no_grad():
                own.copy_(now)
        elif now is not None and content(now) is None:
            was, found = (f"{of.dtype}{list(of.shape)}" for of in (own, now))
            full, advice = f"{name}.{key}".removeprefix("."), "let it be of one shape at each step"
            raise Error(f"the model puts {found} in the place of its buffer `{full}`, which is {was}: {advice}")
        part._buffers[key] = own


def _is_changed(before: Any, now: Any) -> bool:
    if isinstance(now, Tensor):
        return now is not before and not isinstance(now, nn.Parameter)
    return isinstance(now, PLAIN) and isinstance(before, PLAIN) and (type(now) is not type(before) or now != before)


def _left(tensor: Tensor) -> Tensor | tuple[torch.Size, torch.dtype]:
    """What a tensor holds, or its shape and type where that is not known."""
    known = content(tensor)
    return (tensor.shape, tensor.dtype) if known is None else known


def filled(changed: Mapping[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    """What a step has left, of which such as is not known is random."""
    return {key: _random(*value) if _is_unknown(value) else value for key, value in changed.items()}


def are_known(changed: Mapping[tuple[str, str], Any]) -> bool:
    """Whether what a step has left can be told, but for what depends on weights and batches."""
    return not any(_is_unknown(value) and value[0].numel() > MOST_ELEMENTS for value in changed.values())


def _is_unknown(value: Any) -> bool:
    return isinstance(value, tuple) and not isinstance(value, torch.Size)


def _random(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return torch.randint(0, 2, shape, generator=generator).to(dtype)
