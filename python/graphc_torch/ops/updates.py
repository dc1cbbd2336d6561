"""Steps of optimizers and of states: results take the place of the variables. Formulas as in torch.optim."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..learning_rate import factor as schedule_factor
from ..plan import scalar
from .base import HALVES, Call, Run, block_length, in_blocks, op, overlap, same_memory, wide


def _rate(call: Call) -> Callable[[], float]:
    """The learning rate at the clock's step."""
    clock, given = call.clock, call.op["lr"]
    text = given if isinstance(given, str) else repr(scalar(given))
    base, _, schedule = text.partition(" ")
    number = scalar(float(base))

    def rate() -> float:
        own = clock.settings.get(call.first)
        return own["lr"] if own is not None and "lr" in own else number * schedule_factor(schedule or "constant", clock.step)

    return rate


class _Gradient:
    """What is done to a gradient before it is used: the operands behind the tensors are its factor and the update's number."""

    def __init__(self, call: Call, tensors: int) -> None:
        scalars = [port.tensor for port in call.operands[tensors:]]
        self.factor = scalars[0] if scalars else None
        self.number = scalars[1] if len(scalars) > 1 else None
        clip = call.op.get("clip")
        self.clip = None if clip is None else scalar(clip)
        self.clock = call.clock

    @property
    def plain(self) -> bool:
        """Whether gradients are taken as they are, in every step."""
        return self.factor is None and self.clip is None

    def of(self, g: Tensor) -> Tensor:
        """The gradient as the update takes it."""
        g = wide(g)
        if self.factor is not None:
            g = g * self.factor
        return g if self.clip is None else g.clamp(-self.clip, self.clip)

    def count(self) -> Tensor | float:
        """The number of the update, from 1."""
        return self.clock.step + 1.0 if self.number is None else self.number

    def unless_skipped(self, result: Tensor, old: Tensor, new: Tensor) -> None:
        """Writes what an update makes, or what was there where its factor is 0."""
        if self.factor is not None:
            new = torch.where(self.factor == 0.0, wide(old), new)
        result.copy_(new)


def _kept(call: Call, tensors: int) -> list[tuple[Tensor, Tensor]]:
    """The variable and its states, each with the memory of its result."""
    old = [call.operand(0), *(call.operand(index) for index in range(2, tensors))]
    return list(zip(old, [port.tensor for port in call.results], strict=True))


def _step(call: Call, tensors: int, step: Callable[[list[Tensor], Tensor], list[Tensor]]) -> Run:
    """An update from what it makes of [variable, states..] and the gradient."""
    gradient, pairs, g = _Gradient(call, tensors), _kept(call, tensors), call.operand(1)

    def run() -> None:
        made = step([wide(old) for old, _ in pairs], gradient.of(g))
        for (old, result), new in zip(pairs, made, strict=True):
            gradient.unless_skipped(result, old, new)

    return run


@op("sgd_update", updates=((0, 0), (1, 2)))
def sgd_update(call: Call) -> Run:
    """(w, g [, m]) -> (w' [, m']), or (w, g, factor, limit of the rate) -> w'."""
    has_momentum, nesterov, rate = call.op.number("momentum") != 0.0, bool(call.op["nesterov"]), _rate(call)
    numbers = call.numbers("momentum", "weight_decay")
    limit = _Gradient(call, 3 if has_momentum else 2).number
    if has_momentum and not nesterov and _Gradient(call, 3).plain and call.operand(0).dtype not in HALVES:
        return _plain_momentum(call, numbers, rate)
    if not has_momentum and _Gradient(call, 2).plain and _is_in_blocks(call, 2):
        return _plain_step(call, numbers, rate)

    def step(old: list[Tensor], g: Tensor) -> list[Tensor]:
        w, *states = old
        momentum, decay = numbers()
        if limit is not None:
            return [w * (1.0 - rate() * decay) - g * limit.clamp_max(rate())]
        g = g.add(w, alpha=decay) if decay else g
        if not states:
            return [w - rate() * g]
        m = states[0] * momentum + g
        return [w - rate() * (g + momentum * m if nesterov else m), m]

    return _step(call, 3 if has_momentum else 2, step)


