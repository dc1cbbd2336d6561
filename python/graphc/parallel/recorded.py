"""Calls that a captured function makes beside computing, as of ``self.log``: written down, and made after each step with its numbers.

A function is captured once, so whatever else it does would be done once. What it says to a logger or a metric is written down with the
tensors that it says, which are outputs of the plan, and said again behind each step. All else that would go lost is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..command import Error


@dataclass(frozen=True)
class Call:
    """A call of a method of a part of a module."""

    path: str
    method: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A part of the module, in the place of what a call is given."""

    path: str


@dataclass(frozen=True)
class Function:
    """A function of PyTorch."""

    name: str


@dataclass(frozen=True)
class Given:
    """What an earlier call has given, by its number."""

    number: int


class Unknown:
    """What is another thing at each step, so that nothing may depend on it while a function is captured."""

    def __init__(self, said: str) -> None:
        """An object that says this to whoever looks at it."""
        self.said = said

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise Error(self.said)

    __bool__ = __int__ = __float__ = __index__ = __str__ = __format__ = __hash__ = __len__ = __iter__ = __getitem__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __mod__ = __rmod__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _refuse
    __getattr__ = _refuse


class Later(Unknown):
    """What a call will give when it is made."""

    def __init__(self, step: str, number: int) -> None:
        """Of the call of this number, in this method."""
        super().__init__(f"{step} computes with what a metric gives, which is known after the step alone: give it to self.log")
        self.number = number


class Record:
    """The calls that a module makes of its own logging, and of its metrics."""

    def __init__(self, module: nn.Module, step: str = "training_step") -> None:
        """Nothing yet, of this method."""
        self.step = step
        self.calls: list[Call] = []
        self._paths = {id(part): path for path, part in module.named_modules()}

    def put_down(self, path: str, method: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Later:
        """Writes a call down.

        Raises:
            Error: where it is given what cannot be written down.
        """
        where = f"self.{path}.{method}" if path else f"self.{method}"
        plain = [self._plain(part, where) for part in arguments]
        self.calls.append(Call(path, method, tuple(plain), {name: self._plain(part, where) for name, part in options.items()}))
        return Later(self.step, len(self.calls) - 1)

    def _plain(self, given: Any, where: str) -> Any:
        if isinstance(given, Tensor):
            return given.detach()
        if given is None or type(given) in (bool, int, float, str):
            return given
        if isinstance(given, Later):
            return Given(given.number)
        if isinstance(given, nn.Module) and id(given) in self._paths:
            return Part(self._paths[id(given)])
        if isinstance(given, tuple | list):
            return [self._plain(part, where) for part in given]
        if isinstance(given, Mapping):
            return {name: self._plain(part, where) for name, part in given.items()}
        name = str(getattr(given, "__name__", ""))
        if callable(given) and getattr(torch, name, None) is given:
            return Function(name)
        if isinstance(given, torch.SymFloat | torch.SymInt | torch.SymBool):
            raise Error(f"{where} is given a number that was read of a tensor: give it the tensor, without .item()")
        raise Error(f"{where} is given {type(given).__name__}, which cannot be kept until after the step: give it tensors and numbers")


def make(calls: list[Call], module: nn.Module) -> None:
    """Makes the calls of a step."""
    results: list[Any] = []
    for call in calls:
        arguments, options = _restored((list(call.arguments), call.options), module, results)
        results.append(getattr(module.get_submodule(call.path), call.method)(*arguments, **options))


def _restored(given: Any, module: nn.Module, results: list[Any]) -> Any:
    if isinstance(given, Given):
        return results[given.number]
    if isinstance(given, Part):
        return module.get_submodule(given.path)
    if isinstance(given, Function):
        return getattr(torch, given.name)
    if isinstance(given, tuple | list):
        return [_restored(part, module, results) for part in given]
    if isinstance(given, dict):
        return {name: _restored(part, module, results) for name, part in given.items()}
    return given


@contextmanager
def recorded(module: nn.Module, step: str = "training_step") -> Iterator[Record]:
    """The record of a module's calls of ``log``, ``log_dict`` and its metrics, while this method is captured.

    Raises:
        Error: where the module keeps something of the capture in an attribute.
    """
    record = Record(module, step)
    with ExitStack() as stack:
        stack.enter_context(replaced(module, "log", lambda *given, **options: _log(record, *given, **options)))
        stack.enter_context(replaced(module, "log_dict", lambda *given, **options: _log_all(record, *given, **options)))
        for path, metric in _metrics(module):
            for method in ("forward", "update"):
                stack.enter_context(replaced(metric, method, _writer(record, path, method)))
            for method in ("compute", "reset"):
                stack.enter_context(replaced(metric, method, _refuser(step, path, method)))
        before = _kept(module)
        yield record
        _check_kept(module, before, step)


def _log(record: Record, name: str, value: Any, *given: Any, **options: Any) -> None:
    """A tensor is of the whole batch by then, the same on all processes."""
    if isinstance(value, Tensor) and "sync_dist" in options:
        options["sync_dist"] = False
    record.put_down("", "log", (name, value, *given), options)


def _log_all(record: Record, values: Any, *given: Any, **options: Any) -> None:
    if type(values) is not dict:
        record.put_down("", "log_dict", (values, *given), options)
        return
    for name, value in values.items():
        _log(record, name, value, *given, **options)


def _writer(record: Record, path: str, method: str) -> Callable[..., Any]:
    return lambda *given, **options: record.put_down(path, method, given, options)


def _refuser(step: str, path: str, method: str) -> Callable[..., Any]:
    said = f"{step} calls self.{path}.{method}(), and is run once, to be captured: give the metric to self.log"
    return Unknown(said)._refuse


def _metrics(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The metrics of a module, and collections of such, but not what is in them."""
    package: Any = sys.modules.get("torchmetrics")
    if package is None:
        return []
    kinds = (package.Metric, package.MetricCollection)
    found: list[tuple[str, nn.Module]] = []
    for path, part in module.named_modules():
        if isinstance(part, kinds) and not any(path.startswith(f"{other}.") for other, _ in found):
            found.append((path, part))
    return found


@contextmanager
def replaced(part: nn.Module, name: str, value: Any) -> Iterator[None]:
    """Another method of one object."""
    own = vars(part)
    missing = object()
    before = own.get(name, missing)
    own[name] = value
    try:
        yield
    finally:
        if before is missing:
            del own[name]
        else:
            own[name] = before


def _kept(module: nn.Module) -> dict[str, tuple[int, int]]:
    """The attributes of a module's parts that hold things, which object each is, and how many things it holds."""
    return {
        f"{path}.{name}".removeprefix("."): (id(own), len(own))
        for path, part in module.named_modules()
        for name, own in vars(part).items()
        if isinstance(own, list | dict | set) and not name.startswith("_")
    }


def _check_kept(module: nn.Module, before: Mapping[str, tuple[int, int]], step: str) -> None:
    for name, found in _kept(module).items():
        if before.get(name) != found:
            advice = "self.log it, or return it, in training beside the loss, so that the hook behind the step has it"
            raise Error(f"{step} writes to `self.{name}`, and is run once, to be captured: {advice}")
