"""The usual loop of PyTorch, ``loss = model(batch); loss.backward(); optimizer.step()``: a plan makes the whole step with the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..command import Error
from .optimizers import Whatever, parts_of
from .used import Gradients


class Loop:
    """Watches that a loop makes of each loss the one step that was made already."""

    def __init__(self, optimizer: Whatever, model: nn.Module, numbers: Callable[[], object]) -> None:
        """A loop of this optimizer, whose own step has no gradients and changes nothing; its numbers are rates and the like."""
        self.anchor = torch.zeros((), requires_grad=True)
        self.missing: str | None = None
        """What must be called before the next loss."""
        self.gradients, self.numbers = Gradients(model), numbers
        self.taken: object = None
        """The optimizer's numbers with which the step was made."""
        self.parts = parts_of(optimizer)
        self.waiting: list[Optimizer] = []
        """Those that have made no step of their own since ``backward``."""
        for part in self.parts:
            part.register_step_pre_hook(self._before)
            part.register_step_post_hook(lambda part, *_: self._end(part))

    def check(self) -> None:
        """Checks that another step may be made.

        Raises:
            Error: where the last one was no whole turn of the loop, or the loss is asked for without gradients.
        """
        if not torch.is_grad_enabled():
            raise Error("model(batch) makes a step of training, and gradients are off: call model.eval() first")
        if self.missing is not None:
            advice = (
                "gradients are summed by parallelize(.., accumulate=N) and model.step(*batches), and losses alone are those of model.eval()"
            )
            raise Error(f"the last loss has made a step of training, and {self.missing} was not called since: {advice}")

    def begin(self, loss: Tensor) -> Tensor:
        """The loss of a step that was made, on which ``backward`` may be called."""
        self.missing, self.taken, self.waiting = "loss.backward()", self.numbers(), []
        found: Tensor = _Made.apply(self.anchor, loss, self)  # type: ignore[no-untyped-call]
        return found

    def learn(self, factor: float) -> None:
        """Takes note of ``backward``.

        Raises:
            Error: where it is of something else than the loss.
        """
        if factor != 1.0:
            advice = "accumulate=N and precision='f16' scale by themselves, so leave GradScaler out"
            raise Error(f"the step was made of the loss, and backward is called on something whose gradient by it is {factor}: {advice}")
        self.missing, self.waiting = "optimizer.step()", list(self.parts)
        self.gradients.put()

    def _before(self, part: Optimizer, given: tuple[Any, ...], more: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the optimizer's step is called with: a closure, if there is one, makes the loss only then."""
        closure = more.get("closure", given[1] if len(given) > 1 else None)
        if closure is None:
            self._check_step(part)
            return given, more

        def compute() -> Any:
            found = closure()
            self._check_step(part)
            return found

        return given[:1], {**more, "closure": compute}

    def _check_step(self, part: Optimizer) -> None:
        """Checks that the optimizer's own step would have been that of the plan.

        Raises:
            Error: where it would not.
        """
        if not any(other is part for other in self.waiting):
            return
        self.gradients.take()
        if self.numbers() != self.taken:
            said = "the optimizer's numbers were changed between the loss and optimizer.step(), and the step was made with those before"
            raise Error(f"{said}: change rates, and step schedulers, before the loss or after optimizer.step()")

    def _end(self, part: Optimizer) -> None:
        if self.missing == "loss.backward()":
            raise Error("optimizer.step() was called, and loss.backward() was not")
        if self.missing is not None:
            # As in PyTorch they stay until zero_grad(): another optimizer would use them too.
            self.gradients.put()
        self.waiting = [other for other in self.waiting if other is not part]
        self.missing = "step() of each optimizer" if self.waiting else None


class _Made(torch.autograd.Function):
    """The loss of a step whose gradients have been used already."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, loss: Tensor, loop: Loop) -> Tensor:
        """The loss."""
        ctx.loop = loop
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        """No gradients, as they are used."""
        ctx.loop.learn(float(gradients[0]))
        return None, None, None
