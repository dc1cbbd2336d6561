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
    whole are left out, in evaluations too. A loss is the model's own, a mean over the labels that count in the whole batch,
    or that of ``compute_loss`` of a subclass, of ``compute_loss_func`` or of ``label_smoothing_factor``.

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
        if self.args.bf16 or self.args.fp16:
            self.plan_options.setdefault("precision", "bf16" if self.args.bf16 else "f16")
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
            own = {"forward": self._own_loss, "loss": _loss_of} if self._has_own_loss() else {}
            self.parallel = parallelize(self.model, batch, optimizer=optimizer, max_norm=norm, **{**own, **self.plan_options})
            optimizer.state.clear()
        return self.parallel.step(batch)

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """The norm of the gradients, which the plan has scaled down already."""
        return None if self.parallel is None else self.parallel.norm

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, Any, Any]:
        """The loss of a batch, of the whole of it on all processes, and with it what the model says of this process's rows."""
        if self.parallel is None:
            found: tuple[Any, Any, Any] = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
            return found
        batch = dict(self._prepare_inputs(inputs))
        if prediction_loss_only:
            loss = self.parallel.eval()(batch)
            self.parallel.train()
            return loss, None, None
        output = self.parallel.predict(batch)
        loss, output = output if self._has_own_loss() else (output.get("loss"), output)
        left_out: list[str] = ignore_keys or getattr(self.model.config, "keys_to_ignore_at_inference", [])
        said = tuple(value for name, value in output.items() if name not in ("loss", *left_out))
        labels = tuple(batch[name] for name in self.label_names if batch.get(name) is not None)
        return loss, _one_or_all(said), _one_or_all(labels)

    def save_model(self, *arguments: Any, **options: Any) -> None:
        """Saves the model with the weights that it has by now."""
        if self.parallel is not None:
            self.parallel.update_module()
        super().save_model(*arguments, **options)

    def _has_own_loss(self) -> bool:
        """Whether the loss is another than the model's own."""
        is_own = type(self).compute_loss is not transformers.Trainer.compute_loss
        return is_own or self.label_smoother is not None or self.compute_loss_func is not None

    def _own_loss(self, model: nn.Module, batch: dict[str, Any]) -> Any:
        """The loss of a batch by ``compute_loss``, in ``eval`` mode beside the model's output; labels are counted in the whole batch."""
        options: dict[str, Any] = {}
        if not model.training and any(batch.get(name) is None for name in self.label_names):
            return None, model(**batch)
        if self.compute_loss_func is not None and "labels" in batch:
            options["num_items_in_batch"] = (batch["labels"] != -100).sum()
        # It may take labels out of what it is given.
        return self.compute_loss(model, dict(batch), return_outputs=not model.training, **options)

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


def _loss_of(output: Any, batch: Any) -> Tensor:
    """The loss, alone or beside an output."""
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def _one_or_all(found: tuple[Any, ...]) -> Any:
    """One tensor as it is, and several as a tuple; ``None`` where there is none."""
    return (found[0] if len(found) == 1 else found) if found else None


def _leave_processors_unnumbered(arguments: Any) -> None:
    """Lets a processor be ``cpu``: accelerate calls that of the second process ``cpu:1``, where ``torch.load`` puts nothing."""
    if arguments.device.type == "cpu":
        vars(arguments)["_setup_devices"] = torch.device("cpu")
