"""Rows that a condition selects, of which there are as many as it holds for: computed for all, and put back where it holds.

Layers of experts, written as loops, look up the rows of each expert, or sort and split rows by experts, compute them, and put them to
their places. How many rows there are depends on data, but what comes of it does not: here all rows are computed, and where they are put
back zeros stand for those that are not selected. That holds for what is computed row by row. All else that is done with them is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from ..command import Error
from .checks import passed_check
from .connectionist import to_the_left
from .loops import WHY, Loops, Places
from .recorded import Unknown

ROW_BY_ROW = {
    "add", "sub", "mul", "div", "true_divide", "neg", "pow", "square", "exp", "log", "tanh", "sigmoid", "erf", "sqrt", "rsqrt", "abs",
    "sin", "cos", "relu", "gelu", "silu", "mish", "elu", "softplus", "hardtanh", "leaky_relu", "clamp", "to", "float", "type",
    "type_as", "contiguous", "clone", "detach", "rsub", "__rsub__", "__add__", "__radd__", "__mul__", "__rmul__", "__sub__", "__neg__",
    "__pow__", "__truediv__", "dropout", "linear",
    "matmul", "__matmul__", "mm",
}  # fmt: skip
"""Functions of which each row of a result depends on the same row of the operands alone, and whose rows stay the first dim."""

ALONG = {
    "max", "min", "amax", "amin", "argmax", "argmin", "sum", "mean", "var", "std", "norm", "prod", "cumsum", "softmax", "log_softmax",
    "logsumexp", "normalize", "unsqueeze", "squeeze", "gather",
}  # fmt: skip
"""Functions along dims, row by row where the first is none of them: the names of what says which are `dim`, behind the rows."""

IN_PLACE = {"relu_", "add_", "sub_", "mul_", "div_", "__iadd__", "__isub__", "__imul__", "__itruediv__"}
"""Those that write to their first operand."""

PRODUCTS = {"linear", "matmul", "__matmul__", "mm"}
"""Products of rows, which are those of a first operand, with a matrix."""

LOSSES = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits"}
"""Losses of each element by itself, which are reduced as they say."""

SAID = {"__get__", "dim", "is_floating_point", "is_complex"}
"""What asks about a tensor and computes nothing."""

Run = Callable[..., Any]
"""What computes a function, and keeps what is known of it."""


@dataclass(eq=False)
class Selection:
    """A condition, of whatever shape, and which of its elements hold."""

    mask: Tensor
    parts: tuple[Selection, ...] = ()
    """All parts of what was split, if this is one of them."""
    within: Selection | None = None
    """A condition of one element that holds where any of these does."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the condition."""
        return tuple(self.mask.shape)


@dataclass(frozen=True)
class Column:
    """The places along one dim of a condition at which it holds, as ``torch.where`` gives them."""

    selection: Selection
    dim: int


@dataclass(frozen=True)
class Rows:
    """One row for each element of a condition, behind this many dims of extent 1."""

    selection: Selection
    leading: int


class Extent(Unknown):
    """A number that a list was made of, as of how many rows there are: nothing is known of it before a step."""

    def __init__(self, value: Tensor) -> None:
        """The number that this tensor holds."""
        super().__init__("the model computes with numbers that it reads of a tensor, which are not known before a step: use the tensor")
        self.value = value


class Amount(Unknown):
    """How many elements rows have, which depends on data. What it is compared with may be part of a check, and of nothing else."""

    def __init__(self) -> None:
        """Of rows that a condition selects."""
        super().__init__(str(_refused("a branch or a number is made")))

    def _compared(self, _: object) -> Any:
        return Comparison(self.said)

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _compared
    __hash__ = Unknown._refuse


class Comparison(Unknown):
    """Whether there are as many elements as another number says."""

    def __bool__(self) -> bool:  # type: ignore[override]
        """What lets a check pass that does no more than to raise.

        Raises:
            Error: where it is no check.
        """
        passed = passed_check(sys._getframe(1))
        return bool(self._refuse()) if passed is None else passed


@dataclass(frozen=True)
class Number:
    """A number that is there where a condition of one element holds."""

    selection: Selection


