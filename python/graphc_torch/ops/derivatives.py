"""Gradients of activations that PyTorch has kernels for: a plan writes them as the steps that they are, PyTorch makes them in one pass.

A template is an expression of ``X``, the operand of the function (or ``Y``, its value), and ``G``, the gradient of its value. A step of a
chain that is such an expression is replaced by one step, and steps that nothing reads any longer are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..plan import FusedArg, FusedOp, FusedStep, Op, scalar

_ATEN: Any = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Node:
    """A step of a template."""

    function: str
    number: float | None
    operands: tuple[Any, ...]


G, X = "G", "X"
Template = str | Node


def _of(function: str, *operands: Template, number: float | None = None) -> Node:
    return Node(function, number, operands)


def _scaled(operand: Template, by: float) -> Node:
    return _of("scale", operand, number=by)


def _plus(operand: Template, number: float) -> Node:
    return _of("offset", operand, number=number)


def _times(a: Template, b: Template) -> Node:
    return _of("mul", a, b)


def _gelu() -> Node:
    below = _scaled(_plus(_of("erf", _scaled(X, math.sqrt(0.5))), 1.0), 0.5)
    density = _scaled(_of("exp", _scaled(_times(X, X), -0.5)), 1 / math.sqrt(2 * math.pi))
    return _times(G, _of("add", below, _times(X, density)))


def _gelu_tanh() -> Node:
    outer, inner = math.sqrt(2 / math.pi), 0.044715
    square = _times(X, X)
    t = _of("tanh", _scaled(_of("add", X, _scaled(_times(square, X), inner)), outer))
    slope = _times(_plus(_of("neg", _times(t, t)), 1.0), _scaled(_plus(_scaled(square, 3 * inner), 1.0), outer))
    return _times(G, _scaled(_of("add", _plus(t, 1.0), _times(slope, X)), 0.5))


def _silu() -> Node:
    s = _of("sigmoid", X)
    return _times(_times(G, s), _plus(_times(X, _plus(_of("neg", s), 1.0)), 1.0))


def _tanh() -> Node:
    return _times(G, _plus(_of("neg", _times(X, X)), 1.0))


def _sigmoid() -> Node:
    return _times(_times(G, X), _plus(_of("neg", X), 1.0))


Kernel = Callable[..., Tensor]

KERNELS: dict[str, tuple[Node, Kernel, dict[str, Any]]] = {
    "gelu": (_gelu(), _ATEN.gelu_backward.grad_input, {"approximate": "none"}),
    "gelu_tanh": (_gelu_tanh(), _ATEN.gelu_backward.grad_input, {"approximate": "tanh"}),
    "silu": (_silu(), _ATEN.silu_backward.grad_input, {}),
    "tanh": (_tanh(), _ATEN.tanh_backward.grad_input, {}),
    "sigmoid": (_sigmoid(), _ATEN.sigmoid_backward.grad_input, {}),
}
"""By function: its gradient in steps, PyTorch's kernel, and what that takes besides."""

DERIVATIVE = "derivative"
"""The name of an op that no plan has: the gradient of a function in one step."""


def derivative(op: Op) -> Callable[..., Tensor]:
    """The function of a gradient and an operand that such an op is."""
    _, kernel, given = KERNELS[op["function"]]

    def compute(gradient: Tensor, operand: Tensor, out: Tensor | None = None) -> Tensor:
        gradient, operand = torch.broadcast_tensors(gradient, operand)
        found: Tensor = kernel(gradient, operand, **given, grad_input=torch.empty_like(gradient) if out is None else out)
        return found

    return compute


def with_derivatives(chain: FusedOp) -> FusedOp:
    """The same chain, with one step for each gradient that PyTorch has a kernel for."""
    steps = list(chain.steps)
    for index in range(len(steps)):
        found = next((step for name in KERNELS if (step := _recognised(name, steps, index)) is not None), None)
        steps[index] = steps[index] if found is None else found
    return chain if steps == list(chain.steps) else _without_unread(replace(chain, steps=tuple(steps)))


def _recognised(name: str, steps: list[FusedStep], index: int) -> FusedStep | None:
    bound: dict[str, FusedArg] = {}
    if not _matches(KERNELS[name][0], FusedArg(operand=None, step=index), steps, bound):
        return None
    return FusedStep(Op(DERIVATIVE, {"function": name}), (bound[G], bound[X]))


def _matches(template: Template, arg: FusedArg, steps: list[FusedStep], bound: dict[str, FusedArg]) -> bool:
    """Whether a value is what a template says, of the same ``G`` and ``X`` everywhere."""
    if isinstance(template, str):
        return bound.setdefault(template, arg) == arg
    if arg.step is None or not _is(steps[arg.step].op, template):
        return False
    pairs = zip(template.operands, steps[arg.step].args, strict=True)
    return all(_matches(operand, of, steps, bound) for operand, of in pairs)


def _is(op: Op, node: Node) -> bool:
    if op.name not in ("unary", "binary") or (op.name == "binary") != (len(node.operands) == 2):
        return False
    function = op["function"]
    if node.number is None or not isinstance(function, dict):
        return bool(function == node.function)
    ((name, number),) = function.items()
    return name == node.function and not isinstance(number, dict) and math.isclose(scalar(number), node.number, rel_tol=1e-12)


def _without_unread(chain: FusedOp) -> FusedOp:
    """Without steps that neither a later step reads nor the chain gives."""
    read: set[int] = set(chain.outputs)
    for index in reversed(range(len(chain.steps))):
        if index in read:
            read |= {arg.step for arg in chain.steps[index].args if arg.step is not None}
    number = {old: new for new, old in enumerate(sorted(read))}

    def moved(step: FusedStep) -> FusedStep:
        return replace(step, args=tuple(arg if arg.step is None else replace(arg, step=number[arg.step]) for arg in step.args))

    steps = tuple(moved(chain.steps[index]) for index in sorted(read))
    return replace(chain, steps=steps, outputs=tuple(number[index] for index in chain.outputs))