def _plain_momentum(call: Call, numbers: Callable[[], tuple[float, ...]], rate: Callable[[], float]) -> Run:
    w, g, m = (call.operand(index) for index in range(3))
    new, state = call.result(0), call.result(1)

    def run() -> None:
        momentum, decay = numbers()
        torch.add(g.add(w, alpha=decay) if decay else g, m, alpha=momentum, out=state)
        torch.add(w, state, alpha=-rate(), out=new)

    return run


def _is_in_blocks(call: Call, tensors: int) -> bool:
    """Whether an update of f32 may be made block by block, in the place of what is updated or apart from all that is read."""
    old, new, read = call.operand(0), call.result(), [call.operand(index) for index in range(tensors)]
    plain = new.device.type == "cpu" and all(tensor.dtype is torch.float32 and tensor.shape == new.shape for tensor in read)
    return plain and all(not overlap(tensor, new) or (tensor is old and same_memory(old, new)) for tensor in read)


def _rows(call: Call, tensors: int) -> list[tuple[Tensor, ...]]:
    """By block the operands, the result, and spare memory."""
    given = [*(call.operand(index) for index in range(tensors)), call.result()]
    length = block_length(call.result().numel())
    rows = list(zip(*(in_blocks(tensor, length) for tensor in given), strict=True))
    return [(*row, call.clock.spare(0, torch.float32, row[0].numel())) for row in rows]


def _plain_step(call: Call, numbers: Callable[[], tuple[float, ...]], rate: Callable[[], float]) -> Run:
    """SGD without momentum, of each block: w - lr (g + decay w)."""
    rows = _rows(call, 2)

    def run() -> None:
        (_, decay), lr = numbers(), rate()
        for w, g, new, spare in rows:
            torch.mul(torch.add(g, w, alpha=decay, out=spare) if decay else g, lr, out=spare)
            torch.sub(w, spare, out=new)

    return run


ADAM = ("beta1", "beta2", "epsilon", "weight_decay")
"""Numbers of Adam besides its rate."""


@op("adam_update", updates=((0, 0), (1, 2), (2, 3)))
def adam_update(call: Call) -> Run:
    """(w, g, m, v) -> (w', m', v') with bias correction."""
    decoupled, rate, gradient = bool(call.op["decoupled"]), _rate(call), _Gradient(call, 4)
    numbers = call.numbers(*ADAM)
    if call.operand(0).dtype not in HALVES and (not gradient.plain or call.operand(1).dtype not in HALVES):
        return _fused_adam(call, gradient, (numbers, rate))

    def step(old: list[Tensor], g: Tensor) -> list[Tensor]:
        w, m, v = old
        (beta1, beta2, epsilon, decay), lr = numbers(), rate()
        w, g = (w - lr * decay * w, g) if decoupled else (w, g + decay * w)
        m, v = beta1 * m + (1.0 - beta1) * g, beta2 * v + (1.0 - beta2) * g * g
        one, two = _corrections(beta1, beta2, gradient.count())
        return [w - lr * (m / one) / ((v / two).sqrt() + epsilon), m, v]

    return _step(call, 4, step)


def _corrections(beta1: float, beta2: float, count: Tensor | float) -> tuple[Any, Any]:
    if isinstance(count, Tensor):
        number = count.double()
        return (1.0 - beta1**number).float(), (1.0 - beta2**number).float()
    return 1.0 - beta1**count, 1.0 - beta2**count


def _fused_adam(call: Call, gradient: _Gradient, of: tuple[Callable[[], tuple[float, ...]], Callable[[], float]]) -> Run:
    """One pass over memory, by PyTorch's own kernel; another one before it where gradients are not taken as they are."""
    pairs, g, (numbers, rate) = _kept(call, 4), call.operand(1), of
    moved = [(old, new) for old, new in pairs if old.data_ptr() != new.data_ptr()]
    w, m, v = ([new] for _, new in pairs)
    kernels: Any = torch
    kernel = kernels._fused_adamw_ if call.op["decoupled"] else kernels._fused_adam_
    count = torch.zeros((), device=g.device)
    whole: dict[str, Any] = {"amsgrad": False, "maximize": False}

    def run() -> None:
        for old, new in moved:
            new.copy_(old)
        beta1, beta2, epsilon, decay = numbers()
        settings = {"lr": rate(), "beta1": beta1, "beta2": beta2, "eps": epsilon, "weight_decay": decay}
        if gradient.factor is not None:
            whole["found_inf"] = (gradient.factor == 0.0).float()
        given = g if gradient.plain else gradient.of(g)
        kernel(w, [given], m, v, [], [count.fill_(gradient.count())], **settings, **whole)

    return run


