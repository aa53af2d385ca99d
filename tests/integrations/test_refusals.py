"""What an integration cannot keep is said before the first step, and how it would fit.

Trainers take seconds to import, and are imported where they are tested: each process that runs
tests collects them all.
"""

import importlib
import importlib.metadata
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.errors import Error, ExitStatus
from holdfast.integrations import drive
from holdfast.train import join
from tests.integrations.jobs import own_run


@pytest.mark.parametrize(
    ("trainer", "make"), [("transformers", "Callback"), ("lightning", "FitCallback")]
)
@pytest.mark.parametrize("version", ["1.9.0", "9.0.0.dev0", "9"])
def test_a_version_that_was_not_tried_is_named(
    trainer: str, make: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(f"holdfast.integrations.{trainer}")
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: version)
    with pytest.raises(Error, match="not supported") as caught:
        getattr(module, make)()
    assert version in caught.value.what and "pip install" in caught.value.help
    assert caught.value.status is ExitStatus.USAGE
    monkeypatch.setattr(module._switch, "automatic", False)
    module.switch_on()  # by itself it leaves such a trainer alone
    assert module._switch.automatic is False


def test_a_version_whose_inside_is_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.integrations import transformers as ours

    monkeypatch.delattr("transformers.Trainer._run_epoch")
    with pytest.raises(Error) as caught:
        ours.Callback()
    assert "_run_epoch()" in caught.value.why


def test_two_integrations_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    own_run(monkeypatch)
    drive.Drive("transformers.Trainer")
    with pytest.raises(Error) as caught:
        drive.Drive("lightning.Trainer")
    assert "lightning.Trainer" in caught.value.what
    assert "integration for transformers.Trainer" in caught.value.why


def test_an_integration_beside_join_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    own_run(monkeypatch)
    join()
    with pytest.raises(Error) as caught:
        drive.Drive("transformers.Trainer")
    assert "join()" in caught.value.why


def trainer(**settings: Any) -> Any:
    args = {"auto_find_batch_size": False, "n_gpu": 0}
    known = {"is_deepspeed_enabled": False, "is_fsdp_enabled": False}
    plugin = SimpleNamespace(fsdp_version=1)
    return SimpleNamespace(
        args=SimpleNamespace(**{k: settings.get(k, v) for k, v in args.items()}),
        accelerator=SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)),
        callback_handler=SimpleNamespace(callbacks=settings["callbacks"]),
        **{k: settings.get(k, v) for k, v in known.items()},
    )


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"is_deepspeed_enabled": True}, "holdfast.integrations.deepspeed"),
        ({"is_fsdp_enabled": True}, "fsdp_version 2"),
        ({"auto_find_batch_size": True}, "restarts the training"),
        ({"n_gpu": 2}, "DataParallel"),
    ],
)
def test_a_training_that_cannot_be_kept_is_refused_or_left_alone(
    setting: dict[str, Any],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from holdfast.integrations import transformers as ours

    own_run(monkeypatch)
    asked = trainer(callbacks=[ours.Callback()], **setting)
    with pytest.raises(Error, match="is not supported by") as caught:
        ours._callback_of(asked)
    assert why in caught.value.why
    monkeypatch.setattr(ours._switch, "automatic", True)
    monkeypatch.setenv("HOLDFAST_ARENA_FD", "3")
    assert ours._callback_of(trainer(callbacks=[], **setting)) is None
    said = capfd.readouterr().err
    assert "transformers.Trainer is not integrated" in said and why in said


def test_lightning_with_data_that_cannot_resume_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import lightning

    from holdfast.integrations.lightning import FitCallback

    class Stream(torch.utils.data.IterableDataset[torch.Tensor]):
        def __iter__(self) -> Any:
            return iter(torch.ones(4, 1))

    class Nothing(lightning.LightningModule):  # type: ignore[misc]
        def training_step(self, *_: Any) -> None:
            raise AssertionError("a step was begun")

        def configure_optimizers(self) -> None:
            return None

    own_run(monkeypatch)
    keep = FitCallback()
    fit = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[keep],
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(Stream())
    with pytest.raises(Error, match="cannot be resumed") as caught:
        fit.fit(Nothing(), loader)
    assert "Stream" in caught.value.what
    loaders: Any = [torch.utils.data.DataLoader(torch.ones(4, 1))] * 2  # type: ignore[arg-type]
    with pytest.raises(Error, match="is not supported by") as caught:
        fit.fit(Nothing(), loaders)
    assert "one DataLoader" in caught.value.why
