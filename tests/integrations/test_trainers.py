"""Trainers go on bit for bit after a kill, asked for by a line or not at all."""

from pathlib import Path

import pytest

from tests.end_to_end.local.jobs import RunningJob, guide
from tests.integrations.jobs import job, written
from tests.more import long, sample
from tests.tidy.source import ROOT
from tests.warm import holdfast

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def end(one: RunningJob, incidents: int, most: int = 1) -> None:
    """`most`: steps lost; gradients that are accumulated over two batches are two of them."""
    one.wait_end()
    found = one.incidents()
    assert len(found) == incidents
    assert all((incident.steps_lost or 0) <= most for incident in found), found


@pytest.mark.parametrize(
    ("script", "kills", "steps"),
    sample(
        [("trainer.py", "3", 16), ("fit.py", "14", 21)],  # within an epoch, where one ends
        [  # both, in the first step of one, and in many
            ("trainer.py", "3,16", 16),
            ("fit.py", "3,14", 21),
            ("trainer.py", "3,5,16", 16),
            ("fit.py", "3,7,14", 21),
            ("trainer.py", "1,4,7,10,13", 16),
            ("fit.py", "2,6,13,20", 21),
        ],
    ),
)
def test_a_script_that_knows_nothing_of_holdfast_goes_on_bit_for_bit(
    home: Path, script: str, kills: str, steps: int
) -> None:
    job(home, script, "plain", {}, integrate="off").wait_end()
    kept = job(home, script, "kept", {"KILL": kills, "RESUME": "1"})
    end(kept, kills.count(",") + 1, most=1 if script == "trainer.py" else 2)
    assert written(home, "kept") == written(home, "plain")
    assert kept.status().step == steps
    numbers = {line["step"]: line for line in kept.metrics()}
    assert len(numbers) == steps and all(line["loss"] > 0 for line in numbers.values())
    assert any(line["grad_norm"] for line in numbers.values())
    # of both jobs: the one with `integrate: off` says nothing
    (told,) = [line for line in kept.said().splitlines() if "holdfast.integrations" in line]
    assert "`integrate: off`" in told
    assert "reads a checkpoint" not in kept.said(), "of its own, which a snapshot would replace"


@long
@pytest.mark.parametrize("script", ["trainer.py", "fit.py"])
def test_one_line_more_is_the_same(home: Path, script: str) -> None:
    job(home, script, "plain", {}, integrate="off").wait_end()
    end(job(home, script, "kept", {"KILL": "5", "EXPLICIT": "1"}, integrate="off"), 1, most=2)
    assert written(home, "kept") == written(home, "plain")


@long
def test_limited_steps_of_lightning_see_the_same_data_in_later_epochs(home: Path) -> None:
    limit = {"MAX_STEPS": "11"}
    job(home, "fit.py", "plain", limit, integrate="off").wait_end()
    end(job(home, "fit.py", "kept", {**limit, "KILL": "9"}), 1, most=2)
    assert written(home, "kept") == written(home, "plain")


@long
def test_a_loop_over_accelerate_goes_on_bit_for_bit(home: Path) -> None:
    job(home, "accelerated.py", "plain", {"KILL": ""}).wait_end()
    end(job(home, "accelerated.py", "kept", {"KILL": "4,6,13"}), 3, most=4)
    assert written(home, "kept") == written(home, "plain")


@long
@pytest.mark.parametrize(("stage", "bf16"), [("0", ""), ("1", "1"), ("2", ""), ("3", "1")])
def test_deepspeed_goes_on_bit_for_bit(home: Path, stage: str, bf16: str) -> None:
    env = {"STAGE": stage, "BF16": bf16}
    job(home, "engine.py", "plain", {**env, "KILL": ""}).wait_end()
    end(job(home, "engine.py", "kept", {**env, "KILL": "4,6"}), 2)
    assert written(home, "kept") == written(home, "plain")


@long
def test_the_guide_and_the_example(home: Path) -> None:
    spec, (_, chaos, incidents) = guide("trainers")
    example = str(ROOT / spec.pop("script"))
    out = ["--out", str(home.parent / "out")]
    one = RunningJob(home, **{**spec, "script": example, "args": [*spec["args"], *out]}).start()
    one.wait_step(5)
    assert holdfast(*chaos).returncode == 0
    one.wait_end()
    assert "worker-killed" in holdfast(*incidents).stdout
    assert one.status().step == 60


@long
def test_the_example_of_lightning(home: Path) -> None:
    script = str(ROOT / "examples" / "lightning" / "train.py")
    out = ["--epochs", "2", "--out", str(home.parent / "out")]
    one = RunningJob(home, script=script, args=out, workers_per_node=2).start()
    one.wait_end()
    assert one.status().step == 40
