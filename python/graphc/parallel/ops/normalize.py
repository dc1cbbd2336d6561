"""Softmax and normalization."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from ..text import Value
from .call import Call, Result, Running


def softmax(op: str, call: Call) -> Value:
    """Softmax of a dim, or its logarithm."""
    x = call.tensor("self", call.dtype)
    return call.writer.node(op, [x], x.dtype, x.shape, axis=call.dim("dim", x.rank))


def layer_norm(call: Call) -> Value:
    """Normalization over the last dims."""
    x = call.tensor("input")
    size = math.prod(call["normalized_shape"])
    rows = call.writer.reshape(x, (*x.shape[: x.rank - len(call["normalized_shape"])], size))
    normal = call.writer.reshape(_normalized(call, rows), x.shape)
    return _scaled(call, normal, call.optional("weight"), call.optional("bias"))


def native_layer_norm(call: Call) -> Result:
    """Normalization over the last dims, whose statistics nothing may use."""
    return (layer_norm(call), None, None)


def group_norm(call: Call) -> Result:
    """Normalization of groups of channels."""
    x, groups = call.tensor("input"), int(call["group"])
    rows = call.writer.reshape(x, (x.shape[0], groups, math.prod(x.shape[1:]) // groups))
    normal = call.writer.reshape(_normalized(call, rows), x.shape)
    weight, bias = (_of_channels(call, call.optional(name), x.rank) for name in ("weight", "bias"))
    return (_scaled(call, normal, weight, bias), None, None)


def batch_norm_training(call: Call) -> Result:
    """Normalization by the statistics of the batch; graphc updates the running ones by itself, use by use."""
    writer, x = call.writer, call.tensor("input")
    channels = (x.shape[1],)
    # Statistics of which a step takes nothing stay as they are.
    momentum = float(call["momentum"]) or 0.1
    kept = call["momentum"] != 0.0
    running = [call.running(name) if name in call.arguments else None for name in ("running_mean", "running_var")]
    given = [call.optional("weight"), call.optional("bias"), *(running if kept else [None, None])]
    defaults = (1.0, 0.0, 0.0, 1.0)
    operands = [
        writer.full(torch.float32, channels, default) if value is None else value for value, default in zip(given, defaults, strict=True)
    ]
    found = writer.node("batch_norm", [x, *operands], x.dtype, x.shape, epsilon=float(call["eps"]), momentum=1.0 - momentum)
    return (found, None, None, *(None if value is None else Running(value) for value in running))


def batch_norm_inference(call: Call) -> Result:
    """Normalization by running statistics, which stay as they are."""
    writer, x = call.writer, call.tensor("input")
    mean, variance = (call.tensor(name) for name in ("running_mean", "running_var"))
    root = writer.unary("rsqrt", writer.offset(variance, float(call["eps"])))
    mean, root = (_channels(call, part, x.rank) for part in (mean, root))
    normal = writer.binary("mul", writer.binary("sub", x, mean), root)
    weight, bias = (_of_channels(call, call.optional(name), x.rank) for name in ("weight", "bias"))
    return (_scaled(call, normal, weight, bias), None, None)


def _normalized(call: Call, rows: Value) -> Value:
    results = [(rows.dtype, rows.shape), (torch.float32, (*rows.shape[:-1], 1))]
    return call.writer.nodes("normalize", [rows], results, center=True, epsilon=float(call["eps"]))[0]


def _scaled(call: Call, x: Value, weight: Value | None, bias: Value | None) -> Value:
    x = x if weight is None else call.writer.binary("mul", x, weight)
    return x if bias is None else call.writer.binary("add", x, bias)


def _of_channels(call: Call, x: Value | None, rank: int) -> Value | None:
    return None if x is None else _channels(call, x, rank)


def _channels(call: Call, x: Value, rank: int) -> Value:
    """A number for each channel, broadcast over what is behind channels."""
    shape: Sequence[int] = (x.shape[0], *[1] * (rank - 2))
    return call.writer.reshape(x, shape)


TABLE: dict[str, Callable[[Call], Result]] = {
    "softmax": partial(softmax, "softmax"),
    "_softmax": partial(softmax, "softmax"),
    "log_softmax": partial(softmax, "log_softmax"),
    "_log_softmax": partial(softmax, "log_softmax"),
    "layer_norm": layer_norm,
    "native_layer_norm": native_layer_norm,
    "native_group_norm": group_norm,
    "_native_batch_norm_legit_functional": batch_norm_training,
    "_native_batch_norm_legit": batch_norm_training,
    "_native_batch_norm_legit_no_training": batch_norm_inference,
}
