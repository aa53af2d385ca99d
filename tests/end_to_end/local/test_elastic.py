"""A job trains on with the nodes that are left, and with all of them once they are back."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.train.data import SampleOrder
from tests.end_to_end.local.jobs import SCRIPTS, RunningJob, guide
from tests.more import MORE
from tests.warm import holdfast

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def trains_on(job: RunningJob, nodes: int, attempt: int, steps: int) -> int:
    """Wait until an attempt with so many nodes has gone on by some steps; the last of them."""
    status = job.wait_until(
        lambda s: s.attempt == attempt and s.size == nodes and s.phase == "running", f"{nodes}"
    )
    last = (status.step or 0) + steps
    job.wait_step(last, attempt=attempt)
    return last


def used(job: RunningJob) -> list[list[int]]:
    """The samples of each step, of the last attempt that did it, over all ranks."""
    found: dict[int, dict[tuple[int, int], list[int]]] = {}
    for path in job.out.glob("used-*"):
        attempt, rank = map(int, path.name.split("-")[1:])
        for line in path.read_text().splitlines(keepends=True):
            step, *samples = map(int, line.split())
            if line.endswith("\n"):
                found.setdefault(step, {})[attempt, rank] = samples
    assert sorted(found) == list(range(len(found)))
    return [_of_the_last(found[step]) for step in range(len(found))]


def _of_the_last(ranks: dict[tuple[int, int], list[int]]) -> list[int]:
    last = max(attempt for attempt, _ in ranks)
    return [
        i for (attempt, _), samples in sorted(ranks.items()) if attempt == last for i in samples
    ]


def each_step_had_its_samples_once(job: RunningJob) -> None:
    steps = used(job)
    tickets = SampleOrder(100, 2, 5, True, True).tickets(0, 0, 0, 1, 6)
    assert [sorted(samples) for samples in steps] == [sorted(next(tickets)[2]) for _ in steps]


def of_three_nodes(
    home: Path, *, fewest: int, elasticity: dict[str, Any] | None = None, **spec: Any
) -> RunningJob:
    """Nodes after the first three wait for a file (`gate.py`)."""
    return RunningJob(
        home,
        script=str(SCRIPTS / "elastic.py"),
        nodes={"count": 3},
        elasticity={"min_nodes": fewest, **(elasticity or {})},
        snapshots={"every_steps": 1},
        warm={"preload": ["tests.end_to_end.local.gate"]},
        **{"args": ["--out", str(home.parent / "out")], **spec},
    )


@pytest.mark.skipif(not MORE, reason="HOLDFAST_TEST_MORE is not set")
def test_of_more_nodes_than_memory_survives_the_newest_checkpoint_is_resharded(home: Path) -> None:
    shared = {"path": str(home.parent / "shared"), "every_s": 1}
    job = of_three_nodes(home, fewest=1, checkpoints={"shared": shared}).start()
    job.wait_until(
        lambda s: any(t.tier == "shared" and (t.step or 0) > 5 for t in s.checkpoints), "saved"
    )
    job.kill_node(job.member(1), job.member(2))
    job.wait_until(lambda s: s.size == 1 and s.phase == "running", "one node to train")
    done = [len(path.read_text().splitlines()) for path in job.out.glob("used-1-*")]
    job.wait_step(max(done) + 5, attempt=2)
    (job.out / "enough").touch()
    job.wait_end()
    log = (job.folder / "logs" / "attempt-2" / "rank-0.log").read_text()
    assert "from 3 to 1 ranks" in log and "from the shared tier" in log, log + job.said()
    each_step_had_its_samples_once(job)


def test_a_lost_node_is_gone_without_and_no_sample_is_lost_or_used_twice(home: Path) -> None:
    spec, (_, scale, status, incidents) = guide("elastic")
    job = of_three_nodes(home, fewest=spec["elasticity"]["min_nodes"], name=spec["name"]).start()
    job.wait_step(10)
    job.kill_node(job.member(1))
    trains_on(job, 2, attempt=2, steps=5)
    (job.folder / "go").touch()
    trains_on(job, 3, attempt=3, steps=5)
    built = max((job.out / f"built-{job.worker(rank)}").stat().st_mtime for rank in range(3))
    ended = max(path.stat().st_mtime for path in job.out.glob("used-2-*"))
    assert built < ended, "two train on until the third only needs its rank"
    assert holdfast("scale", job.name, "4").returncode == 2
    assert holdfast(*scale).returncode == 0
    trains_on(job, 2, attempt=4, steps=5)
    assert "2 nodes: " in holdfast(*status).stdout
    assert holdfast(*incidents).stdout.count("resized") == 2
    (job.out / "enough").touch()
    job.wait_end()

    lost, grown, scaled = job.incidents()
    assert [i.cause for i in (lost, grown, scaled)] == ["node-lost", "resized", "resized"]
    assert "Shrink" in [done.action for done in lost.actions]
    assert lost.steps_lost <= 2, "from the memory of those that are left"
    for attempt, sizes in ((2, "from 3 to 2"), (3, "from 2 to 3"), (4, "from 3 to 2")):
        log = (job.folder / "logs" / f"attempt-{attempt}" / "rank-0.log").read_text()
        assert f"{sizes} ranks" in log and " from memory" in log
    each_step_had_its_samples_once(job)

    told = [(m["attempt"], m["metrics"]["world_size"]) for m in job.metrics()]
    assert set(told) == {(1, 3), (2, 2), (3, 3), (4, 2)}, "ranks of each step"
    assert {m["metrics"]["lr_scale"] for m in job.metrics()} == {1.0}, "the batch is what it was"
    for number in (1, 2, 3):
        said = holdfast("why", job.name, str(number)).stdout
        assert "each step has as many samples as on 3 nodes" in said, said


@pytest.mark.skipif(not MORE, reason="HOLDFAST_TEST_MORE is not set")
def test_with_scale_lr_ranks_keep_their_batch_and_the_rate_follows_their_number(home: Path) -> None:
    warm_up = 20
    job = of_three_nodes(
        home, fewest=2, elasticity={"batch": "scale_lr", "warmup_steps": warm_up}
    ).start()
    job.wait_step(10)
    job.kill_node(job.member(1))
    trains_on(job, 2, attempt=2, steps=2 * warm_up)
    (job.out / "enough").touch()
    job.wait_end()
    told = {one["step"]: one["metrics"] for one in job.metrics()}
    by_size = {
        size: [told[step]["lr_scale"] for step in sorted(told) if told[step]["world_size"] == size]
        for size in (3, 2)
    }
    assert set(by_size[3]) == {1.0}
    ramp, rest = by_size[2][: warm_up + 1], by_size[2][warm_up:]
    falls = [before - after for before, after in pairwise(ramp)]
    assert falls == pytest.approx([(1 - 2 / 3) / warm_up] * warm_up), "a straight line"
    assert rest and rest == pytest.approx([2 / 3] * len(rest))
    ranks = {len(samples) for samples in used(job)}
    assert ranks == {2 * 3, 2 * 2}, "two of each rank, whatever their number"
