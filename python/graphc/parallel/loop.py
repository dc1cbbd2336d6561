"""The usual loop of PyTorch, ``loss = model(batch); loss.backward(); optimizer.step()``: a plan makes the whole step with the loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..command import Error


class Loop:
    """Watches that a loop makes of each loss the one step that was made already."""

    def __init__(self, optimizer: Optimizer) -> None:
        """A loop of this optimizer, whose own step has no gradients and changes nothing."""
        self.anchor = torch.zeros((), requires_grad=True)
        self.missing: str | None = None
        """What must be called before the next loss."""
        optimizer.register_step_post_hook(lambda *_: self._end())

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
        self.missing = "loss.backward()"
        found: Tensor = _Made.apply(self.anchor, loss, self)  # type: ignore[no-untyped-call]
        return found

    def learn(self, factor: float) -> None:
        """Takes note of ``backward``.

        Raises:
            Error: where it is of something else than the loss.
        """
        if factor != 1.0:
            advice = "accumulate=N and precision='f16' scale by themselves"
            raise Error(f"the step was made of the loss, and backward is called on something whose gradient by it is {factor}: {advice}")
        self.missing = "optimizer.step()"

    def _end(self) -> None:
        if self.missing == "loss.backward()":
            raise Error("optimizer.step() was called, and loss.backward() was not")
        self.missing = None


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
