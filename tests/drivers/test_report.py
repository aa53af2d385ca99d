"""What people get of durable tiers: those that are planned, and those that have ever been used."""

import json
import math

import msgspec
import pytest

from holdfast.cli.story import training
from holdfast.controller import Phase
from holdfast.controller.state import Limits, State, TierRecord, UpdateRecord
from holdfast.drivers.report import job_status
from holdfast.events import Progress
from holdfast.goodput.ledger import Ledger
from holdfast.messages import SAVES, WorkerReport
from holdfast.status import JobStatus, TierStatus
from holdfast.versions import Version

LEDGER = Ledger(
    start_ms=0, end_ms=10_000, buckets={}, intervals=(), bills={}, ettr=1.0, ettr_1h=1.0,
    observed=True, ended=False,
)  # fmt: skip

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


@pytest.mark.parametrize(
    ("phase", "pages", "told"),
    [
        (Phase.RUNNING, [SAVES, SAVES], True),
        (Phase.RUNNING, [SAVES, "ending"], False),
        (Phase.RUNNING, [], False),
        (Phase.RECOVERING, [SAVES, SAVES], False),
    ],
)
def test_what_a_job_waits_for_that_has_nothing_left_to_train_is_its_last_save(
    phase: Phase, pages: list[str], told: bool
) -> None:
    state = State(limits=Limits(), phase=phase)
    state.why = "attempt 1 trains"
    ranks = {
        rank: WorkerReport(rank=rank, pid=1, progress=Progress(), milestones={}, phase=page)
        for rank, page in enumerate(pages)
    }
    why = job_status("j", state, LEDGER, controller="up", telemetry=ranks).why
    assert why is not None and ("their last checkpoint is being saved" in why) is told


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


def stepped(rank: int, steps: int, step: int | None = None) -> WorkerReport:
    return WorkerReport(
        rank=rank, pid=1, progress=Progress(step=step), milestones={}, optimizer_steps=steps,
        optimizer_step_ago_s=0.25 * rank, optimizer_step_time_s=0.051 if steps > 1 else None,
    )  # fmt: skip


def seen(*workers: WorkerReport) -> tuple[JobStatus, str]:
    state = State(limits=Limits(), now=100.0)
    found = {worker.rank: worker for worker in workers}
    status = job_status("j", state, LEDGER, controller="up", telemetry=found)
    return status, training(status)


def test_steps_of_an_optimizer_are_shown_and_are_not_the_step_of_the_job() -> None:
    """Of the rank that has done the fewest; ranks without an optimizer are none of them."""
    status, text = seen(stepped(0, 1235), stepped(1, 1234), stepped(2, 0))
    assert (status.step, status.step_time_s) == (None, None)
    assert (status.optimizer_steps, status.optimizer_step_ago_s) == (1234, 0.25)
    assert text == "1,234 optimizer steps, 51 ms each"
    assert seen(stepped(0, 1))[1] == "1 optimizer step"
    assert seen(stepped(0, 0))[1] == "no steps reported"


def test_where_the_script_reports_steps_those_of_its_optimizer_are_not_shown() -> None:
    status, text = seen(stepped(0, 7, step=3))
    assert status.optimizer_steps is None and text.startswith("step 3")


def test_secrets_among_the_arguments_of_a_version_are_not_shown() -> None:
    """Who may see a status or a page may not see the job file."""
    given = ("--lr", "0.1", "--api-key", "abcdefgh", "--password=hunter22", "--max-tokens", "4096",
             "--name", "a", "hf_abcdefghijklmnopqrst")  # fmt: skip
    state = State(limits=Limits())
    version = Version(number=2, given=given, sets={"env.API_KEY": "abcdefgh"})
    state.updating.records.append(
        UpdateRecord(id="u", version=version, by="me", at=0.0, when="now")
    )
    (told,) = job_status("j", state, LEDGER, controller="up").updates
    assert told.args == (
        "--lr", "0.1", "--api-key", "***", "--password=***", "--max-tokens", "4096",
        "--name", "a", "***",
    )  # fmt: skip
    assert told.sets == {"env.API_KEY": "***"}
