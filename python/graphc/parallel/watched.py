"""What is done to a module beside its plan: it would be lost, as weights lie elsewhere and a graph stays as it was captured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..command import Error
from .attributes import plain_attributes
from .optimizers import AGAIN

WIDTHS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by how many bytes they have."""

SAMPLE = 1 << 16
"""About how many elements of a tensor are looked at where nothing says that it was written to."""


@dataclass
class _Seen:
    """A tensor as it was when it was looked at last."""

    part: nn.Module
    key: str
    tensor: Tensor
    version: int
    place: int
    sum: Tensor
    """Of its bits."""
    sample: Tensor
    """The sum over a sample, by which writes are found that PyTorch does not count: those to ``.data``."""

    @classmethod
    def of(cls, part: nn.Module, key: str, tensor: Tensor) -> _Seen:
        return cls(part, key, tensor, tensor._version, tensor.data_ptr(), _sum(tensor), _sum(tensor, SAMPLE))

    def is_touched(self, now: Tensor) -> bool:
        """Whether PyTorch counts a write, or another stands in its place. It may hold the same again."""
        return now is not self.tensor or now._version != self.version or now.data_ptr() != self.place

    def is_changed(self, now: Tensor, is_due: bool) -> bool:
        """Whether it holds something else by now, as far as that is looked at."""
        if self.is_touched(now):
            return int(_sum(now)) != int(self.sum)
        return is_due and int(_sum(now, SAMPLE)) != int(self.sample)


class Watched:
    """A module beside its plan."""

    def __init__(self, module: nn.Module, variables: Iterable[str]) -> None:
        """A module as it was captured; the plan has these of its tensors."""
        self.variables, self.steps = frozenset(variables), 0
        self.parts = [(name, part, tuple(part._modules.values())) for name, part in module.named_modules()]
        self.modes = [part.training for _, part, _ in self.parts]
        self.attributes = [plain_attributes(part) for _, part, _ in self.parts]
        self.seen: dict[str, _Seen] = {}
        self.look()

    def look(self, names: Iterable[str] | None = None) -> None:
        """Takes note of what tensors hold by now: all of them, or these."""
        chosen = self.variables if names is None else frozenset(names)
        for prefix, part, _ in self.parts:
            for key, tensor in {**part._parameters, **part._buffers}.items():
                name = f"{prefix}.{key}".removeprefix(".")
                if name in chosen and tensor is not None and _is_plain(tensor):
                    self.seen[name] = _Seen.of(part, key, tensor)

    def put_modes_back(self) -> None:
        """Lets each part be in the mode in which it was captured."""
        for (_, part, _), mode in zip(self.parts, self.modes, strict=True):
            part.training = mode

    def changes(self) -> list[str]:
        """What attributes of the module have changed since this was asked last, and how."""
        found = []
        for place, (name, part, _) in enumerate(self.parts):
            before, now = self.attributes[place], plain_attributes(part)
            if now != before:
                keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
                found += [f"`{name}.{key}`".replace("`.", "`") + f" was {before.get(key)} and is {now.get(key)}" for key in keys]
                self.attributes[place] = now
        return found

    def check(self) -> None:
        """Checks that a step may be made.

        Raises:
            Error: where the module is another one by now.
        """
        self.steps += 1
        for (name, part, children), mode in zip(self.parts, self.modes, strict=True):
            called = f"`{name or type(part).__name__}`"
            if part.training != mode:
                said = f"{called} was in {_mode(mode)} mode when it was captured, and is in {_mode(part.training)} mode"
                raise Error(f"{said}: call train() of what parallelize has returned, or {AGAIN}")
            if len(children) != len(part._modules) or any(a is not b for a, b in zip(children, part._modules.values(), strict=True)):
                raise Error(f"{called} has other parts than when it was captured: {AGAIN}")
        self._check_tensors()

    def _check_tensors(self) -> None:
        # To read them at each step would take its time, and who writes to them does so again and again.
        is_due = self.steps & (self.steps - 1) == 0
        for name, seen in self.seen.items():
            now = seen.part._parameters.get(seen.key, seen.part._buffers.get(seen.key))
            if now is None or (now is not seen.tensor and isinstance(now, nn.Parameter)):
                raise Error(f"`{name}` of the module is another tensor than the plan has: {AGAIN}")
            if seen.is_changed(now, is_due):
                said = f"`{name}` of the module was written to, and the plan has tensors of its own, which do not change"
                raise Error(f"{said}: write to it behind update_module(), and then call load_state_dict(module.state_dict())")


def _mode(training: bool) -> str:
    return "train" if training else "eval"


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) and not tensor.is_meta and tensor.layout is torch.strided


def _sum(tensor: Tensor, most: int | None = None) -> Tensor:
    """The sum of a tensor's bits, as integers; of about so many of its elements at the most."""
    own = tensor.detach()
    real = torch.view_as_real(own) if own.is_complex() else own
    bits = real.view(WIDTHS[real.element_size()])
    if most is not None and bits.numel() > most:
        # An odd distance does not fall into one column of a matrix.
        bits = bits.reshape(-1)[:: bits.numel() // most | 1]
    return bits.sum(dtype=torch.int64)
