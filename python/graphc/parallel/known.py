"""What tensors hold that depend on neither weights nor batches, while a model is captured: those that it makes, and fixed buffers.

Models branch on such tensors: whether all places of a mask are seen, whether a first position is 0, whether a random number is below a
probability of 0. These branches go the same way at each step, and so they are no branches of the graph.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from ..command import Error
from .checks import passed_check
from .data import GIVEN, PUT, data_of, replace_data_
from .drawn import GREATEST, LEAST, SAID, Drawn
from .finite import Finite
from .gradients import DERIVED
from .otherwise import OTHERWISE
from .selected import Extent, Selected

MOST_ELEMENTS = 1 << 16
"""Elements of the largest tensor whose content is kept."""

MADE = {torch.arange, torch.zeros, torch.ones, torch.full, torch.tensor, torch.eye, torch.linspace, torch.as_tensor}
"""What makes tensors of numbers alone."""

LIKE = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "new_tensor"}
"""What takes of a tensor no more than its type and shape."""

READ: set[Any] = {Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.item, Tensor.tolist}
READ |= {Tensor.__format__, torch.equal, Tensor.equal, torch.allclose, Tensor.allclose, torch.is_nonzero, Tensor.is_nonzero}
"""What asks for the content."""

SIZED = {"arange", "zeros", "ones", "empty", "new_zeros", "new_ones", "new_empty", "view", "reshape", "expand", "repeat"}
"""What takes sizes, which may be tensors of one integer: PyTorch would read them where nothing is known."""

OF_NUMBERS = {"arange", "zeros", "ones", "empty"}
"""Those of them that take nothing but sizes: the others are of a tensor."""

OWN_WAYS = {GIVEN: data_of, PUT: replace_data_}
"""What is computed in the place of functions that PyTorch's graphs do not see."""

ORDERS = {"lt", "le", "gt", "ge", "less", "less_equal", "greater", "greater_equal", "__lt__", "__le__", "__gt__", "__ge__"}
"""Comparisons: what holds for the least and the greatest of random numbers holds for all of them."""

OPERATORS = {"add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"}
"""Those of Python that there are in place as well."""

FAILED = object()
"""What stands for the result of a function that has none on the host."""


def content(tensor: Tensor) -> Tensor | None:
    """What a tensor holds that a model has made while it is captured, where that is known."""
    return next((known for known in (entered.content(tensor) for entered in _ENTERED) if known is not None), None)


_ENTERED: list[Known] = []


