"""PyTorch's optimizers as options of graphc."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from ..command import Error

REFUSED = {"amsgrad": False, "maximize": False, "dampening": 0, "differentiable": False}
"""Options that graphc has with one value alone."""


def bare(optimizer: Optimizer) -> Optimizer:
    """The optimizer in a wrapper of another package, as ``accelerate`` prepares them; else itself."""
    inner = vars(optimizer).get("optimizer")
    return inner if isinstance(inner, Optimizer) else optimizer


def trained(optimizer: Optimizer, names: Mapping[int, str]) -> frozenset[str]:
    """The names of what an optimizer changes.

    Raises:
        Error: where it has a tensor that is none of the model's.
    """
    found = [names.get(id(parameter)) for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad]
    if None in found:
        raise Error("the optimizer has a parameter that the model has not: make it of model.parameters()")
    return frozenset(name for name in found if name is not None)


def options(optimizer: Optimizer, names: Mapping[int, str], variables: frozenset[str], scheduled: bool) -> dict[str, Any]:
    """What ``graphc compile`` is told of an optimizer, for those variables that the graph has.

    Args:
        optimizer: the optimizer.
        names: the names of the model's tensors, by their identity.
        variables: those that the graph has, and trains.
        scheduled: whether the course of the rate is part of the plan.

    Raises:
        Error: where graphc has no such optimizer.
    """
    groups = optimizer.param_groups
    own = _own(optimizer, groups[0])
    if not groups[0]["params"]:
        raise Error("the optimizer's first group of parameters is empty: leave it out")
    for group in groups[1:]:
        other = _own(optimizer, group)
        differs = [name for name in own if name not in ("lr", "weight_decay") and own[name] != other[name]]
        if differs:
            raise Error(
                f"the optimizer's groups of parameters differ in {differs[0]}: graphc has groups that differ in lr and weight_decay"
            )
    return own | {"group": _groups(optimizer, names, variables, scheduled)}


STATE = "optimizer.load_state_dict(model.optimizer_state_dict())"
"""What gives an optimizer what a plan has kept of its steps."""

AGAIN = f"update_module() and give the model to parallelize again, with {STATE} before it"
"""What to do where a plan cannot go on."""

NUMBERS = {name: name for name in ("lr", "weight_decay", "momentum", "beta1", "beta2", "alpha")} | {"eps": "epsilon"}
"""What may change from step to step, as ``graphc compile`` calls it, and as ops do."""


@dataclass(frozen=True)
class Settings:
    """What an optimizer's groups of parameters say at a step."""

    groups: tuple[dict[str, Any], ...]
    scheduled: bool
    """Whether the course of the rate is part of the plan."""

    @classmethod
    def of(cls, optimizer: Optimizer, scheduled: bool) -> Settings:
        """Those of now."""
        return cls(tuple(_own(optimizer, group) for group in optimizer.param_groups), scheduled)

    def check_after(self, first: Settings) -> None:
        """Checks that a plan can go on with them.

        Raises:
            Error: where they have changed in what is part of the plan.
        """
        if len(self.groups) != len(first.groups):
            raise Error(f"the optimizer has other groups of parameters than when it was given to parallelize: {AGAIN}")
        for now, then in zip(self.groups, first.groups, strict=True):
            for name in {**then, **now}:
                whole = name not in NUMBERS or name not in now or name not in then or (name == "lr" and self.scheduled)
                if whole and now.get(name) != then.get(name):
                    advice = "leave lr_schedule out" if name == "lr" else f"give it to parallelize again, behind {STATE}"
                    was = f"was {then.get(name, 0)} and is {now.get(name, 0)}"
                    raise Error(f"the optimizer's {name} {was}, but it is part of the plan: {advice}")

    def of_variables(self, optimizer: Optimizer, names: Mapping[int, str], variables: frozenset[str]) -> dict[str, dict[str, float]]:
        """The numbers of each variable that the graph has."""
        found = {}
        for group, own in zip(optimizer.param_groups, self.groups, strict=True):
            taken = [name for name in own if name in NUMBERS and not (name == "lr" and self.scheduled)]
            numbers = {NUMBERS[name]: float(own[name]) for name in taken}
            found.update({names[id(part)]: numbers for part in group["params"] if names[id(part)] in variables})
        return found


def _own(optimizer: Optimizer, group: Mapping[str, Any]) -> dict[str, Any]:
    if type(optimizer) not in (SGD, Adam, AdamW, RMSprop):
        raise Error(f"parallelize takes no optimizer {type(optimizer).__name__}: use torch.optim.SGD, Adam, AdamW or RMSprop")
    for name, value in REFUSED.items():
        if group.get(name, value) != value:
            raise Error(f"graphc has no optimizer with {name}: leave it out")
    shared = {"lr": float(group["lr"]), "weight_decay": float(group["weight_decay"])}
    if type(optimizer) is SGD:
        momentum = float(group["momentum"])
        moving = {"momentum": momentum, "nesterov": bool(group["nesterov"])} if momentum else {}
        return {"optimizer": "sgd", **shared, **moving}
    if type(optimizer) in (Adam, AdamW):
        decoupled = type(optimizer) is AdamW or bool(group.get("decoupled_weight_decay"))
        first, second = group["betas"]
        betas = {"beta1": float(first), "beta2": float(second), "eps": float(group["eps"])}
        return {"optimizer": "adamw" if decoupled else "adam", **shared, **betas}
    alpha, momentum = float(group["alpha"]), float(group["momentum"])
    kinds = {"centered": True} if group["centered"] else {}
    moving = {"momentum": momentum} if momentum else {}
    return {"optimizer": "rmsprop", **shared, "alpha": alpha, "eps": float(group["eps"]), **kinds, **moving}


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
