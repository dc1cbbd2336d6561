"""PyTorch's optimizers as options of graphc."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from ..command import Error
from .own_options import NUMBERS, counts_steps, is_muon, own_options, read_at_each_step


class Pair:
    """Muon, which takes matrices alone, and AdamW for all else: two optimizers of one model, seen as one."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        """Two optimizers, in the order in which they are given.

        Raises:
            Error: where they are others.
        """
        self.parts = tuple(_bare(part) for part in parts)
        kinds = sorted("muon" if is_muon(part) else type(part).__name__ for part in self.parts)
        if kinds != ["AdamW", "muon"]:
            given = ", ".join(type(part).__name__ for part in self.parts)
            raise Error(f"parallelize takes one optimizer, or torch.optim.Muon and torch.optim.AdamW together, not [{given}]")
        shared = set.intersection(*({id(one) for one in parameters_of(part)} for part in self.parts))
        if shared:
            raise Error("a parameter is in both optimizers: give it to one of them")

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of both."""
        return [group for part in self.parts for group in part.param_groups]

    @property
    def state(self) -> dict[Any, Any]:
        """What both have kept."""
        return {key: value for part in self.parts for key, value in part.state.items()}

    def state_dict(self) -> list[dict[str, Any]]:
        """The state of each."""
        return [part.state_dict() for part in self.parts]


Whatever = Optimizer | Pair
"""What is given as an optimizer."""


def bare(optimizer: Optimizer | Sequence[Optimizer]) -> Whatever:
    """The optimizer in a wrapper of another package, as ``accelerate`` prepares them; else itself."""
    if isinstance(optimizer, Sequence):
        return _bare(optimizer[0]) if len(optimizer) == 1 else Pair(optimizer)
    return _bare(optimizer)


def _bare(optimizer: Optimizer) -> Optimizer:
    inner = vars(optimizer).get("optimizer")
    return inner if isinstance(inner, Optimizer) else optimizer


def parts_of(optimizer: Whatever) -> tuple[Optimizer, ...]:
    """The optimizers that are one."""
    return optimizer.parts if isinstance(optimizer, Pair) else (optimizer,)


def parameters_of(optimizer: Whatever) -> list[Any]:
    """The parameters of all groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def trained(optimizer: Whatever, names: Mapping[int, str]) -> frozenset[str]:
    """The names of what an optimizer changes.

    Raises:
        Error: where it has a tensor that is none of the model's.
    """
    found = [names.get(id(parameter)) for parameter in parameters_of(optimizer) if parameter.requires_grad]
    if None in found:
        raise Error("the optimizer has a parameter that the model has not: make it of model.parameters()")
    return frozenset(name for name in found if name is not None)


def options(optimizer: Whatever, names: Mapping[int, str], variables: frozenset[str], scheduled: bool) -> dict[str, Any]:
    """What ``graphc compile`` is told of an optimizer, for those variables that the graph has.

    Args:
        optimizer: the optimizer.
        names: the names of the model's tensors, by their identity.
        variables: those that the graph has, and trains.
        scheduled: whether the course of the rate is part of the plan.

    Raises:
        Error: where graphc has no such optimizer.
    """
    if isinstance(optimizer, Pair):
        return _of_pair(optimizer, names, variables, scheduled)
    groups = optimizer.param_groups
    own = own_options(optimizer, groups[0])
    if is_muon(optimizer) and any(parameter.dim() != 2 for parameter in parameters_of(optimizer)):
        raise Error("Muon has a parameter that is no matrix: give it to AdamW, as optimizer=[muon, adamw]")
    if not groups[0]["params"]:
        raise Error("the optimizer's first group of parameters is empty: leave it out")
    for group in groups[1:]:
        other = own_options(optimizer, group)
        differs = [name for name in {**own, **other} if name not in ("lr", "weight_decay") and own.get(name) != other.get(name)]
        if differs:
            raise Error(
                f"the optimizer's groups of parameters differ in {differs[0]}: graphc has groups that differ in lr and weight_decay"
            )
    return own | {"group": _groups(optimizer, names, variables, scheduled)}


def _of_pair(pair: Pair, names: Mapping[int, str], variables: frozenset[str], scheduled: bool) -> dict[str, Any]:
    """Muon's options, and what AdamW updates, whose numbers are read at each step."""
    muon, adamw = sorted(pair.parts, key=is_muon, reverse=True)
    found = options(muon, names, variables, scheduled)
    options(adamw, names, variables, scheduled)
    if scheduled and any(float(group["lr"]) != found["lr"] for group in adamw.param_groups):
        raise Error(
            "lr_schedule is one course for both optimizers: give them one learning rate, or leave it out and use schedulers of PyTorch"
        )
    for name in ("amsgrad", "maximize"):
        if any(group.get(name) for group in adamw.param_groups):
            raise Error(f"graphc has no pair of Muon and AdamW with {name}: leave it out")
    own = [names[id(parameter)] for parameter in parameters_of(adamw)]
    return found | {"by_adamw": [name for name in own if name in variables]}