class Known(TorchFunctionMode):
    """Keeps what tensors hold while it is entered, and says it to whoever branches on it."""

    def __init__(self, buffers: Iterable[tuple[Tensor, Tensor]] = ()) -> None:
        """What buffers hold is known, each of which stands beside its content, and nothing else."""
        super().__init__()
        self._contents: Any = WeakIdKeyDictionary()
        self._buffers = list(buffers)
        self._of_buffers: Any = WeakIdKeyDictionary()
        """What depends on a buffer."""
        self._relies_on_buffers = False
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            for buffer, content in self._buffers:
                self._contents[buffer], self._of_buffers[buffer] = content.clone(), True
        self._random: Any = WeakIdKeyDictionary()
        """Random numbers; ``False`` stands at comparisons with them that may hold or not."""
        self._selected, self._finite = Selected(), Finite()

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        """Computes as PyTorch does, and beside it what is known of the result.

        Raises:
            Error: where a branch depends on random numbers.
        """
        options = options or {}
        if torch._C._meta_in_tls_dispatch_include():
            # PyTorch computes with shapes alone, for itself.
            return function(*arguments, **options)
        if function is Tensor.register_hook:
            raise Error(f"a hook on a tensor changes gradients, {DERIVED}")
        function = OWN_WAYS.get(function, function)
        self._keep_constants(_tensors((arguments, options)))
        if function is torch.nn.functional.pad:
            arguments = (arguments[0], *(self._numbers(part) for part in arguments[1:]))
        if _name(function) in SIZED:
            own = arguments[: _name(function) not in OF_NUMBERS]
            arguments = (*own, *(self._number(part) for part in arguments[len(own) :]))
        if _name(function) in ("__getitem__", "__setitem__") and not (_name(function) == "__setitem__" and _is_one(arguments[2])):
            arguments = (arguments[0], self._with_places(arguments[1]), *arguments[2:])
        if _name(function) == "repeat_interleave":
            function, arguments, options = self._by_places(function, arguments, options)
        loops = self._selected.loops
        loops.begin(pytree.tree_leaves((arguments, dict(options))))
        if function in READ:
            return self._read(function, arguments, options)
        if self._selected.takes(function, arguments, options, self._contents.__contains__):
            found = self._selected.compute(function, arguments, options, lambda own, *given, **more: self._computed(own, given, more))
            # Rows are added, or put back, where their condition holds.
            is_added = _name(function) in ("index_add", "index_add_", "__setitem__")
            if _writes(function, options) and not is_added:
                loops.check_write(arguments[0])
            loops.note(found, lambda tensor: is_added or tensor in self._selected.kept)
            return found
        if _writes(function, options):
            loops.check_write(options.get("out", arguments[0]))
        found = self._computed(function, arguments, options)
        loops.note(found, lambda _: False)
        return found

    def __enter__(self) -> Known:
        """Begins to keep what tensors hold."""
        _ENTERED.append(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        """Ends it."""
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        _ENTERED.remove(self)

    def content(self, tensor: Tensor) -> Tensor | None:
        """A copy of what a tensor holds, where that is known."""
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            found: Tensor | None = self._contents.get(tensor)
            return None if found is None else found.clone()

    def check(self, outputs: Iterable[Tensor]) -> None:
        """Checks what a capture gives.

        Raises:
            Error: where it depends on how many rows a condition selects, or on a buffer that the model changes.
        """
        self._selected.check(outputs)
        changed = [content for buffer, content in self._buffers if not _is_same(self._contents.get(buffer), content)]
        if changed and self._relies_on_buffers:
            raise Error("the model branches on a buffer, and changes one: let what it branches on be a number, or part of the batch")

    def _computed(self, function: Any, arguments: Any, options: Mapping[str, Any]) -> Any:
        found = OTHERWISE.get(function, function)(*arguments, **options)
        if _writes(function, options):
            self._follow(function, arguments, options)
        else:
            self._note(found, function, arguments, options)
        return found

    def _keep_constants(self, operands: Iterable[Tensor]) -> None:
        """Keeps what tensors hold that were made before: they are part of the graph as they are."""
        for operand in operands:
            # Inputs, weights and all that is computed are of other types, by which PyTorch captures.
            is_other = type(operand) is Tensor and operand not in self._contents and not operand.is_meta
            if is_other and operand.numel() <= MOST_ELEMENTS and detect_fake_mode() is not None:
                with _disable_current_modes(), torch._C.DisableTorchFunction():
                    self._contents[operand] = operand.detach().cpu().clone()

    def _number(self, given: Any) -> Any:
        """What a tensor of one known integer holds, or what is given."""
        if isinstance(given, list | tuple):
            return type(given)(self._number(part) for part in given)
        known = isinstance(given, Tensor) and given.dim() == 0 and given in self._contents and not given.is_floating_point()
        return self._read(Tensor.item, (given,), {}) if known else given

    def _with_places(self, index: Any) -> Any:
        """An index in which places stand for masks that are known: how many there are is known too."""
        parts = index if isinstance(index, tuple) else (index,)
        found: list[Any] = []
        for part in parts:
            if isinstance(part, Tensor) and part.dtype == torch.bool and part.dim() > 0 and part in self._contents:
                self._relies_on_buffers = self._relies_on_buffers or part in self._of_buffers
                columns = self._apart(torch.where, (part,), {})
                for column in columns:
                    found.append(torch.tensor(column.tolist(), dtype=torch.int64, device=part.device))
                    self._contents[found[-1]] = column
            else:
                found.append(part)
        return index if len(found) == len(parts) and all(map(operator.is_, found, parts)) else tuple(found)

    def _by_places(self, function: Any, arguments: Any, options: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """A call that takes each element as often as a tensor says, or where that is known one that takes places."""
        given = dict(zip(("self", "repeats", "dim"), arguments, strict=False)) | dict(options)
        repeats = given.get("repeats")
        if not (isinstance(repeats, Tensor) and repeats in self._contents):
            return function, arguments, options
        x = given["self"] if given.get("dim") is not None else given["self"].reshape(-1)
        dim, counts = given.get("dim") or 0, self._read(Tensor.tolist, (repeats,), {})
        counts = counts * x.shape[dim] if isinstance(counts, list) and len(counts) == 1 else counts
        counts = counts if isinstance(counts, list) else [counts] * x.shape[dim]
        places = [place for place, count in enumerate(counts) for _ in range(count)]
        return torch.index_select, (x, dim, torch.tensor(places, dtype=torch.int64, device=x.device)), {}

    def _numbers(self, given: Any) -> Any:
        """Numbers in a list, of which some may be tensors that are known."""
        if not isinstance(given, list | tuple):
            return given
        return type(given)(self._read(Tensor.__int__, (part,), {}) if isinstance(part, Tensor) else part for part in given)

    def _read(self, function: Any, arguments: Any, options: Mapping[str, Any]) -> Any:
        operands = _tensors((arguments, options))
        self._selected.check_read(function, operands)
        if all(operand in self._contents for operand in operands):
            self._relies_on_buffers = self._relies_on_buffers or any(operand in self._of_buffers for operand in operands)
            return self._apart(function, arguments, options)
        if self._finite.answers(operands):
            return self._finite.read(function, operands)
        passed = passed_check(sys._getframe(2))
        if passed is not None and function in (Tensor.__bool__, Tensor.item):
            return passed
        if function is Tensor.item and _is_of_a_list(sys._getframe(2)) and not operands[0].is_floating_point():
            return Extent(operands[0])
        if any(operand in self._random for operand in operands):
            if function is Tensor.item and self._random[operands[0]]:
                return Drawn()
            raise Error(SAID)
        return function(*arguments, **options)

    def _note(self, found: Any, function: Any, arguments: Any, options: Mapping[str, Any]) -> None:
        results, operands = _tensors(found), _tensors((arguments, options))
        self._finite.note(found, function, arguments, options)
        if not results or any(result.numel() > MOST_ELEMENTS for result in results):
            return
        if function is torch.rand:
            self._random[found] = True
        elif any(self._random.get(operand) for operand in operands):
            self._compare(found, function, arguments, options)
        elif self._is_known(function, operands):
            contents = _tensors(self._beside(function, arguments, options))
            if len(contents) == len(results):
                for result, content in zip(results, contents, strict=True):
                    # By `to` the one may be a copy where the other is none.
                    same = any(content is self._contents.get(operand) and result is not operand for operand in operands)
                    self._contents[result] = content.clone() if same else content
                    if any(operand in self._of_buffers for operand in operands):
                        self._of_buffers[result] = True

    def _is_known(self, function: Any, operands: list[Tensor]) -> bool:
        if not operands:
            return function in MADE
        return _name(function) in LIKE or all(operand in self._contents for operand in operands)

    def _compare(self, found: Tensor, function: Any, arguments: Any, options: Mapping[str, Any]) -> None:
        """Keeps what holds for all random numbers."""
        least, greatest = (self._beside(function, arguments, options, end) for end in (LEAST, GREATEST))
        if _name(function) in ORDERS and isinstance(least, Tensor) and isinstance(greatest, Tensor) and torch.equal(least, greatest):
            self._contents[found] = least
        else:
            for result in _tensors(found):
                self._random[result] = False

    def _follow(self, function: Any, arguments: Any, options: Mapping[str, Any]) -> None:
        """Writes to what is known as well, or forgets all that lies in the same memory."""
        targets = [target for target in _tensors(options.get("out", arguments[0])) if target in self._contents]
        is_known = all(operand in self._contents for operand in _tensors((arguments, options)))
        if is_known and self._beside(function, arguments, options) is not FAILED:
            return
        memory = {_memory(self._contents[target]) for target in targets}
        for tensor, content in list(self._contents.items()):
            if _memory(content) in memory:
                del self._contents[tensor]

    def _beside(self, function: Any, arguments: Any, options: Mapping[str, Any], value: float = 0.0) -> Any:
        """What a function gives, or that it fails, or draws random numbers: then nothing is known."""
        if any(isinstance(leaf, torch.Generator) for leaf in pytree.tree_leaves((arguments, dict(options)))):
            return FAILED
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            before = torch.get_rng_state()
            try:
                found = self._apart(function, arguments, options, value)
            except Exception:
                return FAILED
            if not torch.equal(before, torch.get_rng_state()):
                torch.set_rng_state(before)
                return FAILED
        return found

    def _apart(self, function: Any, arguments: Any, options: Mapping[str, Any], value: float = 0.0) -> Any:
        """What a function gives on the host, outside of the capture; tensors that are not known hold this value."""
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            own = [pytree.tree_map(lambda leaf: self._on_host(leaf, value), part) for part in (arguments, dict(options))]
            return function(*own[0], **own[1])

    def _on_host(self, leaf: Any, value: float) -> Any:
        if isinstance(leaf, Tensor):
            return self._contents[leaf] if leaf in self._contents else torch.full(leaf.shape, value, dtype=leaf.dtype)
        is_device = isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf.split(":")[0] in ("cuda", "meta"))
        return torch.device("cpu") if is_device else leaf


def _is_one(value: Any) -> bool:
    """Whether this is one number, which stands wherever a mask holds."""
    return not isinstance(value, Tensor) or value.dim() == 0


def _is_of_a_list(frame: Any) -> bool:
    """Whether PyTorch reads all elements of a tensor one by one, for ``tolist``."""
    frames = (frame, frame.f_back)
    return any(one is not None and one.f_code.co_name == "tolist" and one.f_code.co_filename.endswith("fake_tensor.py") for one in frames)


def _is_same(held: Tensor | None, content: Tensor) -> bool:
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        return held is not None and torch.equal(held, content)


def _tensors(given: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor)]


def _memory(content: Tensor) -> int:
    """Where a tensor's memory begins."""
    return content.untyped_storage().data_ptr()


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", ""))


def _writes(function: Any, options: Mapping[str, Any]) -> bool:
    name = _name(function)
    by_name = name.endswith("_") and not name.endswith("__")
    by_operator = name in ("__setitem__", "__set__") or (name.startswith("__i") and name[3:-2] in OPERATORS)
    return by_name or by_operator or options.get("out") is not None
