"""Graphs in graphc's text form, written node by node."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DTYPES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.bool: "bool",
}
"""Element types, and what the text form calls them."""

MOST_LITERALS = 64
"""Elements of a constant that stands in the text; a larger one is a variable that nothing changes."""


@dataclass(frozen=True)
class Value:
    """A tensor of the graph."""

    label: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        """How many dims it has."""
        return len(self.shape)


class Writer:
    """A graph that is being written: each method adds nodes, and gives the tensor that they compute."""

    def __init__(self, name: str) -> None:
        """An empty graph."""
        self.name = name
        self.lines: list[str] = []
        self.constants: dict[str, Tensor] = {}
        """The contents of variables that nothing changes."""
        self._labels = 0

    def finish(self, outputs: dict[str, Value]) -> str:
        """The text of the graph with these outputs."""
        returned = ", ".join(f"{quoted(name)} = %{value.label}" for name, value in outputs.items())
        return "\n".join([f"graph @{self.name} {{", *self.lines, f"  return {returned}", "}", ""])

    def input(self, name: str, dtype: torch.dtype, shape: Sequence[int], sampled: bool) -> Value:
        """What a step is fed: whole batches along dim 0 where it is sampled, else the same for all."""
        samples = {} if sampled else {"samples": "whole"}
        return self.node("input", [], dtype, shape, named=name, **samples)

    def variable(self, name: str, dtype: torch.dtype, shape: Sequence[int], trainable: bool) -> Value:
        """A variable, whose content is written when the plan has been loaded."""
        return self.node("variable", [], dtype, shape, named=name, init={"fill": 0}, trainable=trainable)

    def node(
        self,
        op: str,
        operands: Iterable[Value],
        dtype: torch.dtype,
        shape: Sequence[int],
        /,
        *,
        named: str | None = None,
        **attributes: Any,
    ) -> Value:
        """A node of one result."""
        return self.nodes(op, operands, [(dtype, shape)], named=named, **attributes)[0]

    def nodes(
        self,
        op: str,
        operands: Iterable[Value],
        results: Sequence[tuple[torch.dtype, Sequence[int]]],
        /,
        *,
        named: str | None = None,
        **attributes: Any,
    ) -> tuple[Value, ...]:
        """A node of several results."""
        found = tuple(Value(self._label(), dtype, tuple(shape)) for dtype, shape in results)
        parts = [", ".join(f"%{value.label}" for value in found), "=", op]
        parts += [quoted(named)] if named is not None else []
        parts += [", ".join(f"%{value.label}" for value in operands)]
        parts += ["{" + ", ".join(f"{name}={_literal(value)}" for name, value in attributes.items()) + "}"] if attributes else []
        types = ", ".join(f"{DTYPES[value.dtype]}[{', '.join(str(extent) for extent in value.shape)}]" for value in found)
        self.lines.append("  " + " ".join(part for part in [*parts, ":", types] if part))
        return found

    def unary(self, function: str | dict[str, Any], x: Value) -> Value:
        """An elementwise function of one operand."""
        return self.node("unary", [x], x.dtype, x.shape, function=function)

    def scale(self, x: Value, factor: float) -> Value:
        """A product with a number."""
        return x if factor == 1 else self.unary({"scale": factor}, x)

    def offset(self, x: Value, addend: float) -> Value:
        """A sum with a number."""
        return x if addend == 0 else self.unary({"offset": addend}, x)

    def binary(self, function: str, a: Value, b: Value) -> Value:
        """An elementwise function of two operands of one element type, broadcast."""
        logical = function in COMPARISONS
        shape = torch.broadcast_shapes(a.shape, b.shape)
        return self.node("binary", [a, b], torch.bool if logical else a.dtype, shape, function=function)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """Where a condition holds the one, elsewhere the other."""
        return self.node("where", [condition, a, b], a.dtype, torch.broadcast_shapes(condition.shape, a.shape, b.shape))

    def cast(self, x: Value, dtype: torch.dtype) -> Value:
        """Another element type."""
        return x if x.dtype == dtype else self.node("cast", [x], dtype, x.shape, dtype=DTYPES[dtype])

    def full(self, dtype: torch.dtype, shape: Sequence[int], value: float) -> Value:
        """One value everywhere."""
        return self.node("full", [], dtype, shape, value=float(value))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """The same elements in another shape."""
        return x if x.shape == tuple(shape) else self.node("reshape", [x], x.dtype, shape, shape=list(shape))

    def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
        """Dims in another order."""
        if list(permutation) == list(range(x.rank)):
            return x
        return self.node("transpose", [x], x.dtype, [x.shape[dim] for dim in permutation], permutation=list(permutation))

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        """Dims of extent 1, and missing ones, repeated."""
        return x if x.shape == tuple(shape) else self.node("expand", [x], x.dtype, shape, shape=list(shape))

    def slice(self, x: Value, dim: int, start: int, end: int, step: int = 1) -> Value:
        """A range of one dim."""
        if (start, end, step) == (0, x.shape[dim], 1):
            return x
        starts, ends, steps = [0] * x.rank, list(x.shape), [1] * x.rank
        starts[dim], ends[dim], steps[dim] = start, end, step
        shape = [*x.shape[:dim], max(0, -(-(end - start) // step)), *x.shape[dim + 1 :]]
        return self.node("slice", [x], x.dtype, shape, starts=starts, ends=ends, steps=steps)

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        """Tensors one after the other."""
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.node("concat", parts, parts[0].dtype, shape, axis=axis)

    def reduce(self, function: str, x: Value, axes: Sequence[int], keep: bool = False) -> Value:
        """The sum, mean, greatest or least over dims."""
        if not axes:
            return x
        shape = [1 if dim in axes else extent for dim, extent in enumerate(x.shape) if keep or dim not in axes]
        return self.node("reduce", [x], x.dtype, shape, function=function, axes=sorted(axes), keep_dims=keep)

    def matmul(self, a: Value, b: Value, transpose_b: bool = False) -> Value:
        """The matrix product of the last two dims; those before broadcast."""
        columns = b.shape[-2] if transpose_b else b.shape[-1]
        shape = [*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], columns]
        return self.node("matmul", [a, b], a.dtype, shape, transpose_b=transpose_b)

    def content(self, content: Tensor) -> Value:
        """A tensor that is known: numbers in the text where they are few or alike, else a variable that nothing changes."""
        small = _without_repetition(content)
        return self.expand(self._small(small.contiguous()), tuple(content.shape))

    def _small(self, content: Tensor) -> Value:
        dtype, shape = content.dtype, tuple(content.shape)
        if content.numel() == 1:
            return self.full(dtype, shape, float(content.reshape(()).item()))
        if dtype == torch.int64 and content.dim() == 1 and torch.equal(content, torch.arange(content.numel())):
            return self.node("iota", [], dtype, shape, dim=0)
        if content.numel() <= MOST_LITERALS:
            return self.node("constant", [], dtype, shape, data=[float(element) for element in content.reshape(-1).tolist()])
        name = f"constant.{len(self.constants)}"
        self.constants[name] = content
        return self.variable(name, dtype, shape, trainable=False)

    def _label(self) -> str:
        self._labels += 1
        return str(self._labels)


COMPARISONS = frozenset(["equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "and", "or"])
"""Functions of two operands that give truth values."""


def quoted(text: str) -> str:
    """A name as the text form writes it."""
    return json.dumps(text, ensure_ascii=False)


def _without_repetition(content: Tensor) -> Tensor:
    """A tensor with one element of each dim along which all are alike."""
    for dim in range(content.dim()):
        first = content.narrow(dim, 0, min(1, content.shape[dim]))
        if content.shape[dim] > 1 and bool((content == first).all()):
            content = first
    return content


def _literal(value: Any) -> str:
    """An attribute in JSON, in which numbers that are not finite are words."""
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list) else value
