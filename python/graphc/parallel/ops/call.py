"""What the translation of an op sees of it: its arguments by name, and the type of its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..text import DTYPES, Value, Writer


@dataclass(frozen=True)
class Running:
    """What a norm's running statistic is behind a batch, which the plan knows at the end of a step alone."""

    variable: Value
    """The statistic as it was."""


Result = Value | Tensor | tuple[Value | Running | None, ...]
"""A tensor of the graph, one that is known, or several; ``None`` are those that nothing may use."""


IMMATERIAL = {"layout", "device", "pin_memory", "memory_format", "non_blocking", "generator", "cudnn_enable", "stable", "sorted"}
IMMATERIAL |= {"dtype", "keepdim", "ceil_mode"}
"""Options that say where a tensor lies or how it is computed, that graphc always has, or that the result's shape or type shows."""


class Unsupported(Exception):
    """Why this call of an op cannot be translated, as the end of a sentence."""


class Arguments(dict[str, Any]):
    """Arguments by their names, and which of them were looked at."""

    def __init__(self) -> None:
        """None."""
        super().__init__()
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        """An argument."""
        self.read.add(name)
        return super().__getitem__(name)

    def peek(self, name: str) -> Any:
        """An argument, without having looked at it."""
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """An argument, or what stands for one that the op has not."""
        self.read.add(name)
        return super().get(name, default)


class Call:
    """A node of the captured graph."""

    def __init__(self, writer: Writer, node: Node, value: Callable[[Node], Value], known: Callable[[Node], Any] = lambda _: None) -> None:
        """The arguments of a node, those that it leaves out with what they are by default."""
        self.writer, self._value, self._known = writer, value, known
        self.arguments = Arguments()
        schema: Any = node.target
        self._options: dict[str, Any] = {}
        for index, argument in enumerate(schema._schema.arguments):
            name, default = argument.name, argument.default_value
            self.arguments[name] = node.args[index] if index < len(node.args) else node.kwargs.get(name, default)
            if argument.kwarg_only or argument.has_default_value():
                self._options[name] = default
        self._result = node.meta["val"]

    def __getitem__(self, name: str) -> Any:
        """An argument that is no tensor."""
        return self.arguments[name]

    @property
    def result(self) -> Any:
        """The result, without content; of several the first."""
        return self._result[0] if isinstance(self._result, tuple | list) else self._result

    @property
    def dtype(self) -> torch.dtype:
        """The element type of the result."""
        dtype: torch.dtype = self.result.dtype
        if dtype not in DTYPES:
            raise Unsupported(f"it gives {dtype}, which graphc has not")
        return dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return tuple(self.result.shape)

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Value:
        """An argument that is a tensor, or a number, in this element type."""
        given = self.arguments[name]
        found = self._value(given) if isinstance(given, Node) else self.writer.full(dtype or self.dtype, (), float(given))
        return found if dtype is None else self.writer.cast(found, dtype)

    def value(self, node: Node) -> Value:
        """The tensor that a node gives, which stands somewhere among the arguments."""
        return self._value(node)

    def tensors(self, name: str) -> list[Value]:
        """An argument that is a list of tensors."""
        return [self._value(given) for given in self.arguments[name]]

    def optional(self, name: str) -> Value | None:
        """An argument that is a tensor, or none."""
        return None if self.arguments[name] is None else self._value(self.arguments[name])

    def content(self, name: str) -> Tensor | None:
        """What an argument holds that depends on no input and no weight."""
        found = self._known(self.arguments[name]) if isinstance(self.arguments[name], Node) else None
        return found if isinstance(found, Tensor) else None

    def running(self, name: str) -> Value | None:
        """A running statistic that this call updates, or none: the variable, whether or not it was updated before in this step."""
        given = self.arguments[name]
        found = self._known(given) if isinstance(given, Node) else None
        return found.variable if isinstance(found, Running) else self.optional(name)

    def number(self, name: str) -> float | None:
        """An argument that is a number; ``None`` where it is a tensor."""
        given = self.arguments.get(name)
        return given if isinstance(given, int | float) else None

    def dim(self, name: str, rank: int) -> int:
        """An argument that is a dim, counted from the start."""
        return int(self.arguments[name]) % max(rank, 1)

    def dims(self, name: str, rank: int) -> list[int]:
        """An argument that lists dims, in order; all where it lists none."""
        given = self.arguments.get(name)
        given = [given] if isinstance(given, int) else given
        return sorted(dim % max(rank, 1) for dim in given) if given else list(range(rank))

    def check_read(self) -> None:
        """Checks that no option was passed over, as one that another overload of the op has.

        Raises:
            Unsupported: where one was.
        """
        for name, default in self._options.items():
            given = self.arguments.peek(name)
            if name not in self.arguments.read and name not in IMMATERIAL and given != default:
                raise Unsupported(f"graphc has it without {name}={given}")

    def require(self, name: str, *allowed: Any) -> None:
        """Checks that an argument is one of these.

        Raises:
            Unsupported: where it is another.
        """
        if self.arguments.get(name) not in allowed:
            raise Unsupported(f"graphc has it with {name}={allowed[0]} alone, not {self.arguments[name]}")


def pair(given: Sequence[int] | int) -> list[int]:
    """Numbers for height and width, of one for both or of both; of one dim, that of the width."""
    numbers = [given] if isinstance(given, int) else list(given)
    return numbers * 2 if len(numbers) == 1 else numbers
