"""Small trainings for tests of what is kept, apart because importing trainers takes seconds."""

from collections.abc import Iterator
from typing import Any

import lightning
import torch
from accelerate import Accelerator
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer, TrainingArguments

from holdfast.integrations import accelerate as of_accelerate
from holdfast.integrations import lightning as of_lightning
from holdfast.integrations import transformers as of_transformers

__all__ = ["Accelerator", "Tuner", "of_accelerate", "of_lightning", "of_transformers"]

DATA = TensorDataset(torch.ones(8, 1))


class Line(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net, self.lr, self.steps = torch.nn.Linear(1, 1), 0.1, 0

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.steps += 1
        while not isinstance(batch, torch.Tensor):  # of several loaders, a data set, or `Batches`
            batch = batch["x"] if isinstance(batch, dict) else batch[0]
        return self.net(batch).square().mean()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), self.lr)


class Batches:
    """Not a DataLoader."""

    def __iter__(self) -> Iterator[Any]:
        return iter([{"x": torch.ones(2, 1)}] * 4)

    def __len__(self) -> int:
        return 4


class Squares(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.net(x).square().mean()}


def loader() -> "DataLoader[Any]":
    return DataLoader(DATA, 2)


def fit(*callbacks: Any, **settings: Any) -> lightning.Trainer:
    return lightning.Trainer(
        **{"max_epochs": 1, **settings}, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=list(callbacks),
    )  # fmt: skip


def arguments(folder: Any, **settings: Any) -> TrainingArguments:
    return TrainingArguments(
        str(folder), max_steps=2, per_device_train_batch_size=2, use_cpu=True, report_to=[],
        save_strategy="no", disable_tqdm=True, remove_unused_columns=False, **settings,
    )  # fmt: skip


class OwnLoader(Trainer):  # type: ignore[misc]
    def get_train_dataloader(self) -> Any:
        return Batches()