class Selected:
    """What is known to be selected while a model is captured."""

    def __init__(self) -> None:
        """Nothing."""
        self.kept: Any = WeakIdKeyDictionary()
        self.loops = Loops()
        self._selections: Any = WeakIdKeyDictionary()
        """The selection of each mask that has taken rows, and which version of it."""

    def takes(self, function: Any, arguments: Any, options: Mapping[str, Any], is_known: Callable[[Tensor], bool]) -> bool:
        """Whether a function selects, or is given what was selected."""
        if _name(function) in ("where", "nonzero") and len(arguments) == 1:
            return not is_known(arguments[0])
        if _name(function) == "masked_select":
            return not is_known(arguments[1])
        by_mask = (_is_mask_taken, _is_mask_filled, _is_mask_spread)
        if any(is_so(function, arguments) for is_so in by_mask) and not is_known(arguments[1]):
            return True
        if any(isinstance(leaf, Extent) for leaf in pytree.tree_leaves((arguments, dict(options)))):
            return True
        return bool(self.kept) and any(isinstance(leaf, Tensor) and leaf in self.kept for leaf in pytree.tree_leaves((arguments, options)))

    def compute(self, function: Any, arguments: Any, options: Mapping[str, Any], run: Run) -> Any:
        """What a function gives.

        Raises:
            Error: where it would depend on how many rows there are.
        """
        name = _name(function)
        if name == "masked_select" and arguments[0].shape == arguments[1].shape:
            return self._masked(arguments[0], arguments[1], run)
        if any(isinstance(leaf, Extent) for leaf in pytree.tree_leaves((arguments, dict(options)))):
            return self._split(name, arguments, options, run)
        if name in ("where", "nonzero") and len(arguments) == 1:
            return self._select(arguments[0], name == "where" or bool(options.get("as_tuple")), run)
        marks = {id(leaf): self.kept[leaf] for leaf in pytree.tree_leaves((arguments, options)) if _is_in(leaf, self.kept)}
        if _is_mask_taken(function, arguments) and not marks:
            return self._masked(arguments[0], arguments[1], run)
        if name in ("numel", "nelement"):
            return Amount()
        if _is_mask_filled(function, arguments) and not marks:
            self._fill(arguments[0], arguments[1], arguments[2], run)
            return None
        if _is_mask_spread(function, arguments) and not marks:
            self._spread(arguments[0], arguments[1], arguments[2], run)
            return None
        if name in SAID and _owner(function) != "shape":
            return function(*arguments, **options)
        if name in ("__iter__", "unbind") and isinstance(self.kept[arguments[0]], Column):
            return self._numbers(arguments[0], run)
        if name == "__setitem__" and self._put(arguments, run):
            return None
        found = self._computed(name, function, arguments, options, marks, run)
        if found is None:
            raise _refused(f"`{_owner(function) if name == '__get__' else name.strip('_')}` is computed")
        return found

    def check(self, tensors: Iterable[Tensor]) -> None:
        """Checks that what is read, or given back, does not depend on how many rows there are.

        Raises:
            Error: where it does.
        """
        outputs = list(tensors)
        if any(tensor in self.kept for tensor in outputs):
            raise _refused("an output is made")
        self.loops.check(outputs)

    def check_read(self, function: Any, tensors: Iterable[Tensor]) -> None:
        """Checks that a content may be known: that of one place may be the name or the number of a part of the module.

        Raises:
            Error: where it may not.
        """
        names = function in (Tensor.__format__, Tensor.__index__, Tensor.__int__)
        if any(tensor in self.kept and not (names and isinstance(self.kept[tensor], Number)) for tensor in tensors):
            raise _refused("a branch or a number is made")

    def _select(self, condition: Tensor, as_tuple: bool, run: Run) -> Any:
        """The places at which a condition holds: those of all elements, of which it is kept which hold."""
        number = self.kept.get(condition)
        mask = run(torch.ne, condition, 0)
        if isinstance(number, Number):
            mask = run(torch.logical_and, mask, number.selection.mask)
        elif number is not None:
            raise Error("a condition that selects is made of rows that another one selects: combine both before")
        selection = Selection(mask, within=number.selection if isinstance(number, Number) else None)
        columns = []
        for dim, extent in enumerate(condition.shape):
            view = [extent if other == dim else 1 for other in range(condition.dim())]
            places = run(Tensor.reshape, run(torch.arange, extent), view)
            columns.append(run(Tensor.reshape, run(Tensor.expand, places, list(condition.shape)), [-1]))
            self.kept[columns[-1]] = Column(selection, dim)
        if as_tuple:
            return tuple(columns)
        if len(columns) != 1:
            raise Error("nonzero gives the places of several dims at once, which depend on data: use torch.where(condition)")
        whole = run(Tensor.unsqueeze, columns[0], 1)
        self.kept[whole] = Column(selection, 0)
        return whole

    def _split(self, name: str, arguments: Any, options: Mapping[str, Any], run: Run) -> tuple[Tensor, ...]:
        """Parts of as many rows as data say: all rows, of which it is kept which belong to each."""
        extents: Any = arguments[1] if len(arguments) > 1 else None
        whole = isinstance(extents, list) and all(isinstance(extent, Extent) for extent in extents)
        if name != "split" or not whole or options.get("dim", arguments[2] if len(arguments) > 2 else 0) != 0 or arguments[0] in self.kept:
            raise _refused(f"`{name.strip('_')}` is computed")
        x = arguments[0]
        places, end, selections = run(torch.arange, x.shape[0]), torch.zeros((), dtype=torch.int64, device=x.device), []
        for extent in extents:
            begin, end = end, run(torch.add, end, extent.value)
            selections.append(Selection(run(torch.logical_and, run(torch.ge, places, begin), run(torch.lt, places, end))))
        for selection in selections:
            selection.parts = tuple(selections)
        return tuple(self._mark(run(Tensor.view, x, list(x.shape)), Rows(selection, 0)) for selection in selections)

    def _joined(self, arguments: Any, options: Mapping[str, Any], run: Run) -> Any:
        """All parts of what was split, one behind the other: each row is that of its part."""
        parts = list(arguments[0])
        rows = [self.kept.get(part) for part in parts]
        first = rows[0]
        is_first_dim = options.get("dim", arguments[1] if len(arguments) > 1 else 0) == 0
        if not isinstance(first, Rows) or not is_first_dim or [Rows(selection, 0) for selection in first.selection.parts] != rows:
            return None
        found = run(torch.zeros_like, parts[0])
        for part, own in zip(parts, first.selection.parts, strict=True):
            found = run(torch.where, run(Tensor.reshape, own.mask, [-1, *([1] * (part.dim() - 1))]), part, found)
        return found

    def _numbers(self, places: Tensor, run: Run) -> Any:
        """The places one by one, each of which is there if its element holds."""
        selection = self.kept[places].selection
        found = []
        for number in range(places.shape[0]):
            one = run(Tensor.__getitem__, places, number)
            self.kept[one] = Number(Selection(run(Tensor.__getitem__, selection.mask, number)))
            found.append(one)
        return Places(self.loops, found)

    def _computed(self, name: str, function: Any, arguments: Any, options: Mapping[str, Any], marks: Mapping[int, Any], run: Run) -> Any:
        first = marks.get(id(arguments[0])) if arguments else None
        if all(isinstance(mark, Number) for mark in marks.values()):
            return self._of_number(function, arguments, options, marks, run)
        if name == "__getitem__" and first is None:
            return self._taken(arguments[0], arguments[1], run)
        if name in ("index_add_", "index_add") and first is None:
            return self._added(name, arguments, options, run)
        if name in ("index_fill_", "index_fill") and first is None:
            return self._filled(name, arguments, options, run)
        if name in ("squeeze", "flatten", "ravel", "view", "reshape") and isinstance(first, Column):
            found = run(function, *arguments, **options)
            return self._mark(found, first) if found.dim() == 1 else None
        if not isinstance(first, Rows) and not any(isinstance(mark, Rows) for mark in marks.values()):
            return None
        if name in ALONG and isinstance(first, Rows) and not first.leading:
            found = self._along(name, function, arguments, options, marks, run)
            if found is not None:
                return found
        if name in ("sum", "mean") and isinstance(first, Rows):
            return self._reduced(name, arguments[0], first, _given(("self", "dim", "keepdim"), arguments, options), run)
        if name == "cross_entropy":
            return self._told_apart(function, arguments, options, run)
        if name in LOSSES:
            return self._lost(name, function, arguments, options, run)
        if name == "cat":
            return self._joined(arguments, options, run)
        if name == "ctc_loss" and len(marks) == 1:
            return self._classified(function, arguments, options, run)
        if name in ("reshape", "view") and isinstance(first, Rows):
            return self._reshaped(arguments, first, run)
        return self._row_by_row(name, function, arguments, options, marks, run)

    def _of_number(self, function: Any, arguments: Any, options: Mapping[str, Any], marks: Mapping[int, Any], run: Run) -> Any:
        """What is computed of numbers of one condition, which is there if they are."""
        selections = {id(mark.selection): mark.selection for mark in marks.values()}
        found = run(function, *arguments, **options)
        if len(selections) == 1:
            for part in pytree.tree_leaves(found):
                if isinstance(part, Tensor):
                    self.kept[part] = Number(*selections.values())
        return found if len(selections) == 1 else None

    def _taken(self, x: Tensor, index: Any, run: Run) -> Any:
        """The rows of a tensor at the places of a selection: those at all places, without looking them up."""
        parts = list(index) if isinstance(index, tuple) else [index]
        leading = 0
        while parts and parts[0] is None:
            leading, parts = leading + 1, parts[1:]
        trailing = 0
        while parts and parts[-1] is None:
            trailing, parts = trailing + 1, parts[:-1]
        kept = [self.kept.get(part) if isinstance(part, Tensor) else None for part in parts]
        columns = [column for column in kept if isinstance(column, Column)]
        if not columns or len(columns) != len(kept):
            return None
        selection, dims = columns[0].selection, [column.dim for column in columns]
        extents = [selection.shape[dim] for dim in dims]
        alike = all(column.selection is selection for column in columns) and len(set(dims)) == len(dims)
        if not alike or list(x.shape[: len(dims)]) != extents:
            return None
        order = sorted(range(len(dims)), key=lambda place: dims[place])
        found = run(Tensor.permute, x, [*order, *range(len(dims), x.dim())]) if order != list(range(len(dims))) else x
        rest = list(x.shape[len(dims) :])
        view = [extent if dim in dims else 1 for dim, extent in enumerate(selection.shape)]
        found = run(Tensor.expand, run(Tensor.reshape, found, [*view, *rest]), [*selection.shape, *rest])
        # Rows are a copy, which may be written to.
        found = run(torch.clone, run(Tensor.reshape, found, [*([1] * leading), -1, *rest, *([1] * trailing)]))
        return self._mark(found, Rows(selection, leading))

    def _masked(self, x: Tensor, mask: Tensor, run: Run) -> Tensor:
        """The rows of a tensor for which a mask holds; for the others stand such as nothing goes wrong with."""
        version, selection = self._selections.get(mask, (None, None))
        if selection is None or version != mask._version:
            selection = Selection(run(torch.logical_and, mask, mask))
            self._selections[mask] = (mask._version, selection)
        harmless = 1.0 if x.is_floating_point() else 0
        rest = list(x.shape[mask.dim() :])
        found = run(torch.where, run(Tensor.reshape, selection.mask, [*mask.shape, *([1] * len(rest))]), x, harmless)
        return self._mark(run(Tensor.reshape, found, [-1, *rest]), Rows(selection, 0))

    def _reduced(self, name: str, x: Tensor, rows: Rows, given: Mapping[str, Any], run: Run) -> Any:
        """The sum or the mean of rows, of which those count that are selected."""
        dim, whole = given.get("dim"), list(range(x.dim()))
        dims = whole if dim in (None, (), []) else [one % x.dim() for one in (dim if isinstance(dim, list | tuple) else [dim])]
        if rows.leading or 0 not in dims or given.keys() - {"self", "dim", "keepdim"}:
            return None
        mask = run(Tensor.reshape, rows.selection.mask, [-1, *([1] * (x.dim() - 1))])
        total = run(torch.sum, run(torch.where, mask, x, 0.0 if x.is_floating_point() else 0), dims, bool(given.get("keepdim", False)))
        if name == "sum":
            return total
        width = torch.Size([x.shape[one] for one in dims if one != 0]).numel()
        return run(torch.div, total, run(torch.mul, run(torch.sum, run(Tensor.to, rows.selection.mask, x.dtype)), width))

    def _along(self, name: str, function: Any, arguments: Any, options: Mapping[str, Any], marks: Mapping[int, Any], run: Run) -> Any:
        """What is computed along other dims than that of rows, which stay the first one."""
        x, dim = arguments[0], options.get("dim", arguments[1] if len(arguments) > 1 else None)
        if name in ("norm", "normalize"):
            dim = options.get("dim", arguments[2] if len(arguments) > 2 else 1 if name == "normalize" else None)
        dims = list(dim) if isinstance(dim, list | tuple) else [dim]
        extents = x.dim() + (name == "unsqueeze")
        if not dims or not all(type(one) is int and one % extents for one in dims) or len({*marks.values()}) != 1:
            return None
        if len(marks) != (2 if name == "gather" else 1):
            return None
        found = run(function, *arguments, **options)
        for part in pytree.tree_leaves(found):
            self._mark(part, self.kept[x])
        return found

    def _filled(self, name: str, arguments: Any, options: Mapping[str, Any], run: Run) -> Any:
        """One number at the places of a condition along a dim."""
        given = _given(("self", "dim", "index", "value"), arguments, options)
        x, dim, index, value = (given.get(key) for key in ("self", "dim", "index", "value"))
        column = self.kept.get(index) if isinstance(index, Tensor) else None
        if not isinstance(column, Column) or not isinstance(x, Tensor) or type(dim) is not int or isinstance(value, Tensor):
            return None
        if column.selection.shape != (x.shape[dim],) or value is None:
            return None
        self._check_rounds(column.selection)
        view = [-1 if other == dim % x.dim() else 1 for other in range(x.dim())]
        found = run(torch.where, run(Tensor.reshape, column.selection.mask, view), value, x)
        return run(Tensor.copy_, x, found) if name.endswith("_") else found

    def _lost(self, name: str, function: Any, arguments: Any, options: Mapping[str, Any], run: Run) -> Any:
        """A loss of rows: those of each element, reduced."""
        reduction = options.get("reduction", "mean")
        marks = {id(part): self.kept[part] for part in arguments if _is_in(part, self.kept)}
        if len(arguments) != 2 or len(marks) != len({id(part) for part in arguments}) or options.get("weight") is not None:
            return None
        each = self._row_by_row(name, function, arguments, {**options, "reduction": "none"}, marks, run)
        return each if each is None or reduction == "none" else self._reduced(reduction, each, self.kept[each], {}, run)

    def _told_apart(self, function: Any, arguments: Any, options: Mapping[str, Any], run: Run) -> Any:
        """Cross entropy of rows: labels of those that are not selected are ignored."""
        if len(arguments) != 2 or options.get("reduction", "mean") == "none":
            return None
        scores, labels = arguments
        rows = self.kept.get(labels)
        if not isinstance(rows, Rows) or self.kept.get(scores) != rows or rows.leading or labels.is_floating_point():
            return None
        mask = run(Tensor.reshape, rows.selection.mask, [-1, *([1] * (labels.dim() - 1))])
        return run(function, scores, run(torch.where, mask, labels, options.get("ignore_index", -100)), **options)

    def _added(self, name: str, arguments: Any, options: Mapping[str, Any], run: Run) -> Any:
        """Rows that are added up at their places, without those that are not selected."""
        given = _given(("self", "dim", "index", "source"), arguments, options)
        x, dim, index, source = (given.get(key) for key in ("self", "dim", "index", "source"))
        column, rows = (self.kept.get(part) if isinstance(part, Tensor) else None for part in (index, source))
        if not (isinstance(column, Column) and isinstance(rows, Rows) and isinstance(x, Tensor) and isinstance(source, Tensor)):
            return None
        alike = rows.selection is column.selection and rows.leading == 0 and x.shape[0] == column.selection.shape[column.dim]
        if dim != 0 or not alike or given.get("alpha", 1) != 1:
            return None
        self._check_rounds(column.selection)
        rest, shape = list(source.shape[1:]), column.selection.shape
        mask = run(Tensor.reshape, column.selection.mask, [*shape, *([1] * len(rest))])
        whole = run(torch.where, mask, run(Tensor.reshape, source, [*shape, *rest]), 0.0)
        others = [dim for dim in range(len(shape)) if dim != column.dim]
        whole = run(torch.sum, whole, others) if others else whole
        return run(Tensor.add_ if name.endswith("_") else torch.add, x, whole)

    def _put(self, arguments: Any, run: Run) -> bool:
        """Writes rows to the places of their own condition, or one number; whether that could be done."""
        x, index, value = arguments
        mark = self.kept.get(value) if isinstance(value, Tensor) else None
        selection = self._selection_of(index)
        is_one = mark is None and (not isinstance(value, Tensor) or value.dim() == 0)
        if selection is None or x in self.kept or x.shape[: len(selection.shape)] != selection.mask.shape:
            return False
        if not is_one and mark != Rows(selection, 0):
            return False
        self._check_rounds(selection)
        rest = list(x.shape[len(selection.shape) :])
        if not is_one:
            if list(value.shape[1:]) != rest:
                return False
            value = run(Tensor.reshape, value, [*selection.shape, *rest])
        mask = run(Tensor.reshape, selection.mask, [*selection.shape, *([1] * len(rest))])
        run(Tensor.copy_, x, run(torch.where, mask, value, x))
        return True

    def _fill(self, x: Tensor, mask: Tensor, value: Tensor, run: Run) -> None:
        """Writes one row to all places at which a mask holds."""
        self.loops.check_write(x)
        mask = run(Tensor.reshape, mask, [*mask.shape, *([1] * (x.dim() - mask.dim()))])
        run(Tensor.copy_, x, run(torch.where, mask, run(Tensor.to, value, x.dtype), x))

    def _spread(self, x: Tensor, mask: Tensor, rows: Tensor, run: Run) -> None:
        """Writes rows to the places at which a mask holds, in their order: there are as many, or PyTorch would not do it."""
        self.loops.check_write(x)
        whole = run(Tensor.expand, run(Tensor.reshape, mask, [*mask.shape, *([1] * (x.dim() - mask.dim()))]), list(x.shape))
        run(Tensor.copy_, x, run(torch.masked_scatter, x, whole, run(Tensor.to, rows, x.dtype)))

    def _check_rounds(self, selection: Selection) -> None:
        """Checks that what is written in a round of a loop is so only where the round's place is there.

        Raises:
            Error: where it would be written in all rounds.
        """
        if any(selection.within is not self.kept[number].selection for number in self.loops.numbers()):
            raise Error(f"a loop over places of a condition writes to rows of another one, {WHY}")

    def _selection_of(self, index: Any) -> Selection | None:
        """The condition at all of whose places an index is: a mask that has taken rows, or its places in the order of its dims."""
        parts = list(index) if isinstance(index, tuple) else [index]
        if len(parts) == 1 and isinstance(parts[0], Tensor) and parts[0].dtype == torch.bool:
            version, selection = self._selections.get(parts[0], (None, None))
            return selection if selection is not None and version == parts[0]._version else None
        columns = [self.kept.get(part) if isinstance(part, Tensor) else None for part in parts]
        first = columns[0] if columns else None
        if not isinstance(first, Column):
            return None
        return first.selection if columns == [Column(first.selection, dim) for dim in range(len(first.selection.shape))] else None

    def _reshaped(self, arguments: Any, rows: Rows, run: Run) -> Any:
        """Rows in another shape, of which they stay the first dim."""
        x, shape = arguments[0], list(arguments[1] if isinstance(arguments[1], list | tuple) else arguments[1:])
        count, width = x.shape[rows.leading], x.shape[rows.leading + 1 :].numel()
        if not shape or shape[0] != -1 or -1 in shape[1:] or torch.Size(shape[1:]).numel() != width:
            return None
        return self._mark(run(Tensor.reshape, x, [count, *shape[1:]]), Rows(rows.selection, 0))

    def _classified(self, function: Any, arguments: Any, options: Mapping[str, Any], run: Run) -> Any:
        """A loss of labels that stand behind each other: those of each text are as many as are selected of its row."""
        rows = self.kept.get(arguments[1]) if len(arguments) > 1 else None
        if not isinstance(rows, Rows) or rows.selection.mask.dim() != 2:
            return None
        mask = rows.selection.mask
        labels = run(to_the_left, run(Tensor.reshape, arguments[1], list(mask.shape)), mask)
        return run(function, arguments[0], labels, *arguments[2:], **options)

    def _row_by_row(self, name: str, function: Any, arguments: Any, options: Mapping[str, Any], marks: Mapping[int, Any], run: Run) -> Any:
        tensors = [leaf for leaf in pytree.tree_leaves((arguments, options)) if isinstance(leaf, Tensor)]
        held = {id(mark.selection.within) for mark in marks.values() if isinstance(mark, Rows)}
        marks = {key: mark for key, mark in marks.items() if not isinstance(mark, Number) or id(mark.selection) not in held}
        rows = [marks[id(tensor)] for tensor in tensors if id(tensor) in marks]
        marked = [tensor for tensor in tensors if id(tensor) in marks]
        others = [tensor for tensor in tensors if id(tensor) not in marks]
        is_written = name in IN_PLACE or bool(options.get("inplace"))
        # Of what was split all parts lie in the whole, which would change with them.
        if is_written and (id(arguments[0]) not in marks or rows[0].selection.parts):
            return None
        if name not in ROW_BY_ROW | IN_PLACE | LOSSES or not all(
            isinstance(mark, Rows) and mark.selection is rows[0].selection for mark in rows
        ):
            return None
        if any(mark.leading for mark in rows) or len({tensor.dim() for tensor in marked}) != 1:
            return None
        if name in PRODUCTS:
            if len(marked) != 1 or marked[0] is not arguments[0] or arguments[0].dim() < 2 or arguments[1].dim() != 2:
                return None
        elif any(other.dim() > marked[0].dim() or (other.dim() == marked[0].dim() and other.shape[0] != 1) for other in others):
            return None
        found = run(function, *arguments, **options)
        return self._mark(found, rows[0]) if isinstance(found, Tensor) and found.shape[0] == marked[0].shape[0] else None

    def _mark(self, found: Tensor, mark: Any) -> Tensor:
        self.kept[found] = mark
        return found


