"""What people get of durable tiers: those that are planned, and those that have ever been used."""

import json
import math

import msgspec
import pytest

from holdfast.controller.state import Limits, State, TierRecord
from holdfast.drivers.report import job_status
from holdfast.events import Progress
from holdfast.goodput.ledger import Ledger
from holdfast.messages import WorkerReport
from holdfast.status import TierStatus

LEDGER = Ledger(
    start_ms=0, end_ms=10_000, buckets={}, intervals=(), bills={}, ettr=1.0, ettr_1h=1.0,
    observed=True, ended=False,
)  # fmt: skip


def tiers(state: State, *planned: float) -> tuple[TierStatus, ...]:
    report = WorkerReport(
        rank=0, pid=1, progress=Progress(step=9), milestones={}, tier_every_s=planned
    )
    return job_status("j", state, LEDGER, controller="up", telemetry={0: report}).checkpoints


@pytest.mark.parametrize(
    ("loss", "shown", "word"),
    [
        (2.5, 2.5, None),
        (None, None, None),
        (math.nan, None, "nan"),
        (math.inf, None, "inf"),
        (-math.inf, None, "-inf"),
    ],
)
def test_a_loss_that_is_not_finite_is_valid_json_and_told_from_none(
    loss: float | None, shown: float | None, word: str | None
) -> None:
    page = WorkerReport(rank=0, pid=1, progress=Progress(), milestones={}, loss=loss)
    state = State(limits=Limits())
    status = job_status("j", state, LEDGER, controller="up", telemetry={0: page})
    said = json.loads(msgspec.json.encode(status), parse_constant=pytest.fail)
    assert (said["loss"], said["loss_is"]) == (shown, word)


def test_a_tier_is_shown_before_anything_is_committed_with_the_interval_of_now() -> None:
    state = State(limits=Limits(), now=100.0)
    (local, archive) = tiers(state, 60.0, 0.0, 3600.0)
    assert (local.tier, local.step, local.every_s) == ("local", None, 60.0)
    assert (archive.tier, archive.every_s) == ("archive", 3600.0)


def test_what_was_used_is_shown_when_nothing_runs() -> None:
    state = State(limits=Limits(), now=100.0)
    state.tiers["shared"] = TierRecord(attempt=1, step=5, at=90.0, every_s=12.0)
    (shared,) = tiers(state)
    assert (shared.tier, shared.step, shared.age_s, shared.every_s) == ("shared", 5, 10.0, 12.0)
    (shared,) = tiers(state, 0.0, 600.0, 0.0)
    assert shared.every_s == 600.0
