"""A module and its loss as one graph of ATen's ops, by ``torch.export``: nothing is computed, and no weight is copied."""

from __future__ import annotations

import contextlib
import inspect
import io
import linecache
import logging
import os
import random
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import UncapturedHigherOrderOpError
from torch.distributions import Distribution
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ..command import Error
from .attributes import Attributes
from .drawn import OTHERS, drawn_by_python
from .gradients import check_gradients, gradients_as_captured
from .known import Known
from .of_distributed import world_of_one
from .of_transformers import transformers_as_captured
from .ops.decompose import decompositions
from .outputs import take_apart
from .refreshed import unrefreshed

Loss = Callable[[Any, Any], Any]
"""The loss of a model's output and the batch that it was given, alone or with whatever else is to be seen of a step."""

Forward = Callable[[nn.Module, Any], Any]
"""What calls a model with a batch."""

LABELS = ("target", "targets", "label", "labels", "y", "y_true")
"""How losses that are modules call what a batch has second."""

PREFIX = "model."
"""What stands before the names of the model's own tensors in a captured graph."""

FOLDER = os.path.join(os.path.dirname(__file__), "")
"""Where this file is, and whatever else of graphc runs while a model is captured."""

IS_EARLY = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 7)
"""Whether this is a PyTorch whose captures are made, and limited, in another way."""

VIEWS = ("aten.view_as.default", "aten.alias.default", "aten.view.default", "graphc.detach.default")
"""Ops that give the same elements."""

KEPT = [
    "linear.default",
    "matmul.default",
    "layer_norm.default",
    "scaled_dot_product_attention.default",
    "cross_entropy_loss.default",
    "mse_loss.default",
    "softmax.int",
    "log_softmax.int",
    "silu.default",
]
"""Ops that are not taken apart: graphc has them whole."""


@torch.library.custom_op("graphc::detach", mutates_args=())  # type: ignore[misc]
def _detach(x: Tensor) -> Tensor:
    """The same numbers, of which nothing is learned. ATen's own op does not survive that ops are taken apart."""
    return x.clone()


@_detach.register_fake  # type: ignore[misc]
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class FixedBuffers:
    """What a model's integers hold that are saved nowhere, so that they are part of what it is."""

    def __init__(self, model: nn.Module) -> None:
        """Those of a model before it is captured."""
        saved = model.state_dict(keep_vars=True)
        self.contents = {
            name: buffer.detach().cpu()
            for name, buffer in model.named_buffers()
            if name not in saved and not buffer.is_meta and not buffer.dtype.is_floating_point and not buffer.is_complex()
        }

    def beside(self, model: nn.Module) -> list[tuple[Tensor, Tensor]]:
        """The buffers as they are while it is captured, and their contents."""
        return [(buffer, self.contents[name]) for name, buffer in model.named_buffers() if name in self.contents]


class Traced(nn.Module):
    """A model and its loss."""

    def __init__(self, model: nn.Module, loss: Loss | None, call: Forward, keep: Callable[[Any], None]) -> None:
        """Both; without a loss the model's output has one. The form of what the loss has beside it is given away."""
        super().__init__()
        self.model, self.keep, self.fixed, self.attributes = model, keep, FixedBuffers(model), Attributes()
        # In a list it is no part of the module, and its buffers are known values.
        self.losses, self.call = [loss], call

    def forward(self, batch: Any) -> tuple[Tensor, ...]:
        """The loss of a batch, and the tensors of what stands beside it."""
        with Known(self.fixed.beside(self.model)) as known, _drawn_by_torch(), self.attributes.watched(self.model):
            found, beside = self._loss(batch)
        form, tensors = take_apart(beside)
        known.check([found, *tensors])
        self.keep(form)
        return found, *tensors

    def _loss(self, batch: Any) -> tuple[Tensor, Any]:
        output = self.call(self.model, batch)
        found: Any = output
        beside: Any = None
        loss = self.losses[0]
        if loss is not None:
            found = loss(output, batch[1] if is_criterion(loss) or _takes_labels(loss, batch) else batch)
            found, beside = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        elif not isinstance(output, Tensor):
            found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if not isinstance(found, Tensor):
            advice = "give parallelize a loss of the output and the batch"
            raise Error(f"the loss is {type(found).__name__}, of an output that is {type(output).__name__}: {advice}")
        return found, beside


