"""The network of the restart benchmark trained by Lightning, which saves every 20 steps and resumes
from what it has saved: the script of somebody who restarts with torchrun."""

import os
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from network import BATCH, Inputs, StepLog, mark, network

EVERY = 20
mark("imported")


class Classifier(lightning.LightningModule):  # type: ignore[misc]
    """Logs each step, which is the measuring device."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()
        self._log = StepLog()

    def on_train_start(self) -> None:
        mark("training")

    def training_step(self, batch: Any, _: int) -> Tensor:
        inputs, targets = batch
        return cross_entropy(self.net(inputs), targets)

    def on_train_batch_end(self, *_: Any) -> None:
        self._log.done(self.trainer.fit_loop.total_batch_idx + 1)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3, momentum=0.9)


def main() -> None:
    out = Path(os.environ["BENCHMARK_CHECKPOINT"])
    saves = ModelCheckpoint(out, every_n_train_steps=EVERY, save_last=True, save_top_k=1)
    trainer = lightning.Trainer(
        max_steps=int(os.environ["BENCHMARK_TOTAL"]),
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        callbacks=[saves],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier()
    mark("built")
    newest = out / "last.ckpt"
    found = str(newest) if newest.exists() else None
    trainer.fit(model, DataLoader(Inputs(), BATCH), ckpt_path=found)


if __name__ == "__main__":
    main()
