"""What a module returns, taken apart into tensors, and put together again."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..command import Unplanned


@dataclass(frozen=True)
class Leaf:
    """A tensor, by its number."""

    number: int


@dataclass(frozen=True)
class Node:
    """What has parts: a dataclass, a mapping or a sequence."""

    kind: type
    parts: dict[Any, Any]


def take_apart(output: Any) -> tuple[Any, list[Tensor]]:
    """The form of an output, and its tensors. What is neither made of tensors nor a number or a text, as a cache is, becomes ``None``."""
    tensors: list[Tensor] = []
    return _form(output, tensors), tensors


def _form(output: Any, tensors: list[Tensor]) -> Any:
    if isinstance(output, Tensor):
        tensors.append(output)
        return Leaf(len(tensors) - 1)
    parts = _parts(output)
    if parts is not None:
        return Node(type(output), {key: _form(part, tensors) for key, part in parts.items()})
    return output if isinstance(output, bool | int | float | str) else None


def _parts(output: Any) -> dict[Any, Any] | None:
    """The parts of an output; models of transformers return dataclasses that are mappings too."""
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    if isinstance(output, Mapping):
        return dict(output)
    return dict(enumerate(output)) if isinstance(output, tuple | list) else None


def put_together(form: Any, tensors: Sequence[Tensor]) -> Any:
    """The output of a form."""
    if isinstance(form, Leaf):
        return tensors[form.number]
    if not isinstance(form, Node):
        return form
    parts = {key: put_together(part, tensors) for key, part in form.parts.items()}
    kind: Any = form.kind
    if dataclasses.is_dataclass(form.kind):
        return kind(**parts)
    if issubclass(form.kind, Mapping):
        return kind(parts)
    return kind(*parts.values()) if hasattr(kind, "_fields") else kind(parts.values())


def check_sent(form: Any) -> None:
    """Checks that other processes can make an output of this form.

    Raises:
        Error: where a class of it is known within a function alone.
    """
    try:
        pickle.dumps(form)
    except (pickle.PicklingError, AttributeError) as error:
        raise Unplanned(f"the model returns what other processes cannot make: {error}; define its class at the top of a file") from error
