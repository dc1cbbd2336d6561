"""Trainings by Lightning's Trainer, with its own strategy or that of graphc: what tests run on each process of a world."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from graphc.parallel.lightning import GraphcStrategy

STEPS = 20


class Rows(lightning.LightningDataModule):
    """Batches of 8 rows, of which each process has its share."""

    def train_dataloader(self) -> DataLoader[Any]:
        return self._loader(80)

    def val_dataloader(self) -> DataLoader[Any]:
        return self._loader(16)

    def test_dataloader(self) -> DataLoader[Any]:
        return self._loader(20)

    def _loader(self, count: int) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(count)
        rows = TensorDataset(torch.randn(count, 12, generator=generator), torch.randint(5, (count,), generator=generator))
        world, rank = self.trainer.world_size, self.trainer.global_rank
        return DataLoader(rows, 8 // world, sampler=DistributedSampler(rows, world, rank, shuffle=False))


class Classifier(lightning.LightningModule):
    """It logs a loss, a metric and a number, and returns more than the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 5))
        self.accuracy = MulticlassAccuracy(5, average="micro")
        self.seen: list[float] = []
        self.evaluated = 0

    def plain(self) -> Classifier:
        """Without batch norm, which depends on what makes a batch."""
        self.layers[1] = nn.Tanh()
        return self

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        scores = self.layers(batch[0])
        loss = nn.functional.cross_entropy(scores, batch[1])
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True, batch_size=8)
        self.log("mean", scores.mean(), reduce_fx=torch.max, on_step=False, on_epoch=True)
        self.accuracy(scores, batch[1])
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        self.log_dict({"width": 32.0, "share": (scores > 0).float().mean()})
        return {"loss": loss, "best": scores.argmax(-1)}

    def on_train_batch_end(self, outputs: Any, batch: list[Tensor], batch_idx: int) -> None:
        if outputs["loss"].isfinite():
            self.seen.append(float(outputs["loss"]))
            assert outputs["best"].shape[0] % batch[0].shape[0] == 0

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.evaluated += 1
        self.log("val_loss", nn.functional.cross_entropy(self.layers(batch[0]), batch[1]), sync_dist=True)

    def test_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.evaluated += 1
        scores = self.layers(batch[0])
        self.accuracy(scores, batch[1])
        self.log("test_accuracy", self.accuracy)
        self.log("test_loss", nn.functional.cross_entropy(scores, batch[1]), sync_dist=True)
        return scores

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def trainer_of(folder: Path, engine: str, world: int, **options: Any) -> lightning.Trainer:
    """A trainer that says nothing."""
    strategy = {"strategy": GraphcStrategy()} if engine == "graphc" else {}
    return lightning.Trainer(
        accelerator="cpu", devices=world, default_root_dir=folder, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False, **strategy, **options,
    )  # fmt: skip


def fit(folder: Path, engine: str, resume: Path | None = None, module: Callable[[Classifier], Any] | None = None, **options: Any) -> Any:
    """Losses of the steps, what was logged, and the sum of the weights in the module."""
    torch.manual_seed(0)
    world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else int(options.pop("world", 1))
    model = Classifier() if module is None else module(Classifier())
    callbacks = [LearningRateMonitor(), ModelCheckpoint(folder, "epoch{epoch}", auto_insert_metric_name=False, save_top_k=-1)]
    settings = {"max_epochs": 2, "gradient_clip_val": 0.5, "log_every_n_steps": 1, **options}
    trainer = trainer_of(folder, engine, world, logger=CSVLogger(folder, "", ""), callbacks=callbacks, **settings)
    trainer.fit(model, datamodule=Rows(), ckpt_path=resume)
    return model.seen, logged(folder) if trainer.is_global_zero else [], [float(part.sum()) for part in model.state_dict().values()]


def evaluate(folder: Path, engine: str, world: int, module: Callable[[Classifier], Any] | None = None) -> Any:
    """What evaluations before, in and behind a training log, how often the module's own methods ran, and warnings that there is no plan."""
    torch.manual_seed(0)
    model = Classifier() if module is None else module(Classifier())
    trainer = trainer_of(folder, engine, world, max_epochs=2, logger=False, enable_checkpointing=False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = trainer.validate(model, datamodule=Rows(), verbose=False)
        trainer.fit(model, datamodule=Rows())
        found.append({"val_loss": float(trainer.callback_metrics["val_loss"])})
        found += trainer.test(model, datamodule=Rows(), verbose=False)
    lines = [{name: float(value) for name, value in line.items()} for line in found]
    return lines, model.evaluated, [str(one.message) for one in said if "no plan" in str(one.message)]


def logged(folder: Path) -> list[dict[str, float]]:
    """The lines of the log, without what is not there."""
    with open(folder / "metrics.csv") as file:
        return [{name: float(value) for name, value in line.items() if value} for line in csv.DictReader(file)]
