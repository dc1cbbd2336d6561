"""From a captured graph of ATen's ops to graphc's text form.

What depends on no input and no weight is computed while it is translated: positions, masks, shapes. All else becomes nodes, by the
tables under :mod:`graphc.parallel.ops`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from ..command import Error
from .capture import PREFIX, place_of
from .ops.call import Call, Result, Running, Unsupported
from .ops.complex_numbers import ComplexCall, Pair, is_complex
from .ops.table import complex_table, table
from .text import DTYPES, Value, Writer

Handler = Callable[[Call], Result]

BATCH_NORM = "aten._native_batch_norm_legit_functional.default"

DETACH = "graphc.detach.default"

FLAT = ("aten.floor.", "aten.ceil.", "aten.round.", "aten.sign.")
"""Ops that are flat but for jumps, beside quotients that are rounded."""

ADVICE = {"_local_scalar_dense": "the number that a tensor holds is not known before a step, so compute with the tensor, without .item()"}
"""What to do instead of ops that models have by other names."""

MOST_KNOWN = 1 << 26
"""Elements of the largest tensor that is computed during translation."""


@dataclass(frozen=True)
class Names:
    """Which tensors of a model a graph has, and under which names."""

    canonical: Mapping[str, str]
    """The name under which each tensor of the model is in the graph; tied ones share one."""
    trained: frozenset[str]
    """Those that an optimizer changes."""


@dataclass(frozen=True)
class Translation:
    """A graph in text form."""

    text: str
    constants: dict[str, Tensor]
    """What variables begin with that are none of the model's."""
    variables: frozenset[str]
    """The model's own variables."""
    counters: dict[str, int]
    """Buffers that count batches, and are kept outside of the graph, and by how many a step's graph raises each."""


def translate(program: ExportedProgram, inputs: Mapping[str, bool], names: Names, is_loss: bool = True) -> Translation:
    """Writes a captured graph down.

    Args:
        program: the graph.
        inputs: the batch's tensors in order, and whether each counts samples along its first dim.
        names: the model's tensors.
        is_loss: whether the first output is one number to be learned from; the others are ``output.0`` and so on.

    Raises:
        Error: where an op has no translation, with the line of the model where it stands.
    """
    return _Translator(program, inputs, names).run(is_loss)