RMSPROP = ("alpha", "epsilon", "weight_decay", "momentum")
"""Numbers of RMSprop besides its rate."""


@op("rmsprop_update", updates=((0, 0), (1, 2), (2, 3), (3, 4)))
def rmsprop_update(call: Call) -> Run:
    """(w, g, v [, a] [, m]) -> (w', v' [, a'] [, m'])."""
    has_momentum, centered, rate = call.op.number("momentum") != 0.0, bool(call.op["centered"]), _rate(call)
    numbers = call.numbers(*RMSPROP)

    def step(old: list[Tensor], g: Tensor) -> list[Tensor]:
        w, square, *states = old
        alpha, epsilon, decay, momentum = numbers()
        g = g + decay * w
        square = alpha * square + (1.0 - alpha) * g * g
        made, spread = [square], square
        if centered:
            mean = alpha * states.pop(0) + (1.0 - alpha) * g
            spread = square - mean * mean
            made.append(mean)
        ahead = g / (spread.clamp_min(0.0).sqrt() + epsilon)
        if has_momentum:
            ahead = ahead + momentum * states.pop(0)
            made.append(ahead)
        return [w - rate() * ahead, *made]

    return _step(call, 3 + centered + has_momentum, step)


@op("lamb_direction", updates=((1, 2), (2, 3)))
def lamb_direction(call: Call) -> Run:
    """(w, g, m, v) -> (u, m', v'): the direction of Adam; 0 where the update is not made."""
    beta1, beta2, epsilon = (call.op.number(name) for name in ("beta1", "beta2", "epsilon"))
    decay, gradient = call.op.number("weight_decay"), _Gradient(call, 4)
    w, g, m, v = (call.operand(index) for index in range(4))
    results = [port.tensor for port in call.results]

    def run() -> None:
        given = gradient.of(g)
        first, second = beta1 * m + (1.0 - beta1) * given, beta2 * v + (1.0 - beta2) * given * given
        one, two = _corrections(beta1, beta2, gradient.count())
        ahead = first / one / ((second / two).sqrt() + epsilon) + decay * wide(w)
        gradient.unless_skipped(results[0], torch.zeros_like(ahead), ahead)
        gradient.unless_skipped(results[1], m, first)
        gradient.unless_skipped(results[2], v, second)

    return run


@op("lamb_update", updates=((0, 0),))
def lamb_update(call: Call) -> Run:
    """(w, u, a, b) -> w - lr sqrt(a / b) u, where a and b are the sums of squares of all of w and u."""
    w, u, a, b = (call.operand(index) for index in range(4))
    result, rate = call.result(), _rate(call)

    def run() -> None:
        ratio = torch.where((a > 0.0) & (b > 0.0), (a / b).sqrt(), 1.0)
        result.copy_(wide(w) - rate() * ratio * wide(u))

    return run


@op("square_sum")
def square_sum(call: Call) -> Run:
    """The sum of the squares of all elements."""
    flat, result = call.operand(0).view(-1), call.result()

    def run() -> None:
        numbers = wide(flat)
        result.copy_(torch.dot(numbers, numbers))

    return run


@op("clip_factor")
def clip_factor(call: Call) -> Run:
    """(sum of squares [, factor]) -> (factor', norm)."""
    limit, total = call.op.number("max"), call.operand(0)
    given = call.operand(1) if len(call.operands) > 1 else None
    results = [call.result(0), call.result(1)]

    def run() -> None:
        factor = torch.ones_like(total) if given is None else given.clone()
        root = total.sqrt()
        skipped = factor == 0.0
        norm = torch.where(skipped, root, factor * root)
        clipped = torch.where(norm.isfinite(), (limit / (norm + 1e-6)).clamp_max(1.0), math.nan)
        results[0].copy_(torch.where(skipped, 0.0, factor * clipped))
        results[1].copy_(norm)

    return run


