"""A step is repeated from a checkpoint: what happened once is told from what comes again."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main
from tests.end_to_end.local.jobs import TOGETHER, small

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def test_a_loss_that_was_nan_once_is_known_to_have_passed(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = ["--bad", "loss", "--bad-rank", "0", "--bad-step", "12"]
    tiers = {"shared": {"path": str(home.parent / "checkpoints"), "every_s": 1}}
    args = [*bad, "--steps", "16", "--pause", "0.15"]
    keeps: dict[str, Any] = {"checkpoints": tiers, "recovery": {"on_nan": "ignore"}}
    small(home, args=args, **keeps, **TOGETHER).start().wait_end()
    before = sorted(path.name for path in (home.parent / "checkpoints").rglob("*"))
    capfd.readouterr()
    assert main(["replay", "job", "--step", "13"]) == 0
    told = capfd.readouterr().out
    assert "transient: Step 13 comes out otherwise than the first time (loss nan, now" in told
    assert sorted(path.name for path in (home.parent / "checkpoints").rglob("*")) == before
    assert [path.name for path in (home / "jobs").iterdir()] == ["job"]
    assert main(["replay", "job", "--step", "1"]) == 4
    assert "error[checkpoint-not-found]" in capfd.readouterr().err