class _Translator:
    def __init__(self, program: ExportedProgram, inputs: Mapping[str, bool], names: Names) -> None:
        self.program, self.names = program, names
        self.inputs = iter(inputs.items())
        self.writer = Writer("model")
        self.found: dict[Node, Any] = {}
        self.contents: dict[Node, Value | Pair] = {}
        self.variables: dict[str, Value] = {}
        self.outputs = [spec.arg.name for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
        self.counters: dict[str, int] = {}
        self.changed = set(program.graph_signature.buffers_to_mutate.values())
        self.learned = _learned(program, names)

    def run(self, is_loss: bool) -> Translation:
        nodes = {node.name: node for node in self.program.graph.nodes}
        results = [nodes[name] for name in self.outputs]
        changed = [(nodes[output], name) for output, name in self._changed().items()]
        states = [(node, name) for node, name in changed if not self._is_counter(node, name) and not _is_running(node)]
        needed = _needed([*results, *(node for node, _ in states)])
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        for node in self.program.graph.nodes:
            if node.op == "placeholder" and specs[node.name].kind is InputKind.USER_INPUT:
                # All inputs are there, used or not: a batch has them. What is no tensor is known by then.
                self.found[node] = self._input(node) if isinstance(node.meta.get("val"), Tensor) else None
            elif node in needed and node.op == "placeholder":
                self.found[node] = self._given(node, specs[node.name])
            elif node in needed and node.op == "call_function":
                self.found[node] = self._call(node)
            elif node in needed:
                raise Error(f"`{node.target}` is a branch or a loop that depends on data, which graphc has not: leave it out of the model")
        for node, name in states:
            state = self._variable(name, node.meta["val"])
            self.writer.node("blend", [state, self._value(node)], state.dtype, state.shape, decay=0.0, rate=1.0)
        loss = {"loss": self._loss(results[0])} if is_loss else {}
        text = self.writer.finish(loss | self._numbered(results[len(loss) :]))
        return Translation(text, self.writer.constants, frozenset(self.variables), self.counters)

    def _changed(self) -> dict[str, str]:
        """The buffers that a step changes, and parameters that no optimizer does, by the nodes of what they become.

        Raises:
            Error: where a step writes to a parameter that is trained.
        """
        parameters: Mapping[str, str] = getattr(self.program.graph_signature, "parameters_to_mutate", {})
        nodes = {node.name: node for node in self.program.graph.nodes}
        for output, name in parameters.items():
            if self.names.canonical[name.removeprefix(PREFIX)] in self.names.trained:
                advice = "an optimizer changes it, or it is a buffer"
                raise Error(f"{place_of(nodes[output])} writes to the parameter `{name.removeprefix(PREFIX)}`: {advice}")
        return {**self.program.graph_signature.buffers_to_mutate, **parameters}

    def _numbered(self, results: list[Node]) -> dict[str, Value]:
        """Outputs by their numbers; what is read of a batch or a weight as it is has a node of its own."""
        values = [self._value(node) for node in results]
        return {f"output.{number}": self.writer.node("regather", [value], value.dtype, value.shape) for number, value in enumerate(values)}

    def _loss(self, node: Node) -> Value:
        value = self._value(node)
        if value.dtype in (torch.float16, torch.bfloat16):
            value = self.writer.cast(value, torch.float32)
        # PyTorch takes one element of any shape.
        if math.prod(value.shape) == 1:
            value = self.writer.reshape(value, ())
        if value.shape != () or value.dtype != torch.float32:
            raise Error(f"the loss is {DTYPES[value.dtype]}{list(value.shape)}: let it be one number of float32")
        return value

    def _is_counter(self, node: Node, name: str) -> bool:
        """Whether a buffer is the number of batches, as batch norm counts them, once for each use of the norm."""
        counts = {node}
        while str(node.target) == "aten.add.Tensor" and node.args[1] == 1 and not node.meta["val"].dtype.is_floating_point:
            node = node.all_input_nodes[0]
            counts.add(node)
        # What is computed of it must be in the graph.
        if node.op != "placeholder" or any(user.op != "output" for count in counts for user in count.users if user not in counts):
            return False
        self.counters[name.removeprefix(PREFIX)] = len(counts) - 1
        return True

    def _input(self, node: Node) -> Value:
        name, sampled = next(self.inputs)
        value = node.meta["val"]
        return self.writer.input(name, self._dtype(value, name), value.shape, sampled)

    def _given(self, node: Node, spec: Any) -> Any:
        """A weight, a buffer, or a tensor that the model's code has made."""
        content = node.meta["val"]
        if spec.kind is InputKind.CONSTANT_TENSOR:
            return self.program.constants[spec.target]
        if spec.kind is InputKind.BUFFER and not spec.persistent and spec.target not in self.changed:
            known = self.program.constants[spec.target]
            if not known.is_meta:
                return known.detach().cpu()
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            return self._variable(spec.target, content)
        raise Error(f"the model takes {spec.kind.name.lower()} `{spec.target}`, which graphc has not: let a batch hold tensors alone")

    def _variable(self, target: str, content: Tensor) -> Value:
        name = self.names.canonical[target.removeprefix(PREFIX)]
        if name not in self.variables:
            dtype = self._dtype(content, name)
            self.variables[name] = self.writer.variable(name, dtype, content.shape, name in self.names.trained)
        return self.variables[name]

    def _dtype(self, content: Tensor, name: str) -> torch.dtype:
        if content.dtype not in DTYPES:
            advice = f"it has {', '.join(str(dtype) for dtype in DTYPES)}"
            if content.dtype.is_complex:
                advice = "let it be torch.view_as_real of that, and take torch.view_as_complex of it in the model"
            raise Error(f"`{name}` is {content.dtype}, which graphc has not: {advice}")
        return content.dtype

    def _call(self, node: Node) -> Any:
        if node.target is operator.getitem:
            whole, index = node.args
            return self.found[whole][index]  # type: ignore[index]
        if self._is_known(node):
            return _computed(node, self.found)
        name = str(node.target).split(".")[1] if str(node.target).startswith("aten.") else str(node.target)
        of_complex = is_complex(node)
        handler: Any = complex_table().get(name) if of_complex else table().get(name)
        if handler is None:
            kind = " of complex numbers" if of_complex else ""
            advice = ADVICE.get(name, "write it with other ops, or leave it out of the model")
            raise Error(f"{place_of(node)} has no translation{kind}: {advice}")
        call: Any = ComplexCall(self.writer, node, self._found) if of_complex else Call(self.writer, node, self._value, self.found.get)
        try:
            found = handler(call)
            call.check_read()
        except Unsupported as reason:
            raise Error(f"{place_of(node)} has no translation, as {reason}") from reason
        return self._with_gradient_of_zero(node, found) if _is_flat(node) and node in self.learned else found

    def _with_gradient_of_zero(self, node: Node, found: Value) -> Value:
        """What an op gives whose gradient is 0 wherever it has one.

        PyTorch hands zeros on, and so parameters behind it are trained: they decay, and their moments do. graphc has no gradient there.
        """
        never = self.writer.full(torch.bool, (), 0.0)
        for source in node.all_input_nodes:
            if source in self.learned:
                found = self.writer.select(never, self.writer.cast(self._value(source), found.dtype), found)
        return found

    def _is_known(self, node: Node) -> bool:
        """Whether a node depends on nothing that steps change, and gives the same at each."""
        target, value = node.target, node.meta.get("val")
        random = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
        small = not isinstance(value, Tensor) or value.numel() <= MOST_KNOWN
        known = all(isinstance(self.found[argument], Tensor) or _all_known(self.found[argument]) for argument in node.all_input_nodes)
        return known and small and not random

    def _value(self, node: Node) -> Value:
        """The tensor that a node gives, as one of the graph."""
        found = self._found(node)
        if isinstance(found, Pair):
            raise Error(f"{place_of(node)} gives complex numbers, which graphc has not: take torch.view_as_real of them")
        return found

    def _found(self, node: Node) -> Value | Pair:
        """The tensor that a node gives, as one of the graph; of complex numbers both parts."""
        found = self.found[node]
        if isinstance(found, Tensor):
            # It stays known too, for what else is computed of it.
            if node not in self.contents:
                self.contents[node] = self._content(found)
            return self.contents[node]
        if isinstance(found, Running):
            advice = "let it be read in the next step, or give each use a norm of its own"
            raise Error(f"{place_of(node)}: what the norm keeps of batches is read again in the same step: {advice}")
        if not isinstance(found, Value | Pair):
            whole = node.args[0] if node.target is operator.getitem else node
            if node.target is operator.getitem:
                number = node.args[1]
                raise Error(f"{place_of(whole)}: its result {number} is used, which graphc has not: leave out what is made of it")  # type: ignore[arg-type]
            raise Error(f"{place_of(node)} gives several tensors where one is used: take one of them")
        return found

    def _content(self, known: Tensor) -> Value | Pair:
        if known.is_complex():
            real, imaginary = (self.writer.content(part.float().contiguous()) for part in (known.real, known.imag))
            return Pair(real, imaginary)
        return self.writer.content(known.float() if known.dtype == torch.float64 else known)


def _learned(program: ExportedProgram, names: Names) -> set[Node]:
    """All nodes through which a gradient goes to a parameter that is trained."""
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    found: set[Node] = set()
    for node in program.graph.nodes:
        value = node.meta.get("val")
        values = value if isinstance(value, tuple | list) else [value]
        has_gradient = any(isinstance(part, Tensor) and (part.is_floating_point() or part.is_complex()) for part in values)
        if node.op == "placeholder" and specs[node.name].kind is InputKind.PARAMETER:
            if names.canonical[specs[node.name].target.removeprefix(PREFIX)] in names.trained:
                found.add(node)
        elif has_gradient and str(node.target) != DETACH and any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found


def _is_flat(node: Node) -> bool:
    """Whether an op's gradient is 0 wherever it has one."""
    op = str(node.target)
    if op == "aten.pow.Tensor_Scalar":
        return bool(node.args[1] == 0)
    return op.startswith(FLAT) or (op.startswith("aten.div.") and node.kwargs.get("rounding_mode") is not None)


def _all_known(found: Any) -> bool:
    return isinstance(found, tuple | list) and all(isinstance(part, Tensor) for part in found)


def _is_running(node: Node) -> bool:
    """Whether a buffer's next content is a batch norm's running statistic, which graphc updates by itself."""
    if node.target is not operator.getitem or not isinstance(node.args[0], Node):
        return False
    return str(node.args[0].target) == BATCH_NORM and node.args[1] in (3, 4)


def _needed(results: list[Node]) -> set[Node]:
    """All nodes that these depend on."""
    needed: set[Node] = set()
    waiting = list(results)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    return needed


def _computed(node: Node, found: Mapping[Node, Any]) -> Any:
    """What a node gives whose operands are known."""
    replaced: Any = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda argument: found[argument])
    arguments, options = replaced[0], dict(replaced[1])
    compute: Any = node.target
    if "device" in options:
        options["device"] = "cpu"
    with torch.no_grad():
        return compute(*arguments, **options)
