"""The ``Trainer`` of transformers, whose steps are those of a plan. It needs transformers and accelerate."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn

from ..command import Error
from .model import Parallel, parallelize


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """A ``transformers.Trainer`` that plans its model with the first batch, for as many processes as torchrun has started.

    Its arguments say what they always say of rates, schedulers, decay, clipping, evaluation, saving and resuming, but batches that are not
    whole are left out, and evaluations give losses alone. A loss is the model's own, a mean over the labels that count in the whole batch.

    >>> trainer = Trainer(model, arguments, train_dataset=rows, plan={"mesh": (2, 2)})    # doctest: +SKIP
    >>> trainer.train()                                                                   # doctest: +SKIP
    """

    def __init__(self, *arguments: Any, plan: dict[str, Any] | None = None, **options: Any) -> None:
        """A trainer.

        Args:
            arguments: those of ``transformers.Trainer``.
            plan: options of :func:`graphc.parallelize`.
            options: those of ``transformers.Trainer``.

        Raises:
            Error: where they ask for what a plan has not.
        """
        super().__init__(*arguments, **options)
        self.plan_options = dict(plan or {})
        self.parallel: Parallel | None = None
        """The model as it is trained, once it is."""
        if self.args.gradient_accumulation_steps != 1:
            raise Error("gradient_accumulation_steps is no part of plans: take larger batches, and plan={'microbatches': N}")
        self.args.dataloader_drop_last = True
        _leave_processors_unnumbered(self.args)

    def create_accelerator_and_postprocess(self) -> None:
        """The accelerator, which leaves the model as it is."""
        super().create_accelerator_and_postprocess()
        self.accelerator.prepare_model = lambda model, *_, **__: model

    def train(self, *arguments: Any, **options: Any) -> Any:
        """Trains, and leaves the trained weights in the model."""
        self.parallel = None
        found = super().train(*arguments, **options)
        if self.parallel is not None:
            self.parallel.update_module()
        return found

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """A step of the plan."""
        model.train()
        batch = dict(self._prepare_inputs(inputs))
        if self.parallel is None:
            optimizer = self._bare_optimizer()
            norm = self.args.max_grad_norm or None
            self.parallel = parallelize(self.model, batch, optimizer=optimizer, max_norm=norm, **self.plan_options)
            optimizer.state.clear()
        return self.parallel.step(batch)

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """The norm of the gradients, which the plan has scaled down already."""
        return None if self.parallel is None else self.parallel.norm

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **options: Any) -> tuple[Any, None, None]:
        """The loss of a batch, of the whole of it on all processes."""
        batch = dict(self._prepare_inputs(inputs))
        if self.parallel is None:
            with torch.no_grad():
                return model(**batch).loss.detach(), None, None
        loss = self.parallel.eval()(batch)
        self.parallel.train()
        return loss, None, None

    def save_model(self, *arguments: Any, **options: Any) -> None:
        """Saves the model with the weights that it has by now."""
        if self.parallel is not None:
            self.parallel.update_module()
        super().save_model(*arguments, **options)

    def _bare_optimizer(self) -> Any:
        """PyTorch's own optimizer, which accelerate has wrapped."""
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Saves the optimizer's state in PyTorch's form, from which a training is resumed on any number of processes."""
        optimizer = self._bare_optimizer()
        if self.parallel is not None:
            optimizer.load_state_dict(self.parallel.optimizer_state_dict())
        super()._save_optimizer_and_scheduler(output_dir)
        optimizer.state.clear()


def _leave_processors_unnumbered(arguments: Any) -> None:
    """Lets a processor be ``cpu``: accelerate calls that of the second process ``cpu:1``, where ``torch.load`` puts nothing."""
    if arguments.device.type == "cpu":
        vars(arguments)["_setup_devices"] = torch.device("cpu")