STATE = "optimizer.load_state_dict(model.optimizer_state_dict())"
"""What gives an optimizer what a plan has kept of its steps."""

AGAIN = f"update_module() and give the model to parallelize again, with {STATE} before it"
"""What to do where a plan cannot go on."""


@dataclass(frozen=True)
class Settings:
    """What an optimizer's groups of parameters say at a step."""

    groups: tuple[dict[str, Any], ...]
    scheduled: bool
    """Whether the course of the rate is part of the plan."""

    @classmethod
    def of(cls, optimizer: Whatever, scheduled: bool) -> Settings:
        """Those of now."""
        return cls(tuple(own_options(part, group) for part in parts_of(optimizer) for group in part.param_groups), scheduled)

    def check_after(self, first: Settings) -> None:
        """Checks that a plan can go on with them.

        Raises:
            Error: where they have changed in what is part of the plan.
        """
        if len(self.groups) != len(first.groups):
            raise Error(f"the optimizer has other groups of parameters than when it was given to parallelize: {AGAIN}")
        for now, then in zip(self.groups, first.groups, strict=True):
            for name in {**then, **now}:
                whole = name not in read_at_each_step(now, self.scheduled) or name not in then
                if whole and now.get(name) != then.get(name):
                    advice = "leave lr_schedule out" if name == "lr" else f"give it to parallelize again, behind {STATE}"
                    was = f"was {then.get(name, 0)} and is {now.get(name, 0)}"
                    raise Error(f"the optimizer's {name} {was}, but it is part of the plan: {advice}")

    def of_variables(self, optimizer: Whatever, names: Mapping[int, str], variables: frozenset[str]) -> dict[str, dict[str, float]]:
        """The numbers of each variable that the graph has."""
        found = {}
        for group, own in zip(optimizer.param_groups, self.groups, strict=True):
            numbers = {NUMBERS[name]: float(own[name]) for name in read_at_each_step(own, self.scheduled)}
            found.update({names[id(part)]: numbers for part in group["params"] if names[id(part)] in variables})
        return found


def has_own_counts(optimizer: Whatever, names: Mapping[int, str], variables: frozenset[str]) -> bool:
    """Whether the parameters of these names have had other numbers of steps, as those that were frozen at first."""
    made = set()
    for part in parts_of(optimizer):
        if counts_steps(part) and part.state:
            own = [parameter for parameter in parameters_of(part) if names.get(id(parameter)) in variables]
            made |= {int(part.state.get(parameter, {}).get("step", 0)) for parameter in own}
    return len(made) > 1


def _groups(optimizer: Optimizer, names: Mapping[int, str], variables: frozenset[str], scheduled: bool) -> list[str]:
    """Groups with a rate or a decay of their own, parameter by parameter, as parts of the first group's."""
    rate, decay = float(optimizer.param_groups[0]["lr"]), float(optimizer.param_groups[0]["weight_decay"])
    found = []
    for group in optimizer.param_groups[1:]:
        if (float(group["lr"]), float(group["weight_decay"])) == (rate, decay):
            continue
        if scheduled and rate == 0.0 and float(group["lr"]) != 0.0:
            raise Error("the learning rate of the optimizer's first group is 0, and another's is not: put that one first")
        # Where there is no schedule rates are read at each step, so the plan's do not matter.
        factor = float(group["lr"]) / rate if rate else 1.0
        own = [names[id(parameter)] for parameter in group["params"] if names[id(parameter)] in variables]
        found += [f"{name}={factor!r},{float(group['weight_decay'])!r}" for name in own]
    return found