@op("blend", updates=((0, 0),))
def blend(call: Call) -> Run:
    """(state, x [, factor [, number]]) -> decay state + rate x, in the place of the state."""
    state, x, result, clock = call.operand(0), call.operand(1), call.result(), call.clock
    factor = call.operand(2) if len(call.operands) > 2 else None
    number = call.operand(3) if len(call.operands) > 3 else None
    decay, rate, starts = call.op.number("decay"), call.op.number("rate"), bool(call.op.get("starts", False))
    if factor is None and not starts and _is_in_blocks(call, 2):
        return _plain_blend(call, decay, rate)

    def mixed() -> Tensor:
        if not state.dtype.is_floating_point:
            return x if decay == 0.0 else state + x
        return wide(x) * rate if decay == 0.0 else wide(state) * decay + wide(x) * rate

    def now() -> Tensor:
        if not starts:
            return mixed()
        if number is not None:
            return torch.where(number > 1.0, mixed(), wide(x))
        return wide(x) if clock.step == 0 else mixed()

    def run() -> None:
        value = now()
        result.copy_(value if factor is None else torch.where(factor == 0.0, state.to(value.dtype), value))

    return run


def _plain_blend(call: Call, decay: float, rate: float) -> Run:
    """A state that is always updated, block by block."""
    rows = _rows(call, 2)

    def run() -> None:
        for state, x, new, spare in rows:
            if decay == 0.0:
                torch.mul(x, rate, out=new)
                continue
            torch.mul(x, rate, out=spare)
            torch.add(spare, torch.mul(state, decay, out=new), out=new)

    return run


@op("non_finite")
def non_finite(call: Call) -> Run:
    """The number of elements that are infinite or no number."""
    x, result = call.operand(0), call.result()

    def run() -> None:
        result.copy_((~x.isfinite()).sum())

    return run


@op("loss_scale", updates=((0, 0), (1, 1), (2, 2)))
def loss_scale(call: Call) -> Run:
    """(scale, good, made, bad [, factor]) -> (scale', good', made', factor, step, used, skipped)."""
    operands, results = [port.tensor for port in call.operands], [port.tensor for port in call.results]
    growth, backoff, interval = call.op.number("growth"), call.op.number("backoff"), float(call.op["interval"])
    floor = call.op.number("floor", 1.0)

    def run() -> None:
        scale, good, made, bad = (operand.clone() for operand in operands[:4])
        guarded = operands[4] == 0.0 if len(operands) > 4 else torch.zeros_like(scale, dtype=torch.bool)
        found = _scaled(scale, good, made, bad != 0.0, (growth, backoff, interval, floor))
        left = [scale, good, made, torch.zeros_like(scale), made + 1.0, scale, torch.ones_like(scale)]
        for result, one, other in zip(results, left, found, strict=True):
            result.copy_(torch.where(guarded, one, other))

    return run


def _scaled(scale: Tensor, good: Tensor, made: Tensor, bad: Tensor, how: tuple[float, float, float, float]) -> list[Tensor]:
    growth, backoff, interval, floor = how
    bad = bad | (scale < floor)
    full = good + 1.0 >= interval
    grown = torch.where((scale * growth).isfinite(), scale * growth, scale)
    after = torch.where(bad, (scale * backoff).clamp(min=floor), torch.where(full, grown, scale))
    streak = torch.where(bad | full, 0.0, good + 1.0)
    one = (~bad).float()
    return [after, streak, made + one, one / scale, made + 1.0, scale, 1.0 - one]


@op("skip_step", updates=((0, 0),))
def skip_step(call: Call) -> Run:
    """(before, bad) -> (before', factor, step, skipped)."""
    operands, results, clock = (
        [port.tensor for port in call.operands],
        [port.tensor for port in call.results],
        call.clock,
    )

    def run() -> None:
        before, skipped = operands[0].clone(), (operands[1] != 0.0).float()
        found = [before + skipped, 1.0 - skipped, clock.step + 1.0 - before, skipped]
        for result, value in zip(results, found, strict=True):
            result.copy_(value)

    return run
