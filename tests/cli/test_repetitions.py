"""The copies of a job that repeat a step here: what they have of it, and what not."""

import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path

import pytest

from holdfast.agent.environment import node_environment
from holdfast.cli import repetitions
from holdfast.cli.repetitions import RepeatedStep
from holdfast.spec import Job
from holdfast.spec.load import job_from_yaml
from holdfast.train.loop import LoopPosition
from holdfast.train.skipping import SkippedBatches

JOB = Job.model_validate(
    {
        "name": "j",
        "script": "s.py",
        "nodes": {"count": 1, "spares": 1},
        "recovery": {"skip_batches": 4},
        "notify": [{"url": "https://example.org/hook"}],
        "track": ["tensorboard"],
    }
)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> tuple[Job, dict[str, str]]:
    """The copy that repeats step 9 of a job which leaves out batches 4 and 5, and its
    environment."""
    found: list[tuple[Job, dict[str, str]]] = []

    def end_at_once(file: Path, environment: dict[str, str], output: Path) -> None:
        output.write_text("")
        found.append((job_from_yaml(file), environment))
        said = Path(environment["HOLDFAST_REPLAY"].partition(":")[2])
        (said / "rank-0.json").write_text(json.dumps({"world_size": 1, "digests": {"w": "1"}}))

    monkeypatch.setattr(repetitions, "_wait", end_at_once)
    what = RepeatedStep(JOB, "/checkpoints/step-3", 3, 9, ((4, 6),))
    assert repetitions.run(what, "repetition 1", ["node-0"]).digests == {0: {"w": "1"}}
    [(job, environment)] = found
    return job, environment


def test_nobody_is_told_of_a_copy_and_no_tracker_hears_its_steps(
    copied: tuple[Job, Mapping[str, str]],
) -> None:
    job, _ = copied
    assert (job.notify, job.track, job.nodes.spares) == ((), (), 0)
    assert JOB.notify and JOB.track


def test_its_workers_leave_out_the_batches_that_the_job_does(
    copied: tuple[Job, Mapping[str, str]],
) -> None:
    """As their node gives it to them; those of an attempt of a job in which this one runs are not
    theirs."""
    job, environment = copied
    env = node_environment(job, "n", 1, {**environment, "HOLDFAST_SKIPS": "[[0,9]]"}, {})
    skipped, batches = SkippedBatches(LoopPosition(), env), iter(count(3))
    assert [skipped.take(batches, step) for step in range(3, 6)] == [3, 6, 7]
