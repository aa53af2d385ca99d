"""A checkpoint of a trainer whose process was killed while it saved."""

import importlib
import shutil
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def trainings(tmp_path: Path) -> Any:
    """With a checkpoint of step 2 that is whole, and a half one of step 3."""
    module: Any = importlib.import_module("tests.integrations.trainings")
    trainer = _trainer(module, tmp_path)
    trainer.train()
    trainer._save_checkpoint(trainer.model, None)
    half = shutil.copytree(tmp_path / "checkpoint-2", tmp_path / "checkpoint-3")
    (half / "trainer_state.json").unlink()  # what is written last
    return module


def _trainer(module: Any, folder: Path) -> Any:
    data: Any = [{"x": module.torch.ones(1)}] * 8
    return module.Trainer(module.Squares(), module.arguments(folder), train_dataset=data)


@pytest.mark.parametrize("asked", [True, "checkpoint-3"])
def test_training_goes_on_from_the_last_whole_one(
    trainings: Any, tmp_path: Path, asked: Any, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = _trainer(trainings, tmp_path)
    trainer.args.max_steps = 4
    trainer.train(resume_from_checkpoint=asked is True or str(tmp_path / asked))
    assert trainer.state.global_step == 4 and trainer._initial_global_step == 2
    assert "checkpoint-3 is incomplete" in caplog.text and "checkpoint-2 instead" in caplog.text


def test_where_none_is_whole_training_begins_anew(
    trainings: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_text('{"epoch": 1.0, "glo')
    trainer = _trainer(trainings, tmp_path)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 2 and trainer._initial_global_step == 0
    assert "no earlier one is complete" in caplog.text


def test_what_is_whole_or_is_not_the_trainer_s_is_left_to_it(
    trainings: Any, tmp_path: Path
) -> None:
    whole = trainings.of_transformers.whole_checkpoint
    (tmp_path / "mine").mkdir()
    for asked in ("checkpoint-2", "mine", "checkpoint-9"):
        assert whole(str(tmp_path / asked)) == str(tmp_path / asked)
