"""Which training of a process is kept, and which ones train as without us."""

from collections.abc import Iterator
from typing import Any

import lightning
import pytest
import torch
from accelerate import Accelerator
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer, TrainingArguments

from holdfast.errors import Error
from holdfast.integrations import accelerate as ours_of_accelerate
from holdfast.integrations import lightning as ours_of_lightning
from holdfast.integrations import transformers as ours_of_transformers
from holdfast.integrations.place import LoaderPlace
from holdfast.train import session
from tests.integrations.jobs import own_run

DATA = TensorDataset(torch.ones(8, 1))
LATER = "an earlier training of this process is the one that is kept"


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


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not joined yet."""
    own_run(monkeypatch)
    for module in (ours_of_lightning, ours_of_transformers):
        monkeypatch.setattr(module._switch, "automatic", False)


def automatic(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    """As in a worker, so far as the choice of a training asks."""
    monkeypatch.setattr(module._switch, "automatic", True)
    monkeypatch.setattr(module.drive, "under_holdfast", lambda: True)


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


@pytest.mark.parametrize("asked", [True, False])
def test_lightning_trains_a_second_time_as_without_us(
    asked: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if not asked:
        automatic(monkeypatch, ours_of_lightning)
    trainer = fit(*([ours_of_lightning.FitCallback()] if asked else []))
    model = Line()
    trainer.fit(model, DataLoader(DATA, 2))
    assert model.steps == 4 and session.joined() and LATER not in capfd.readouterr().err
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, DataLoader(DATA, 2))
    assert model.steps == 8 and LATER in capfd.readouterr().err


def test_lightning_with_data_of_another_kind_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    automatic(monkeypatch, ours_of_lightning)
    loaders: tuple[Any, ...] = ([DataLoader(DATA, 2), DataLoader(DATA, 2)], Batches())
    for loader in loaders:
        model = Line()
        fit().fit(model, loader)
        assert model.steps == 4 and not session.joined()
        assert "it needs one DataLoader to train on, not" in capfd.readouterr().err


def test_the_search_of_a_learning_rate_is_not_the_training_that_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    automatic(monkeypatch, ours_of_lightning)
    trainer, model = fit(), Line()
    Tuner(trainer).lr_find(model, DataLoader(DATA, 2), num_training=3)
    assert model.steps and not session.joined()
    trainer.fit(model, DataLoader(DATA, 2))
    assert session.joined()


def test_what_was_restored_does_not_restart_where_steps_are_limited() -> None:
    """A loop that restarts does not begin the data of later epochs."""
    kept: list[dict[str, Any]] = []

    class Notes(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, *_: Any) -> None:
            kept.append(callback.kept.state_dict())  # type: ignore[union-attr]

    callback = ours_of_lightning.FitCallback()
    fit(callback, Notes(), max_steps=6, max_epochs=-1).fit(Line(), DataLoader(DATA, 2))
    again = fit(max_steps=6, max_epochs=-1)
    again.strategy.connect(Line())
    restored = ours_of_lightning._Fit(again.fit_loop, False, True)
    restored._place = LoaderPlace(DataLoader(DATA, 2))
    restored._put_back(kept[4])
    assert again.fit_loop.total_batch_idx == 4
    loop = again.fit_loop
    assert not (loop.restarting or loop.epoch_loop.restarting or loop.is_resuming)


def test_transformers_trains_a_second_time_as_without_us(
    tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    data: Any = [{"x": torch.ones(1)}] * 8
    trainer = Trainer(
        Squares(), arguments(tmp_path), train_dataset=data,
        callbacks=[ours_of_transformers.Callback()],
    )  # fmt: skip
    trainer.train()
    assert session.joined() and LATER not in capfd.readouterr().err
    assert trainer.train().global_step == 2 and LATER in capfd.readouterr().err


@pytest.mark.parametrize("asked", [True, False])
def test_transformers_with_data_of_another_kind_is_left_alone(
    asked: bool,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Own(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return Batches()

    callbacks = [ours_of_transformers.Callback()] if asked else []
    trainer = Own(Squares(), arguments(tmp_path), callbacks=callbacks)
    if asked:
        with pytest.raises(Error, match="cannot be kept") as caught:
            trainer.train()
        assert "a DataLoader to train on, not Batches" in caught.value.why
        return
    automatic(monkeypatch, ours_of_transformers)
    assert trainer.train().global_step == 2 and not session.joined()
    assert "a DataLoader to train on, not Batches" in capfd.readouterr().err


def test_a_loop_over_accelerate_that_is_left_is_not_within_a_step() -> None:
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters()), DataLoader(DATA, 2))
    model, optimizer, loader = prepared
    kept = ours_of_accelerate.keep(accelerator, model=model, optimizer=optimizer, loader=loader)
    for step, _ in kept.steps(total=9):
        assert kept._drive._steps is not None
        if step == 1:
            break
    assert kept._drive._steps is None