def _refused(what: str) -> Error:
    advice = "how many these are depends on data: compute all of them, and use torch.where"
    return Error(f"{what} of rows that a condition selects, and {advice}")


def _given(names: tuple[str, ...], arguments: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by their names."""
    return dict(zip(names, arguments, strict=False)) | dict(options)


def _is_mask_taken(function: Any, arguments: Any) -> bool:
    """Whether rows are taken of a tensor for which a mask holds."""
    if _name(function) != "__getitem__" or not isinstance(arguments[1], Tensor):
        return False
    x, mask = arguments
    return bool(mask.dtype == torch.bool and 0 < mask.dim() <= x.dim() and x.shape[: mask.dim()] == mask.shape)


def _is_mask_filled(function: Any, arguments: Any) -> bool:
    """Whether one row is written to all places at which a mask holds."""
    if not _is_put_by_mask(function, arguments):
        return False
    x, mask, value = arguments
    rest = x.dim() - mask.dim()
    return bool(0 < value.dim() <= rest or (value.dim() == rest + 1 and value.shape[0] == 1 and x.dim() > 1))


def _is_mask_spread(function: Any, arguments: Any) -> bool:
    """Whether rows are written to the places at which a mask holds, a row to each."""
    if not _is_put_by_mask(function, arguments) or _is_mask_filled(function, arguments):
        return False
    x, mask, value = arguments
    return bool(value.dim() > 0 and value.shape[1:] == x.shape[mask.dim() :])


def _is_put_by_mask(function: Any, arguments: Any) -> bool:
    if _name(function) != "__setitem__" or not isinstance(arguments[1], Tensor) or not isinstance(arguments[2], Tensor):
        return False
    x, mask, _ = arguments
    return bool(mask.dtype == torch.bool and 0 < mask.dim() <= x.dim() and x.shape[: mask.dim()] == mask.shape)


def _is_in(leaf: Any, kept: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf in kept


def _owner(function: Any) -> str:
    """The name of the property that is asked for."""
    return _name(getattr(function, "__self__", None))


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", ""))