class Predicted(nn.Module):
    """A model whose output is taken apart into tensors."""

    def __init__(self, model: nn.Module, call: Forward, keep: Callable[[Any], None]) -> None:
        """Of a model; the form of its output is given away, as PyTorch undoes what a module says of itself while it is captured."""
        super().__init__()
        self.model, self.call, self.keep, self.fixed, self.attributes = model, call, keep, FixedBuffers(model), Attributes()

    def forward(self, batch: Any) -> tuple[Tensor, ...]:
        """The tensors of the output."""
        with Known(self.fixed.beside(self.model)) as known, _drawn_by_torch(), self.attributes.watched(self.model):
            output = self.call(self.model, batch)
        form, tensors = take_apart(output)
        known.check(tensors)
        self.keep(form)
        if not tensors:
            raise Error("the output of the model has no tensors")
        return tuple(tensors)


def output_of(model: nn.Module, batch: Any) -> Any:
    """What a model makes of a batch: names are arguments, of several tensors the first is the input and the others are the loss's."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch[0] if isinstance(batch, tuple | list) else batch)


def is_criterion(loss: Loss) -> bool:
    """Whether a loss is one of ``torch.nn``, which takes an output and the labels that stand second in a batch of two."""
    return isinstance(loss, nn.Module) and type(loss).__module__ == "torch.nn.modules.loss"


def _takes_labels(loss: Loss, batch: Any) -> bool:
    """Whether a loss of another package is called as one of ``torch.nn`` is, with the labels of a pair."""
    if not isinstance(loss, nn.Module) or not isinstance(batch, tuple | list) or len(batch) != 2:
        return False
    # Some have no `forward`, and write what calls them instead.
    called = loss if type(loss).forward is nn.Module.forward else loss.forward
    return any(name in LABELS for name in [*inspect.signature(called).parameters][1:2])


def check(model: nn.Module, loss: Loss | None, batch: Any) -> None:
    """Checks what a plan is to be made of.

    Raises:
        Error: where a wrapper stands around the model, a norm has a mean over all batches, the loss has weights, or a criterion finds no
            labels.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise Error(f"the model is in {type(model).__name__}, and a plan divides the work itself: give model.module")
    if any(type(parameter).__name__ == "DTensor" for parameter in model.parameters()):
        raise Error(
            "the model's parameters are DTensors, as fully_shard leaves them, and a plan lays them out itself: give the model as it was"
        )
    check_gradients(model)
    for name, part in model.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training and part.track_running_stats and part.momentum is None:
            raise Error(f"`{name or type(part).__name__}` has a mean over all batches, which graphc has not: give it a momentum, not None")
    if isinstance(loss, nn.Module) and any(True for _ in loss.parameters()):
        raise Error(
            f"the loss {type(loss).__name__} has parameters: make it a part of the model, so that they are trained and saved with it"
        )
    if loss is not None and is_criterion(loss) and not (isinstance(batch, tuple | list) and len(batch) == 2):
        advice = "give `lambda output, batch: criterion(output, ...)`"
        raise Error(f"{type(loss).__name__} takes an output and labels, and a batch is no pair of inputs and labels: {advice}")


