"""PyTorch's optimizers, group by group, as the options of ``graphc compile``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import SGD, Adadelta, Adafactor, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from ..command import Error

REFUSED = {"differentiable": False, "caution": False, "cautious_factor": 1.0, "corrected_weight_decay": False}
"""Options that graphc has with one value alone: the first of PyTorch's optimizers, the others of packages' Lion."""

NUMBERS = {name: name for name in ("lr", "weight_decay", "momentum", "beta1", "beta2", "alpha")} | {"eps": "epsilon"}
"""What may change from step to step, as ``graphc compile`` calls it, and as ops do."""

MOMENTS = (Adam, AdamW, Adamax, NAdam, RAdam)
"""Optimizers with two betas and an epsilon."""


def is_muon(optimizer: Optimizer) -> bool:
    """Whether it is Muon with the options of torch.optim's, which PyTorch has from 2.9 on."""
    return type(optimizer).__name__ == "Muon" and all({"ns_coefficients", "adjust_lr_fn"} <= set(group) for group in optimizer.param_groups)


def is_lion(optimizer: Optimizer) -> bool:
    """Whether it is Lion, as its authors and packages write it, with a decay that goes by the rate."""
    plain = all("betas" in group and "eps" not in group for group in optimizer.param_groups)
    return type(optimizer).__name__ == "Lion" and plain and not getattr(optimizer, "decoupled_wd", False)


def is_fixed_adafactor(optimizer: Optimizer) -> bool:
    """Whether it is Adafactor with the options of transformers', or of fairseq's, from which that is."""
    return type(optimizer).__name__ == "Adafactor" and all("clip_threshold" in group for group in optimizer.param_groups)


def counts_steps(optimizer: Optimizer) -> bool:
    """Whether what a step does depends on its number."""
    by_number = type(optimizer) in (*MOMENTS, Adafactor) or is_fixed_adafactor(optimizer)
    return by_number or any(group.get("lr_decay") for group in optimizer.param_groups)


def keeps_count(optimizer: Optimizer) -> bool:
    """Whether its states have a number of steps."""
    return not (type(optimizer) is SGD or is_muon(optimizer) or is_lion(optimizer))


def own_options(optimizer: Optimizer, group: Mapping[str, Any]) -> dict[str, Any]:
    """What ``graphc compile`` is told of a group of parameters.

    Raises:
        Error: where graphc has no such optimizer.
    """
    kinds = (SGD, RMSprop, Adagrad, Adadelta, Adafactor, *MOMENTS)
    if not (type(optimizer) in kinds or is_muon(optimizer) or is_lion(optimizer) or is_fixed_adafactor(optimizer)):
        names = ", ".join(kind.__name__ for kind in kinds)
        raise Error(f"parallelize takes no optimizer {type(optimizer).__name__}: use torch.optim's {names} or Muon, or Lion")
    for name, value in REFUSED.items():
        if group.get(name, value) != value:
            raise Error(f"graphc has no optimizer with {name}: leave it out")
    if group.get("relative_step"):
        raise Error("graphc has Adafactor with a rate that is given alone: say lr and relative_step=False, or use torch.optim.Adafactor")
    if "clip_threshold" in group and group["beta1"] is not None:
        raise Error("graphc has no Adafactor with beta1: leave it out")
    shared = {"lr": float(group["lr"]), "weight_decay": float(group["weight_decay"])}
    up = {"maximize": True} if group.get("maximize") else {}
    return {**_of_kind(optimizer, group), **shared, **up}


def read_at_each_step(own: Mapping[str, Any], scheduled: bool) -> list[str]:
    """What is read of a group at each step; of a step that is composed of ops all else is part of the plan."""
    kind = own["optimizer"]
    limited = kind == "adafactor" and not own.get("fixed_rate")
    if kind in ("muon", "lion") or limited or own.get("decoupled") or (kind == "adamw" and own.get("amsgrad")):
        found: tuple[str, ...] = ("lr", "weight_decay")
    elif kind in ("sgd", "adam", "adamw", "rmsprop") and not (own.get("amsgrad") or own.get("dampening")):
        found = tuple(NUMBERS)
    else:
        found = ("lr",)
    return [name for name in found if name in own and not (name == "lr" and scheduled)]


