"""What an optimizer has kept of its steps: variables of the plan, under the names that PyTorch's optimizers give them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Optimizer

from graphc_torch.plan import Plan, TensorKind
from graphc_torch.session import Session

from ..command import Error
from .optimizers import Pair, Whatever, parameters_of, parts_of
from .own_options import counts_steps, keeps_count
from .tensors import Read, put

TENSORS = (
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "sum", "square_avg", "grad_avg", "acc_delta", "row_var", "col_var", "variance",
    "exp_avg_sq_row", "exp_avg_sq_col",
)  # fmt: skip
KINDS = {name: name for name in (*TENSORS, "mu_product", "step")} | {"momentum": "momentum_buffer"}
"""States by graphc's names for them, and PyTorch's."""

MADE = "state.loss_scale.updates"
"""How many updates were made, where some steps make none."""

SKIPPED = "state.skipped_steps"
"""How many steps have made no update, where some are passed over."""

OWN = "graphc"
"""What a state of the optimizer has besides PyTorch's: the number of steps, and states that belong to no parameter."""


AGAIN_WITH = "load the state into the optimizer, and give both to parallelize, or it is another optimizer's"
"""What to do where parameters have had other numbers of steps."""


class OptimizerState:
    """The state of an optimizer of whose steps a plan takes care."""

    def __init__(self, session: Session, optimizer: Optimizer, names: Mapping[int, str]) -> None:
        """The state in a session; names are those of the model's tensors, by their identity."""
        self.session, self.optimizer, self.names = session, optimizer, names
        everyone = kept(session.plan)
        own = {names[id(parameter)] for parameter in parameters_of(optimizer)}
        self.kept = {name: entry for name, entry in everyone.items() if name in own}
        states = {name for entry in everyone.values() for name in entry.values()}
        roles = session.variables().items()
        self.others = [name for name, (role, _, _) in roles if role is TensorKind.STATE and name not in states]
        self.aside: dict[str, Any] = {}
        """What is kept of parameters that are frozen by now, by their names."""

    def by_index(self, read: Read) -> dict[str, Any]:
        """The state in PyTorch's own form; an optimizer that has made no step has none."""
        packed = {id(parameter): index for index, parameter in enumerate(self._parameters())}
        found = self._state(read, lambda parameter: packed[id(parameter)])
        # Adagrad has its sums from the start.
        begun = self.session.steps or type(self.optimizer) is Adagrad
        return found if begun else {**found, "state": {}}

    def by_name(self, read: Read) -> dict[str, Any]:
        """The state with the names of parameters in the place of their numbers, and with all entries from the start."""
        return self._state(read, lambda parameter: self.names[id(parameter)])

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes on a state of either form.

        Raises:
            Error: where it is another optimizer's.
        """
        groups, given = state["param_groups"], self._given(state)
        sizes = [len(group["params"]) for group in self.optimizer.param_groups]
        found = [len(group["params"]) for group in groups]
        if found != sizes:
            raise Error(f"the state is another optimizer's: its groups have {found} parameters, and the optimizer's {sizes}")
        frozen = {self.names[id(parameter)] for parameter in self._parameters() if not parameter.requires_grad}
        self.aside = {name: entry for name, entry in given.items() if name in frozen and name not in self.kept}
        given = {name: entry for name, entry in given.items() if name not in self.aside}
        others = [name for name in given if name not in self.kept]
        if others and self.kept:
            raise Error(f"the state has an entry for `{others[0]}`, which the plan does not train")
        made = self._steps(given)
        for name, entry in self.kept.items():
            self._load(name, entry, given)
        for group, saved in zip(self.optimizer.param_groups, groups, strict=True):
            group.update({key: value for key, value in saved.items() if not key.startswith("param")})
        self._count(state.get(OWN, {}), made)

    def _load(self, name: str, entry: Mapping[str, str], given: Mapping[str, Any]) -> None:
        for kind, variable in entry.items():
            shape = self.session.variables()[variable][2]
            value = given.get(name, {}).get(kind)
            if value is None and name in given:
                raise Error(f"the state has no {kind} of `{name}`: it is another optimizer's")
            value = torch.full(shape, self._initial(kind)) if value is None else value
            if tuple(value.shape) != shape:
                raise Error(f"{kind} of `{name}` has the shape {list(shape)}, and that of the state {list(value.shape)}")
            put(self.session, variable, value)

    def _count(self, own: Mapping[str, Any], made: int | None) -> None:
        """Goes on behind as many steps as a state says."""
        for name in self.others:
            if name in own:
                put(self.session, name, own[name])
            elif name in (MADE, SKIPPED):
                put(self.session, name, torch.tensor(float((made or 0) if name == MADE else 0)))
        steps = own.get("steps", made)
        if steps is not None:
            self.session.go_on_from(int(steps))

    def _state(self, read: Read, key: Callable[[Tensor], int | str]) -> dict[str, Any]:
        count = self._made(read)
        state = {}
        for parameter in self._parameters():
            entry = self.kept.get(self.names[id(parameter)])
            if entry:
                steps = {"step": torch.tensor(count)} if keeps_count(self.optimizer) else {}
                state[key(parameter)] = steps | {kind: read(variable) for kind, variable in entry.items()}
            elif self.names[id(parameter)] in self.aside:
                state[key(parameter)] = self.aside[self.names[id(parameter)]]
        groups = [{**group, "params": [key(parameter) for parameter in group["params"]]} for group in self.optimizer.param_groups]
        own = {"steps": self.session.steps, **{name: read(name) for name in self.others}}
        return {"state": state, "param_groups": groups, OWN: own}

    def _initial(self, kind: str) -> float:
        """What a state begins with."""
        initial = {"mu_product": 1.0, "sum": self.optimizer.defaults.get("initial_accumulator_value", 0.0)}
        return float(initial.get(kind, 0.0))

    def _steps(self, given: Mapping[str, Any]) -> int | None:
        """How many steps a state has had; ``None`` where it counts none."""
        counts = {int(entry["step"]): name for name, entry in given.items() if "step" in entry}
        if given and not counts and type(self.optimizer) is SGD and any(group["dampening"] for group in self.optimizer.param_groups):
            # Each gradient but the first is taken in part.
            counts = {1: next(iter(given))}
        missing = [name for name in self.kept if given and name not in given]
        counts |= {0: missing[0]} if missing and counts and 0 not in counts else {}
        own = any("step" in entry for entry in self.kept.values())
        if len(counts) > 1 and not own and (counts_steps(self.optimizer) or not keeps_count(self.optimizer)):
            (first, one), (second, other), *_ = counts.items()
            said = f"`{one}` has had {first} steps and `{other}` {second}, and the plan has one number for all"
            raise Error(f"{said}: {AGAIN_WITH}")
        return max(counts, default=None if given else 0)

    def _made(self, read: Read) -> float:
        if MADE in self.others:
            return float(read(MADE))
        return self.session.steps - (float(read(SKIPPED)) if SKIPPED in self.others else 0.0)

    def _given(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The entries of a state by the names of parameters."""
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        own = [self.names[id(parameter)] for parameter in self._parameters()]
        called = dict(zip(numbers, own, strict=False))
        found: dict[str, Any] = {}
        for number, entry in state["state"].items():
            name = number if isinstance(number, str) else called.get(number, str(number))
            if any(kind != "step" for kind in KINDS.values() if entry.get(kind) is not None):
                found[name] = entry
        return found

    def _parameters(self) -> list[Tensor]:
        return parameters_of(self.optimizer)