def capture(traced: Traced | Predicted, batch: Any) -> ExportedProgram:
    """The graph of a loss, or of an output.

    Raises:
        Error: where PyTorch cannot export it, with the line where it stands.
    """
    # Before 2.7 what `export` gives is not fit to be trained.
    exporter = torch.export.export_for_training if IS_EARLY else torch.export.export
    table = torch.export.default_decompositions()
    for name in KEPT:
        packet, overload = name.split(".")
        table.pop(getattr(getattr(torch.ops.aten, packet), overload), None)
    table.update(decompositions())
    try:
        with ExitStack() as stack:
            ways = (_quiet(), transformers_as_captured(batch), gradients_as_captured(), world_of_one(), _distributions_unchecked())
            for way in (*ways, _plain_buffers(traced), _conversions_to_the_same(), unrefreshed()):
                stack.enter_context(way)
            program: ExportedProgram = exporter(traced, (batch,), strict=False)
            for module in [part for part in program.graph_module.modules() if isinstance(part, GraphModule)]:
                mark_detached(module)
                if IS_EARLY:
                    _check_frozen_stay(module)
            whole: ExportedProgram = program.run_decompositions(table)
            name_loss(whole, traced.losses[0] if isinstance(traced, Traced) else None)
            return whole
    except Error as error:
        raise Error(_placed(str(error), error)) from error
    except Exception as error:
        raise Error(f"torch.export cannot capture the model: {_reason(error)}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Lets an error be the only message: PyTorch warns, logs, and prints whole graphs where it fails. ``TORCH_LOGS`` shows them."""
    if os.environ.get("TORCH_LOGS"):
        yield
        return
    said, log = io.StringIO(), logging.getLogger(symbolic_shapes.__name__)
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(said):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
    # Where nothing fails it is the model's.
    sys.stderr.write(said.getvalue())


@contextmanager
def _conversions_to_the_same() -> Iterator[None]:
    """Lets modules convert a part to the type that it has: PyTorch would put other parameters in the place of its own."""
    own: Any = nn.Module.to

    def convert(module: nn.Module, *arguments: Any, **options: Any) -> nn.Module:
        device, dtype, *_ = torch._C._nn._parse_to(*arguments, **options)
        parts = [*module.parameters(), *module.buffers()]
        same = all(device in (None, part.device) and (dtype in (None, part.dtype) or not part.is_floating_point()) for part in parts)
        found: nn.Module = module if same else own(module, *arguments, **options)
        return found

    nn.Module.to = convert  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        nn.Module.to = own  # type: ignore[method-assign]


@contextmanager
def _drawn_by_torch() -> Iterator[None]:
    """Checks that random numbers are PyTorch's: others would be drawn once, and be the same at each step.

    Raises:
        Error: where they are not.
    """
    before = _other_generators()
    with drawn_by_python():
        yield
    if _other_generators() != before:
        raise Error(OTHERS)


def _other_generators() -> tuple[Any, ...]:
    numpy: Any = sys.modules.get("numpy")
    state = () if numpy is None else numpy.random.get_state()
    return random.getstate(), *(part if isinstance(part, str | int | float) else part.tobytes() for part in state)


@contextmanager
def _plain_buffers(module: nn.Module) -> Iterator[None]:
    """Lets buffers that are parameters be plain tensors, as PyTorch's graphs cannot hold them otherwise."""
    found = [(part, name, own) for part in module.modules() for name, own in part._buffers.items() if isinstance(own, nn.Parameter)]
    for part, name, own in found:
        part._buffers[name] = own.data
    try:
        yield
    finally:
        for part, name, own in found:
            part._buffers[name] = own


@contextmanager
def _distributions_unchecked() -> Iterator[None]:
    """Lets distributions take numbers as they are: whether they make sense is no part of a graph."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


def name_loss(program: ExportedProgram, loss: Loss | None) -> None:
    """Says of what was captured in a loss that it stands there: PyTorch keeps the lines of modules alone."""
    code = getattr(loss, "__code__", None)
    if code is None:
        return
    text = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    for node in program.graph.nodes:
        trace = str(node.meta.get("stack_trace") or "")
        in_a_module = len(node.meta.get("nn_module_stack") or ()) > 1
        if (
            not in_a_module
            and f'File "{__file__}"' in trace
            and not any(_is_of_user(file) for file in re.findall(r'File "([^"]+)"', trace))
        ):
            node.meta["stack_trace"] = f'File "{code.co_filename}", line {code.co_firstlineno}, in the loss\n    {text}'


def mark_detached(module: GraphModule) -> None:
    """Puts an op that stays in the place of what ends gradients: ``detach`` and ``no_grad``.

    Raises:
        Error: where what is detached is written to.
    """
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten.detach.default:
            _check_not_written(node)
            node.target = torch.ops.graphc.detach.default
        elif str(node.target) == "wrap_with_set_grad_enabled" and node.args[0] is False:
            for item in [user for user in node.users if user.op == "call_function"]:
                _detach_item(module, item)
    module.recompile()


def _detach_item(module: GraphModule, item: Node) -> None:
    value = item.meta.get("val")
    if not isinstance(value, Tensor) or not value.dtype.is_floating_point:
        return
    with module.graph.inserting_after(item):
        detached = module.graph.call_function(torch.ops.graphc.detach.default, (item,))
    detached.meta = dict(item.meta)
    item.replace_all_uses_with(detached, delete_user_cb=lambda user: user is not detached)


def _writes(node: Node) -> bool:
    """Whether an op writes to its first argument."""
    return str(node.target).split(".")[-2:][0].endswith("_")


def _check_not_written(node: Node) -> None:
    for user in node.users:
        if _writes(user) and user.args[0] is node:
            source = node.args[0]
            if isinstance(source, Node) and source.op == "placeholder" and source.name.startswith("p_"):
                raise Error(f"{place_of(user)} writes to a parameter, which the optimizer changes: compute with a changed copy of it")
            raise Error(f"{place_of(user)} writes to a tensor that was detached: detach a clone of it")


def _check_frozen_stay(module: GraphModule) -> None:
    """Checks that nothing is written to a parameter, which PyTorch before 2.7 cannot capture even of frozen ones.

    Raises:
        Error: where something is.
    """
    for node in module.graph.nodes:
        if _writes(node):
            source = node.args[0]
            while isinstance(source, Node) and str(source.target) in VIEWS:
                source = source.args[0]
            if isinstance(source, Node) and source.op == "placeholder" and source.name.startswith("p_"):
                advice = "update it, or let them be buffers"
                raise Error(f"{place_of(node)} writes to a parameter, and PyTorch before 2.7 captures no frozen ones that change: {advice}")


def place_of(node: Node) -> str:
    """The op of a node, and the line of the model where it stands."""
    op = str(node.target)
    trace = str(node.meta.get("stack_trace") or "")
    lines = re.findall(r'File "([^"]+)", line (\d+), in (.+)\n\s*(.*)', trace)
    own = [line for line in lines if _is_of_user(line[0])] or [line for line in lines if not line[0].startswith("<")]
    if not own:
        return f"{op} (its place in the model is not known)"
    file, number, function, text = own[-1]
    return f'{op} ({file}, line {number}, in {function}: "{text.strip()}")'


def _is_of_user(file: str) -> bool:
    """Whether a file is neither PyTorch's nor of this folder nor what stands between them, and lies somewhere at all."""
    return "/torch/" not in file and not file.startswith((FOLDER, "<")) and file != contextlib.__file__


def _reason(error: Exception) -> str:
    """What PyTorch says, in one line, with the line of the model where it says one."""
    text = str(error).strip()
    first = text.split("\n")[0] or type(error).__name__
    if isinstance(error, GuardOnDataDependentSymNode):
        what = "a branch, a shape, or a number as `int(x)` gives it, depends on what a tensor holds, which is not known before a step"
        queue = "torch.cat([new, queue[:-len(new)]]) in the place of a queue with a pointer"
        first = f"{what}: use torch.where, or torch.gather at the places that the tensor holds, or {queue}"
    if first.startswith("a leaf Variable that requires grad"):
        first = "it writes to a parameter, which the optimizer changes: compute with a changed copy of it"
    if "is mutated in the forward method" in first or "to have an entirely functional graph" in first:
        first = "it writes to a tensor that it keeps and that is no buffer: register it (register_buffer)"
    if isinstance(error, UncapturedHigherOrderOpError):
        first = "this is a branch or a loop that depends on data, which graphc has not: leave it out of the model"
    return _placed(first, error, re.findall(r'File "([^"]+)", line (\d+), in \S+', text))


def _placed(said: str, error: Exception, lines: Iterable[tuple[str, Any]] = ()) -> str:
    """What is wrong, and the line of the model in which it is, where it does not say one."""
    called = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    own = [line for line in (*lines, *called) if _is_of_user(line[0]) and line[0] != __file__]
    return f"{said} ({own[-1][0]}, line {own[-1][1]})" if own and ", line " not in said else said
