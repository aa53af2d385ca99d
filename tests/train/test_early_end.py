"""The loop ends early where all ranks know it, its last step is safe, and it stays ended."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

from holdfast.checkpoint.arena import Arena, StatePart
from holdfast.checkpoint.settings import CheckpointSettings, TierRule
from holdfast.checkpoint.tiers import SnapshotFlag
from holdfast.train import restore
from holdfast.train.candidates import Location
from tests.patience import PATIENCE_S
from tests.train.alone import Job, Script
from tests.train.conftest import Make
from tests.train.forks import FORKS

SHARED = CheckpointSettings(shared=TierRule(every_s=1e9))


def train(script: Script, _: int, x: torch.Tensor) -> Any:
    loss = script.net(x).square().mean()
    loss.backward()
    for optimizer in script.optimizers.values():
        optimizer.step()
        optimizer.zero_grad()
    return loss


def stopped_at(job: Job, step: int) -> list[int]:
    """The steps of an attempt that asks to stop in this one."""
    steps = []
    for number in job.loop():
        steps.append(number)
        if number == step:
            job.state.stop()
    return steps


def test_a_single_process_ends_with_the_step_under_way_and_saves_it() -> None:
    job = Job(train, every=100, settings=SHARED)
    assert stopped_at(job, 5) == [0, 1, 2, 3, 4, 5]
    assert job.whole == [1, 6]
    flags = {h.step: h.flags for c in Arena(job.fd).cells(StatePart.PRIVATE) if (h := c.header())}
    assert flags[6] == SnapshotFlag.SHARED, "saved as the last step always is"


def test_a_restart_after_it_does_not_train_on_and_another_job_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job(train)
    stopped_at(job, 2)
    assert [*job.loop()] == [] and job.restored == [0, 3]
    found = restore.bring_in

    def elsewhere(*arguments: Any) -> Any:
        it = found(*arguments)
        return it and it._replace(where=Location.ELSEWHERE)

    monkeypatch.setattr("holdfast.train.snapshots.bring_in", elsewhere)
    assert [*job.loop(5)] == [3, 4]


def test_a_loop_that_was_ended_may_be_gone_on_with() -> None:
    job = Job(train)
    stopped_at(job, 2)
    assert [step for step, _ in job.state.steps(5)] == [3, 4]
    assert [*job.loop(5)] == [], "nothing of the ended loop is left in the last snapshot"


def test_where_it_stands_is_known_before_the_loop() -> None:
    job = Job(train)
    job.run(4)
    assert next(job.loop()) == job.restored[1] == job.state.completed == 4


def test_break_takes_no_snapshot_and_says_which_checkpoint_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Half a step may have been done: nobody knows."""
    job = Job(train, every=100, settings=SHARED)
    with caplog.at_level(logging.WARNING):
        job.run(3)
        assert not caplog.text
        for step in job.loop():
            if step == 4:
                job.snapshots.requests.ask("best")
                break
    assert job.whole == []
    assert "the checkpoint best is not saved" in caplog.text


def test_one_rank_asks_and_all_end_at_the_same_step_for_good(make: Make) -> None:
    cluster = make(2, 1, STOP="1:3")
    cluster.run("0:1:after_loop")
    last = cluster.lines(0)[-2]["step"]
    assert last in (3, 4), "they meet at the end of each step, about when the optimizer begins"
    assert cluster.finish().restored == [last + 1] * 2
    for rank in (0, 1):
        assert max(entry.get("step", 0) for entry in cluster.lines(rank)) == last


def _without_holdfast(rank: int, port: int, folder: str) -> None:
    os.environ.update(
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"},
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    from holdfast.train import join

    run = join(backend="gloo", timeout=PATIENCE_S, device="cpu")
    state = run.track(net=torch.nn.Linear(1, 1))
    assert state.restore() == 0 and not run.stopping
    for step, _ in state.steps(total=50):
        run.log(lr=0.1)
        if (run.rank, step) == (1, 3):
            state.stop()
    (Path(folder) / str(rank)).write_text(str(state.completed))


def test_ranks_without_holdfast_end_at_the_same_step_too(tmp_path: Path) -> None:
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    ranks = [
        FORKS.Process(target=_without_holdfast, args=(rank, store.port, str(tmp_path)))
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(PATIENCE_S)
    assert [process.exitcode for process in ranks] == [0, 0]
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["5", "5"]