class States:
    """The states of one optimizer, or of two that are one."""

    def __init__(self, session: Session, optimizer: Whatever, names: Mapping[int, str]) -> None:
        """The states in a session; names are those of the model's tensors, by their identity."""
        self.is_pair = isinstance(optimizer, Pair)
        self.parts = [OptimizerState(session, part, names) for part in parts_of(optimizer)]

    def by_index(self, read: Read) -> dict[str, Any] | list[dict[str, Any]]:
        """The states in PyTorch's own form: a list where there are several optimizers."""
        found = [part.by_index(read) for part in self.parts]
        return found if self.is_pair else found[0]

    def by_name(self, read: Read) -> dict[str, Any]:
        """The states as one, with the names of parameters in the place of their numbers."""
        found = [part.by_name(read) for part in self.parts]
        state = {name: entry for part in found for name, entry in part["state"].items()}
        return {**found[0], "state": state, "param_groups": [group for part in found for group in part["param_groups"]]}

    def load(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Takes on states of either form.

        Raises:
            Error: where they are another optimizer's.
        """
        given = [state] if isinstance(state, Mapping) and not self.is_pair else self._split(state)
        if len(given) != len(self.parts):
            raise Error(f"the states are those of {len(given)} optimizers, and there are {len(self.parts)}")
        for part, own in zip(self.parts, given, strict=True):
            part.load(own)

    def _split(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The state of each optimizer, of a list or of all as one."""
        if not isinstance(state, Mapping):
            return list(state)
        found: list[Mapping[str, Any]] = []
        groups = list(state["param_groups"])
        for part in self.parts:
            count = len(part.optimizer.param_groups)
            own, groups = groups[:count], groups[count:]
            names = {name for group in own for name in group["params"]}
            found.append({**state, "param_groups": own, "state": {name: e for name, e in state["state"].items() if name in names}})
        return found


def kept(plan: Plan) -> dict[str, dict[str, str]]:
    """The variables of each parameter's states, by PyTorch's names for them."""
    parameters: dict[str, str] = {}
    for register in (register for program in plan.programs for register in program.registers):
        variable = register.kind.variable
        if variable is not None and variable.role is not TensorKind.STATE:
            # States are called by the name that a tensor has in the graph.
            parameters[register.name] = variable.name
    found: dict[str, dict[str, str]] = {}
    for name in plan.variables:
        parts = re.fullmatch(rf"state\.({'|'.join(KINDS)})\.(.*)", name, re.DOTALL)
        if parts is not None and parts[2] in parameters:
            found.setdefault(parameters[parts[2]], {})[KINDS[parts[1]]] = name
    return found