def _of_kind(optimizer: Optimizer, group: Mapping[str, Any]) -> dict[str, Any]:
    kind = type(optimizer)
    if is_muon(optimizer):
        return _of_muon(group)
    if kind is SGD:
        return _of_sgd(group)
    if kind is RMSprop:
        return _of_rmsprop(group)
    if kind is Adagrad:
        given = {"lr_decay": float(group["lr_decay"]), "initial_accumulator": float(group["initial_accumulator_value"])}
        return {"optimizer": "adagrad", "eps": float(group["eps"]), **{name: value for name, value in given.items() if value}}
    if kind is Adadelta:
        return {"optimizer": "adadelta", "alpha": float(group["rho"]), "eps": float(group["eps"])}
    if kind is Adafactor or is_fixed_adafactor(optimizer):
        return _of_adafactor(group)
    first, second = group["betas"]
    betas = {"beta1": float(first), "beta2": float(second)}
    if is_lion(optimizer):
        return {"optimizer": "lion", **betas}
    return {**_of_moments(kind, group), **betas, "eps": float(group["eps"])}


def _of_moments(kind: type[Optimizer], group: Mapping[str, Any]) -> dict[str, Any]:
    decoupled = bool(group.get("decoupled_weight_decay"))
    if kind in (Adam, AdamW):
        greatest = {"amsgrad": True} if group["amsgrad"] else {}
        return {"optimizer": "adamw" if decoupled or kind is AdamW else "adam", **greatest}
    rising = {"momentum_decay": float(group["momentum_decay"])} if kind is NAdam else {}
    return {"optimizer": kind.__name__.lower(), **rising, **({"decoupled": True} if decoupled else {})}


def _of_sgd(group: Mapping[str, Any]) -> dict[str, Any]:
    momentum, dampening = float(group["momentum"]), float(group["dampening"])
    if not momentum:
        return {"optimizer": "sgd"}
    taken = {"dampening": dampening} if dampening else {"nesterov": bool(group["nesterov"])}
    return {"optimizer": "sgd", "momentum": momentum, **taken}


def _of_rmsprop(group: Mapping[str, Any]) -> dict[str, Any]:
    alpha, momentum = float(group["alpha"]), float(group["momentum"])
    kinds = {"centered": True} if group["centered"] else {}
    moving = {"momentum": momentum} if momentum else {}
    return {"optimizer": "rmsprop", "alpha": alpha, "eps": float(group["eps"]), **kinds, **moving}


def _of_adafactor(group: Mapping[str, Any]) -> dict[str, Any]:
    eps, least = group["eps"]
    if "clip_threshold" in group:
        how = {"fixed_rate": True, **({} if group["scale_parameter"] else {"unscaled": True})}
        exponent, clip = group["decay_rate"], group["clip_threshold"]
    else:
        how, exponent, clip = {}, group["beta2_decay"], group["d"]
        # As in PyTorch, that of the first parameter's type.
        eps = torch.finfo(group["params"][0].dtype).eps if eps is None and group["params"] else eps
    numbers = {"decay_exponent": -float(exponent), "eps": float(eps or 0.0), "least_scale": float(least), "clip_step": float(clip)}
    return {"optimizer": "adafactor", **numbers, **how}


def _of_muon(group: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {} if group["nesterov"] else {"plain_momentum": True}
    coefficients = ",".join(repr(float(coefficient)) for coefficient in group["ns_coefficients"])
    iterations = {"coefficients": coefficients, "iterations": int(group["ns_steps"])}
    numbers = {name: float(group[name]) for name in ("momentum", "eps")}
    return {"optimizer": "muon", **numbers, **kinds, **iterations, "adjust_lr": group["adjust_lr_fn"] or "original"}
