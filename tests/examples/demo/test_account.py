"""The demo says so when a promise was not kept, and shows what the records say."""

import io
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from account import Account, broken_promises, losses, next_commands, show
from holdfast.status import ActionTaken, Goodput, Incident, JobStatus

STEPS = 20


def incident(number: int, cause: str, *actions: ActionTaken) -> Incident:
    return Incident(
        id=number,
        cause=cause,
        summary=f"it was {cause}",
        node="node-1",
        rank=1,
        attempt=number,
        step=10,
        started_at=100.0 + number,
        ended_at=101.5 + number,
        lost_s=1.5,
        steps_lost=1,
        bill={"detect": 0.5, "replay": 1.0},
        actions=actions,
    )


def account() -> Account:
    taken = ActionTaken(at=102.0, action="AssignRank", reason="node-2 takes over node rank 1")
    return Account(
        status=JobStatus(
            job="gpt",
            phase="succeeded",
            attempt=3,
            step=STEPS,
            ettr=0.8,
            nodes=(),
            incidents_count=2,
            restarts_count=2,
            waiting_for=None,
            started_at=100.0,
            wall_s=10.0,
            outcome="succeeded",
        ),
        incidents=(incident(1, "worker-killed"), incident(2, "node-lost", taken)),
        goodput=Goodput(
            job="gpt",
            wall_s=10.0,
            ettr=0.8,
            ettr_1h=0.8,
            buckets={"productive": 8.0, "detect": 1.0, "replay": 1.0, "hang": 0.0},
            observed=True,
        ),
        losses=[(float(step) / 2, step, 5.0 / step) for step in range(1, STEPS + 1)],
    )


def broken(changed: Account, exit_status: int = 0) -> list[str]:
    return broken_promises(changed, exit_status, STEPS, spare="node-2")


def shown(what: Account) -> str:
    text = io.StringIO()
    show(what, Console(file=text, width=90))
    return text.getvalue()


def test_nothing_is_broken_if_all_went_well() -> None:
    assert broken(account()) == []


def test_bad_exit_status_is_told() -> None:
    assert broken(account(), exit_status=5) == ["holdfast run ended with status 5"]


def test_job_that_did_not_succeed_is_told() -> None:
    good = account()
    changed = replace(good, status=msgspec.structs.replace(good.status, outcome="gave_up"))
    assert broken(changed) == ["the job gave_up, it did not succeed"]


def test_incident_that_was_not_noticed_is_told() -> None:
    assert "1 incidents instead of 2" in broken(
        replace(account(), incidents=account().incidents[1:])
    )


def test_spare_that_was_not_used_is_told() -> None:
    bare = (incident(1, "worker-killed"), incident(2, "node-lost"))
    assert broken(replace(account(), incidents=bare)) == [
        "training did not go on on the spare, node-2"
    ]


def test_step_without_a_loss_is_told() -> None:
    with_hole = [line for line in account().losses if line[1] != 7]
    assert broken(replace(account(), losses=with_hole)) == ["no loss is recorded for the steps [7]"]


@pytest.mark.parametrize("wall_s", [10.001, 9.999])
def test_ledger_that_does_not_add_up_is_told(wall_s: float) -> None:
    goodput = msgspec.structs.replace(account().goodput, wall_s=wall_s)
    assert any("ledger is off" in line for line in broken(replace(account(), goodput=goodput)))


def test_losses_are_read_from_the_metrics_of_the_job(tmp_path: Path) -> None:
    lines = [{"attempt": 1, "step": s, "at": 100.0 + s, "loss": 2.0 * s} for s in (1, 2)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert losses(path, 100.0) == [(1.0, 1, 2.0), (2.0, 2, 4.0)]


def test_shows_each_incident_with_cause_cost_and_what_was_done() -> None:
    text = shown(account())
    assert "1 at 1.0 s, worker-killed" in text
    assert "AssignRank: node-2 takes over node rank 1" in text
    assert "1.50 s and 1 steps of work  (detect 0.50 + replay 1.00)" in text


def test_shows_that_the_parts_of_the_ledger_are_the_wall_time() -> None:
    lines = [line.split() for line in shown(account()).splitlines()]
    assert ["sum", "of", "the", "parts", "10.000", "s"] in lines
    assert ["wall", "time", "10.000", "s"] in lines
    assert not any(line[:1] == ["hang"] for line in lines)


def test_next_commands_name_the_home_they_need() -> None:
    text = io.StringIO()
    console = Console(file=text, width=40)
    next_commands(Path("/tmp/home-1/jobs/gpt"), ".venv/bin/holdfast", "train.py", console)
    assert "HOLDFAST_HOME=/tmp/home-1 .venv/bin/holdfast why gpt\n" in text.getvalue()
    assert ".venv/bin/holdfast run --nproc-per-node 2 train.py --steps 50\n" in text.getvalue()
