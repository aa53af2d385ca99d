"""Which training of a process is kept, and which ones train as without us."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.errors import Error
from holdfast.integrations.place import LoaderPlace
from holdfast.train import session
from tests.integrations.jobs import own_run
from tests.more import long, sample

LATER = "an earlier training in this process is already integrated"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Small trainings, and the integrations as in a process that has not joined yet."""
    module: Any = importlib.import_module("tests.integrations.trainings")
    own_run(monkeypatch)
    for ours in (module.of_lightning, module.of_transformers):
        monkeypatch.setattr(ours._switch, "automatic", False)
    return module


def automatic(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    """As in a worker, so far as the choice of a training asks."""
    monkeypatch.setattr(module._switch, "automatic", True)
    monkeypatch.setattr(module.drive, "under_holdfast", lambda: True)


@long
@pytest.mark.parametrize("asked", sample([False], [True]))
def test_lightning_trains_a_second_time_as_without_us(
    small: Any, asked: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if not asked:
        automatic(monkeypatch, small.of_lightning)
    trainer = small.fit(*([small.of_lightning.FitCallback()] if asked else []))
    model = small.Line()
    trainer.fit(model, small.loader())
    assert model.steps == 4 and session.joined() and LATER not in capfd.readouterr().err
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, small.loader())
    assert model.steps == 8 and LATER in capfd.readouterr().err


def test_a_checkpoint_left_unread_for_a_snapshot_that_is_damaged_is_read_after_all(
    small: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours = small.of_lightning
    first = small.fit(max_epochs=2)
    first.fit(small.Line(), small.loader())
    first.save_checkpoint(saved := tmp_path / "saved.ckpt")

    def goes_on(*callbacks: Any) -> tuple[Any, ...]:
        trainer, model = small.fit(*callbacks, max_epochs=4), small.Line()
        trainer.fit(model, small.loader(), ckpt_path=saved)
        weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
        return model.steps, trainer.global_step, trainer.current_epoch, weights

    for name in ("under_holdfast", "has_snapshots"):
        monkeypatch.setattr(ours.drive, name, lambda: True)
    monkeypatch.setattr(ours.drive.Drive, "snapshot_waits", lambda _: True)
    kept = goes_on(ours.FitCallback())
    assert session.joined() and kept[0] == 8
    assert kept == goes_on()


def test_a_checkpoint_is_read_where_a_hook_may_take_or_see_something_of_it(small: Any) -> None:
    ours = small.of_lightning

    class Old(small.lightning.LightningDataModule):  # type: ignore[misc]
        def on_load_checkpoint(self, _: Any) -> None:
            """Lightning 2 does not know it."""

    class Noting(small.lightning.Callback):  # type: ignore[misc]
        def on_fit_start(self, *_: Any) -> None:
            """It keeps a copy of the weights."""

    class Begins(small.Line):  # type: ignore[misc]
        def on_fit_start(self) -> None:
            """So does this."""

    def reads(*given: Any, model: Any = None, data: Any = None) -> bool:
        trainer = small.fit(ours.FitCallback(), *given)
        trainer.strategy.connect(model or small.Line())
        trainer.datamodule = data
        return bool(ours._hooks_read(trainer))

    kinds = small.lightning.pytorch.callbacks
    assert not reads(kinds.ModelSummary(), kinds.Timer(), data=Old())
    assert reads(Noting()) and reads(kinds.BackboneFinetuning()) and reads(model=Begins())


def test_a_checkpoint_left_unread_is_still_the_one_that_the_training_began_with(
    small: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Callbacks that save remove older files, but not that one."""
    ours = small.of_lightning
    track = ours.drive.Drive.track
    for name in ("under_holdfast", "has_snapshots"):
        monkeypatch.setattr(ours.drive, name, lambda: True)
    monkeypatch.setattr(ours.drive.Drive, "snapshot_waits", lambda _: True)
    monkeypatch.setattr(ours.drive.Drive, "track", lambda *own, **all_: track(*own, **all_) or 1)
    monkeypatch.setattr(ours._Fit, "_put_back", lambda *_: None)
    trainer = small.fit(ours.FitCallback())
    trainer.fit(small.Line(), small.loader(), ckpt_path=tmp_path / "saved.ckpt")
    assert trainer.ckpt_path == tmp_path / "saved.ckpt"


def test_a_lightning_training_that_fails_before_its_loop_is_not_the_next_one(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("no optimizer today")

    ours = small.of_lightning
    callback, model = ours.FitCallback(), small.Line()
    trainer = small.fit(callback)
    callback.kept = ours._Fit(trainer.fit_loop, False, True)  # as where a snapshot waits
    monkeypatch.setattr(model, "configure_optimizers", fails)
    with pytest.raises(ValueError, match="today"):
        trainer.fit(model, small.loader())
    assert callback.kept is None


def test_lightning_with_data_of_another_kind_is_left_alone(
    small: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    automatic(monkeypatch, small.of_lightning)
    loaders: tuple[Any, ...] = ([small.loader(), small.loader()], small.Batches())
    for loader in loaders:
        model = small.Line()
        small.fit().fit(model, loader)
        assert model.steps == 4 and not session.joined()
        assert "it needs one DataLoader to train on, not" in capfd.readouterr().err


def test_the_search_of_a_learning_rate_is_not_the_training_that_is_kept(
    small: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    automatic(monkeypatch, small.of_lightning)
    trainer, model = small.fit(), small.Line()
    small.Tuner(trainer).lr_find(model, small.loader(), num_training=3)
    assert model.steps and not session.joined()
    trainer.fit(model, small.loader())
    assert session.joined()


def test_what_was_restored_does_not_restart_where_steps_are_limited(small: Any) -> None:
    """A loop that restarts does not begin the data of later epochs."""
    kept: list[dict[str, Any]] = []

    class Notes(small.lightning.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, *_: Any) -> None:
            kept.append(callback.kept.state_dict())

    callback = small.of_lightning.FitCallback()
    small.fit(callback, Notes(), max_steps=6, max_epochs=-1).fit(small.Line(), small.loader())
    again = small.fit(max_steps=6, max_epochs=-1)
    again.strategy.connect(small.Line())
    restored = small.of_lightning._Fit(again.fit_loop, False, True)
    restored._place = LoaderPlace(small.loader())
    restored._put_back(kept[4])
    assert again.fit_loop.total_batch_idx == 4
    loop = again.fit_loop
    assert not (loop.restarting or loop.epoch_loop.restarting or loop.is_resuming)


def test_what_was_logged_comes_back_where_more_is_added_to_it(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot is read into memory of the host, and steps on a GPU add to sums on the GPU."""
    kept: list[dict[str, Any]] = []

    class Logs(small.Line):  # type: ignore[misc]
        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss: torch.Tensor = super().training_step(batch, number)
            self.log("loss", loss, on_epoch=True, on_step=True)
            return loss

    class Notes(small.lightning.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, *_: Any) -> None:
            kept.append(callback.kept.state_dict())

    callback = small.of_lightning.FitCallback()
    small.fit(callback, Notes(), max_steps=3).fit(Logs(), small.loader())
    again = small.fit(max_steps=3)
    again.strategy.connect(Logs())
    elsewhere = torch.device("meta")
    monkeypatch.setattr(type(again.strategy), "root_device", elsewhere)
    restored = small.of_lightning._Fit(again.fit_loop, False, True)
    restored._place = LoaderPlace(small.loader())
    restored._put_back(kept[1])
    assert again.callback_metrics["loss_step"].device == elsewhere
    results = again.fit_loop.epoch_loop._results
    (logged,) = kept[1]["logged"]
    small.of_lightning._log_again(results, logged, again.strategy)
    (one,) = results.values()
    devices = {one.value.device, one.cumulated_batch_size.device, one._forward_cache.device}
    assert devices == {elsewhere}


def test_transformers_trains_a_second_time_as_without_us(
    small: Any, tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    data: Any = [{"x": torch.ones(1)}] * 8
    trainer = small.Trainer(
        small.Squares(), small.arguments(tmp_path), train_dataset=data,
        callbacks=[small.of_transformers.Callback()],
    )  # fmt: skip
    trainer.train()
    assert session.joined() and LATER not in capfd.readouterr().err
    assert trainer.train().global_step == 2 and LATER in capfd.readouterr().err


@pytest.mark.parametrize("asked", [True, False])
def test_transformers_with_data_of_another_kind_is_left_alone(
    small: Any,
    asked: bool,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    callbacks = [small.of_transformers.Callback()] if asked else []
    trainer = small.OwnLoader(small.Squares(), small.arguments(tmp_path), callbacks=callbacks)
    if asked:
        with pytest.raises(Error, match="is not supported by") as caught:
            trainer.train()
        assert "a DataLoader to train on, not Batches" in caught.value.why
        return
    automatic(monkeypatch, small.of_transformers)
    assert trainer.train().global_step == 2 and not session.joined()
    assert "a DataLoader to train on, not Batches" in capfd.readouterr().err


def test_a_loop_over_accelerate_that_is_left_is_not_within_a_step(small: Any) -> None:
    accelerator = small.Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters()), small.loader())
    model, optimizer, loader = prepared
    kept = small.of_accelerate.keep(accelerator, model=model, optimizer=optimizer, loader=loader)
    for step, _ in kept.steps(total=9):
        assert kept._drive._steps is not None
        if step == 1:
            break
    assert kept._drive._steps is None
