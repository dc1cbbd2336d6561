"""A strategy of Lightning's Trainer, whose steps are those of a plan. It needs lightning.

Lightning runs its loops, hooks, loggers and checkpoints as ever. ``training_step`` is captured with the first batch; after that a step of
the plan stands in its place, and in that of the gradients, clipping and update behind it. So are ``validation_step`` and ``test_step``,
of which each shape of batches has a plan; where they cannot be captured the module runs them itself, and a warning says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import BaseFinetuning, ModelPruning, StochasticWeightAveraging
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils import _pytree as pytree

from graphc_torch.session import join_job

from ..command import Error, Unplanned
from .batch import plain
from .evaluation import Evaluator
from .job import Job
from .model import Parallel, parallelize
from .names import names_of, tensors_of
from .planning import Mesh
from .recorded import Unknown, make, recorded, replaced
from .tensors import from_first, in_own_words

CONSTANT = {
    "max_epochs", "max_steps", "num_training_batches", "estimated_stepping_batches", "accumulate_grad_batches", "gradient_clip_val",
    "training", "validating", "testing", "predicting", "sanity_checking", "barebones",
}  # fmt: skip
"""What of a trainer ``training_step`` may read, as it is the same at each step."""

ALONE = {"world_size": 1, "num_nodes": 1, "num_devices": 1, "global_rank": 0, "local_rank": 0, "node_rank": 0, "is_global_zero": True}
"""What a trainer says of processes while a step is captured, for which the batch is that of all (:mod:`.of_distributed`)."""

OF_GRADIENTS = ("backward", "configure_gradient_clipping", "on_after_backward", "on_before_optimizer_step")
"""Hooks that look at gradients or change them."""

OF_WEIGHTS = (StochasticWeightAveraging, ModelPruning, BaseFinetuning)
"""Callbacks that change weights, or which of them are trained."""


class GraphcStrategy(DDPStrategy):  # type: ignore[misc]
    """Trains a LightningModule by a plan, on as many processes as the Trainer or torchrun starts.

    >>> trainer = lightning.Trainer(strategy=GraphcStrategy(mesh="auto"), max_epochs=3)    # doctest: +SKIP
    >>> trainer.fit(module, datamodule)                                                    # doctest: +SKIP
    """

    def __init__(self, mesh: Mesh = "auto", *, timeout: float = 300.0, **options: Any) -> None:
        """A strategy.

        Args:
            mesh: the ranks in a grid, or ``auto``.
            timeout: seconds after which a rank that waits for others gives up.
            options: further ones of :func:`graphc.parallelize`: ``cluster``, ``strategy``, ``microbatches``, ``precision``, ``pin``.
        """
        super().__init__(timeout=timedelta(seconds=timeout))
        self.options = {**options, "mesh": mesh, "timeout": timeout}
        self.parallel: Parallel | None = None
        """The model as it is trained, from the first step on."""
        self._batches: list[Any] = []
        self._saved: Mapping[str, Any] | None = None
        self._is_behind = False
        """Whether the module's weights are older than the plan's."""
        self._evaluators: dict[tuple[str, int], Evaluator | None] = {}
        """What evaluates by each method, with so many arguments; ``None`` where the module does it itself."""

    @property
    def handles_gradient_accumulation(self) -> bool:
        """A step of the plan takes all batches of which it is made."""
        return True

    def setup(self, trainer: pl.Trainer) -> None:
        """Checks what is asked for, and prepares as for data parallelism.

        Raises:
            Error: where the module or the trainer asks for what a plan has not.
        """
        _check(trainer, self.lightning_module)
        # Batch norms are those of the whole batch in any case.
        self._layer_sync = None
        self.parallel, self._saved, self._is_behind, self._batches = None, None, False, []
        self._evaluators = {}
        super().setup(trainer)

    def configure_ddp(self) -> None:
        """Leaves the module as it is."""

    def training_step(self, *arguments: Any, **options: Any) -> Any:
        """A step of the plan, with as many batches as are accumulated; before the last of them the loss is not known."""
        module = self.lightning_module
        trainer = module.trainer
        self._batches.append(plain(arguments[0]))
        if len(self._batches) < trainer.accumulate_grad_batches:
            if trainer.is_last_batch:
                left = f"{len(self._batches)} of the {trainer.accumulate_grad_batches} batches"
                raise Error(f"the epoch ends with {left} of a step: let limit_train_batches be a multiple of accumulate_grad_batches")
            return torch.full((), float("nan"), device=self.root_device)
        batches, self._batches = self._batches, []
        if self.parallel is None:
            self.parallel = self._begin(trainer, batches[0], len(arguments))
        loss = self.parallel.step(*batches)
        self._is_behind = True
        make(self.parallel.beside["calls"], module)
        output = self.parallel.beside["output"]
        return loss if output is None else {**output, "loss": loss}

    def backward(self, closure_loss: Tensor, *arguments: Any, **options: Any) -> Tensor:
        """Nothing is left to do: the step was made with the loss."""
        return closure_loss.detach()

    def validation_step(self, *arguments: Any, **options: Any) -> Any:
        """The same of a plan, with the weights of now."""
        return self._evaluate("validation_step", arguments, options)

    def test_step(self, *arguments: Any, **options: Any) -> Any:
        """The same of a plan, with the weights of now."""
        return self._evaluate("test_step", arguments, options)

    def on_validation_start(self) -> None:
        """Writes the weights into the module, whose hooks may look at them."""
        self._update_module()

    def on_train_end(self) -> None:
        """Leaves the trained weights in the module."""
        self._update_module()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The weights, whole."""
        found: dict[str, Any] = super().lightning_module_state_dict() if self.parallel is None else self.parallel.state_dict()
        return found

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """The optimizer's state in PyTorch's form, from which plain Lightning goes on too."""
        if self.parallel is not None:
            own: dict[str, Any] = self.parallel.optimizer_state_dict()
            return own
        found: dict[str, Any] = super().optimizer_state(optimizer)
        return found

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Takes on a state, which the plan does when there is one."""
        super().load_optimizer_state_dict(checkpoint)
        self._saved = checkpoint["optimizer_states"][0]

    def _begin(self, trainer: pl.Trainer, batch: Any, count: int) -> Parallel:
        """Plans a module with its first batch."""
        optimizer = self.optimizers[0]
        parallel = parallelize(
            self.lightning_module, batch, forward=lambda module, batch: _run(module, "training_step", batch, count), loss=_both,
            optimizer=optimizer, accumulate=trainer.accumulate_grad_batches, max_norm=trainer.gradient_clip_val or None,
            device=self.root_device, **self.options,
        )  # fmt: skip
        if self._saved is not None:
            parallel.load_optimizer_state_dict(self._saved)
            self._saved = None
        optimizer.state.clear()
        return parallel

    def _evaluate(self, step: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """What a method that evaluates gives, by a plan where it has one."""
        key = (step, len(arguments))
        if key not in self._evaluators:
            self._evaluators[key] = self._evaluator(step, len(arguments))
        evaluator = self._evaluators[key]
        if evaluator is not None:
            try:
                # What is made in inference mode could be changed nowhere else.
                with torch.inference_mode(False), torch.no_grad():
                    found = evaluator.prediction(plain(arguments[0]), self._version, whole=False)
            except Unplanned as reason:
                rank_zero_warn(f"the module runs {step} itself, as it has no plan: {reason}")
                self._evaluators[key] = None
            else:
                make(found["calls"], self.lightning_module)
                return found["output"]
        return getattr(super(), step)(*arguments, **options)

    def _evaluator(self, step: str, count: int) -> Evaluator | None:
        """What plans for a method of so many arguments, in full precision."""
        module = self.lightning_module
        if module.trainer.precision != "32-true" or count == 0:
            return None
        options = dict(self.options)
        mesh, timeout = options.pop("mesh"), options.pop("timeout")
        with in_own_words():
            rank = join_job(self.root_device, timeout)
        job = Job(
            module, names_of(module), None, lambda module, batch: _run(module, step, batch, count), rank, self.world_size, self.root_device,
            timeout, mesh, options,
        )  # fmt: skip
        return Evaluator(job, self._content)

    def _content(self, name: str) -> Tensor:
        """What a tensor of the module holds by now, on the first process."""
        if self.parallel is not None:
            return self.parallel._content(name)
        return from_first(tensors_of(self.lightning_module)[name].detach(), self.world_size, self.root_device)

    @property
    def _version(self) -> int:
        """How often the weights have changed."""
        return 0 if self.parallel is None else 1 + self.parallel._version

    def _update_module(self) -> None:
        if self.parallel is not None and self._is_behind:
            with torch.inference_mode(False), torch.no_grad():
                self.parallel.update_module()
            self._is_behind = False


def _check(trainer: pl.Trainer, module: Any) -> None:
    """Checks what a plan is asked for.

    Raises:
        Error: where it has not got it.
    """
    if trainer.state.fn != "fit":
        return
    if not module.automatic_optimization:
        raise Error("the module optimizes by hand (automatic_optimization=False), and a plan makes whole steps: let Lightning optimize it")
    if trainer.precision != "32-true":
        raise Error(f"Trainer(precision={trainer.precision!r}) is no part of plans: GraphcStrategy(precision='bf16') is")
    if trainer.gradient_clip_val and trainer.gradient_clip_algorithm == "value":
        raise Error("a plan scales gradients down by their norm: gradient_clip_algorithm='norm'")
    for callback in trainer.callbacks:
        if isinstance(callback, OF_WEIGHTS) or type(callback).__name__ in ("WeightAveraging", "EMAWeightAveraging"):
            raise Error(f"{type(callback).__name__} changes weights between steps, and those of a plan lie elsewhere: leave it out")
    for part, parent in ((module, pl.LightningModule), *((callback, pl.Callback) for callback in trainer.callbacks)):
        for hook in OF_GRADIENTS:
            if hasattr(parent, hook) and is_overridden(hook, part, parent=parent):
                advice = "leave it out; gradient_clip_val scales gradients down, and strategy.parallel.norm is their norm then"
                raise Error(f"{type(part).__name__} has {hook}, and a plan does not show gradients: {advice}")


def _run(module: Any, step: str, batch: Any, count: int) -> Any:
    """What a method gives, and what it says beside it."""
    more = [_changing(step, f"its argument {number + 1}, the number of the batch,") for number in range(1, count)]
    guard = _Constants(module.trainer, step)
    parts = [part for part in module.modules() if isinstance(part, pl.LightningModule)]
    with recorded(module, step) as record, ExitStack() as stack:
        for part in parts:
            stack.enter_context(replaced(part, "_trainer", guard))
            stack.enter_context(replaced(part, "all_gather", partial(_gathered, module.trainer.world_size)))
        output = getattr(module, step)(batch, *more)
    return {"output": output, "calls": record.calls}


def _gathered(world: int, data: Any, group: Any = None, sync_grads: bool = False) -> Any:
    """What Lightning gathers of one process, as of several: behind another dim, which it leaves out where there is but one process."""
    if group is not None:
        raise Error("all_gather(group=..) speaks to some processes alone, and a plan's batch is that of all: leave the group out")

    def gather(x: Tensor) -> Tensor:
        own = x if sync_grads else x.detach()
        return own if world == 1 else own.unsqueeze(0)

    return pytree.tree_map_only(Tensor, gather, data)


def _both(found: Any, batch: Any) -> Any:
    """The loss, and what stands beside it."""
    output = found["output"]
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if not isinstance(loss, Tensor):
        raise Error(f"training_step gives {type(output).__name__}: let it return the loss, or a mapping with `loss`")
    others = {name: part for name, part in output.items() if name != "loss"} if isinstance(output, Mapping) else None
    return loss, {"output": others, "calls": found["calls"]}


def _changing(step: str, what: str) -> Unknown:
    return Unknown(f"{step} reads {what} and is captured once, for all steps: let the batch hold it as a tensor")


class _Constants:
    """A trainer of which only what never changes can be read."""

    def __init__(self, trainer: Any, step: str) -> None:
        self._of, self._step = trainer, step

    def __getattr__(self, name: str) -> Any:
        """What the trainer has.

        Raises:
            Error: where it may be another at another step.
        """
        if name in ALONE:
            return ALONE[name]
        if name in CONSTANT:
            return getattr(self._of, name)
        return _changing(self._step, f"`trainer.{name}`,")._refuse()
