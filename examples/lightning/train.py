"""A small network that learns a function, trained by Lightning: a script as it usually is.

    holdfast run examples/lightning/job.yaml

Nothing in it is Holdfast's. Under Holdfast the trainer's state is kept in memory all the same
(`integrate: auto`); written out, that is `callbacks=[FitCallback()]` from
`holdfast.integrations.lightning`.
"""

import argparse
import os
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Curve(lightning.LightningModule):  # type: ignore[misc]
    """Learns a sine from its points."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Dropout(0.05), torch.nn.Linear(64, 1)
        )

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        x, y = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(x), y), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", default="out")
    options = parser.parse_args()
    lightning.seed_everything(0)
    x = torch.rand(640, 1) * 6
    data = TensorDataset(x, x.sin())
    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy="ddp" if "RANK" in os.environ else "auto",
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        default_root_dir=options.out,
        enable_progress_bar=False,
        logger=False,
    )
    loaders = DataLoader(data, batch_size=16, shuffle=True), DataLoader(data, batch_size=64)
    trainer.fit(Curve(), *loaders)


if __name__ == "__main__":
    main()
