"""A step is repeated from a checkpoint: what happened once is told from what comes again."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main
from tests.end_to_end.local.jobs import TOGETHER, small
from tests.more import long

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


@long
def test_a_node_that_computes_wrong_is_found_by_the_others(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tiers = {"shared": {"path": str(home.parent / "checkpoints"), "every_s": 1}}
    args = ["--steps", "16", "--pause", "0.15", "--bad-node", "node-3", "--bad-step", "12"]
    small(home, args=args, checkpoints=tiers, nodes=1).start().wait_end()
    capfd.readouterr()
    words = ["replay", "job", "--step", "13", "--json"]
    assert main([*words, "--on", "node-2"]) == 0
    alike = json.loads(capfd.readouterr().out)
    assert alike["verdict"] == "genuine" and "on node-2 as well" in alike["summary"]
    assert main([*words, "--on", "node-3"]) == 1
    other = json.loads(capfd.readouterr().out)
    assert other["verdict"] == "elsewhere" and "so node-3 computes wrong" in other["summary"]
    assert main([*words, "--isolate", "--on", "node-1,node-2,node-3,node-4"]) == 1
    found = json.loads(capfd.readouterr().out)
    assert (found["nodes"], found["sure"], found["rounds"]) == (["node-3"], True, 2)
