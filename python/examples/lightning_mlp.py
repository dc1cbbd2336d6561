import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from graphc.parallel.lightning import GraphcStrategy


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


if __name__ == "__main__":
    rows = TensorDataset(torch.randn(64, 64), torch.randint(10, (64,)))
    trainer = lightning.Trainer(strategy=GraphcStrategy(mesh="auto"), accelerator="cpu", devices=2, max_epochs=5, log_every_n_steps=1)
    trainer.fit(Classifier(), DataLoader(rows, batch_size=8, shuffle=True))
    print(trainer.strategy.parallel.plan.predicted)
