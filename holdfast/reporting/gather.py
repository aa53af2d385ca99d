"""The facts of a report, put together from what the page of the dashboard knows of a job.

Nothing is read here but through a `JobRecord`, so a folder, a running job and a job in a cluster
are the same. Long jobs are cut down to what a reader can take in; what is left out is counted.
"""

import shlex
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import msgspec

from holdfast.dashboard.job_record import JobLook, JobRecord
from holdfast.dashboard.ribbon import ribbon
from holdfast.drivers.explained import advice, known_problem, problem_fields
from holdfast.errors import Error
from holdfast.goodput import Bucket, to_goodput
from holdfast.masking import masker
from holdfast.reporting.shapes import (
    JobReport,
    ReportedCause,
    ReportedCost,
    ReportedCurve,
    ReportedIncident,
    ReportedLearning,
    ReportedMark,
    ReportedSetup,
    ReportedStretch,
)
from holdfast.spec import Job
from holdfast.status import Incident

POINTS = 1200
HOUR_S = 3600.0
COUNTED_MARKS = ("attempt", "checkpoint")  # so many that the newest are enough
MARKS_MAX = 200  # of a kind
Known = list[float | None]


class DrawnSteps(msgspec.Struct, frozen=True):
    """The answer to a question about a curve: see `holdfast.history.Curve`."""

    width: int
    step: list[int]
    at: list[float]
    low: dict[str, Known]
    high: dict[str, Known]
    mean: dict[str, Known]


def gathered(record: JobRecord, now: float) -> tuple[JobReport, JobLook]:
    """The report without what to change, and the look it is from. Raises `Error`, `OSError`."""
    look = record.look()
    steps, missing = _steps(record)
    begin, end = look.ledger.start_ms / 1000, look.ledger.end_ms / 1000
    cost = _cost(look)
    paid = cost.per_hour if cost is not None else None
    return JobReport(
        job=look.status.job,
        made_at=now,
        began_at=begin,
        until=end,
        setup=_setup(look),
        status=look.status,
        learning=_learning(look, steps),
        goodput=to_goodput(look.status.job, look.ledger),
        incidents=tuple(_incident(record, one, paid) for one in look.incidents),
        causes=tuple(_causes(look.incidents, paid)),
        cost=cost,
        marks=tuple(_marks(look)),
        ribbon=tuple(
            ReportedStretch(
                start_s=round(one.start_ms / 1000 - begin, 3),
                end_s=round(one.end_ms / 1000 - begin, 3),
                bucket=one.bucket,
                incident=one.incident,
            )
            for one in ribbon(look.ledger, look.ledger.start_ms, look.ledger.end_ms)
        ),
        curve=_curve(steps),
        curve_missing=missing,
        changes=None,
        changes_missing=None,
        incomplete=look.trouble,
    ), look


# ── what was trained ──────────────────────────────────────────────────────────────────────────


def _setup(look: JobLook) -> ReportedSetup:
    job, layout = look.job, look.dimensions
    wide = {name: size for name, size in layout._asdict().items() if size > 1} if layout else None
    nodes = look.status.size or job.nodes.count
    return ReportedSetup(
        command=masker(job.env)(command(job)),
        engine=look.engine,
        framework=job.framework or "pytorch",
        nodes_count=nodes,
        spares_count=job.nodes.spare_count,
        workers_per_node=look.workers_per_node,
        devices=_devices(job, look.workers_per_node),
        layout=wide,
        holdfast=look.written_by,
    )


def command(job: Job) -> str:
    """What its workers run, as one would type it."""
    if job.command is not None:
        return shlex.join((*job.command, *job.args))
    if job.module is not None:
        return shlex.join(("python", "-m", str(job.module), *job.args))
    return shlex.join(("python", str(job.script), *job.args))


def _devices(job: Job, workers: int) -> str:
    asked = job.resources
    if asked.gpus:
        return f"{asked.gpus} × {job.gpu_resource} a node"
    cpu = f", {asked.cpu} CPU cores" if asked.cpu else ""
    return f"{workers} worker{'s' if workers != 1 else ''} a node{cpu}; the job file names no GPUs"


# ── how it learned ────────────────────────────────────────────────────────────────────────────


def _steps(record: JobRecord) -> tuple[DrawnSteps | None, str | None]:
    try:
        answer = record.figures(f"curve/0/end/{POINTS}")
    except Error as error:  # the controller that keeps them is gone
        return None, f"{error.what}: {error.why}"
    found = msgspec.json.decode(answer[0], type=DrawnSteps) if answer is not None else None
    if found is None or not found.step:
        return None, "no step was recorded with figures"
    return found, None


def _learning(look: JobLook, steps: DrawnSteps | None) -> ReportedLearning:
    status = look.status
    best: tuple[float, int] | None = None
    if steps is not None:
        lows = zip(steps.low.get("loss", ()), steps.step, strict=False)
        best = min(((low, step) for low, step in lows if low is not None), default=None)
    return ReportedLearning(
        steps=status.step,
        loss=look.loss,
        loss_best=best[0] if best else None,
        loss_best_step=best[1] if best else None,
        loss_is=status.loss_is,
        step_s=_middle(steps, "step_s"),
        tokens_per_s=_middle(steps, "tokens_per_s"),
        mfu=_middle(steps, "mfu"),
        grad_norm=_newest(steps, "grad_norm"),
        lr=_newest(steps, "lr"),
    )


def _known(steps: DrawnSteps | None, column: str) -> list[float]:
    return [value for value in steps.mean.get(column, ()) if value is not None] if steps else []


def _middle(steps: DrawnSteps | None, column: str) -> float | None:
    known = _known(steps, column)
    return median(known) if known else None


def _newest(steps: DrawnSteps | None, column: str) -> float | None:
    known = _known(steps, column)
    return known[-1] if known else None


def _curve(steps: DrawnSteps | None) -> ReportedCurve | None:
    if steps is None or not _known(steps, "loss"):
        return None
    return ReportedCurve(
        width=steps.width,
        step=steps.step,
        at=steps.at,
        low=steps.low["loss"],
        mean=steps.mean["loss"],
        high=steps.high["loss"],
    )


def _marks(look: JobLook) -> list[ReportedMark]:
    """Of each kind the newest."""
    left: dict[str, int] = defaultdict(lambda: MARKS_MAX)
    kept = []
    for one in reversed(look.marks):
        left[one.kind] -= 1
        if left[one.kind] >= 0:
            kept.append(ReportedMark(kind=one.kind, at=one.at, step=one.step, text=one.text))
    return kept[::-1]


# ── what went wrong, and what it cost ─────────────────────────────────────────────────────────


def _incident(record: JobRecord, one: Incident, per_hour: float | None) -> ReportedIncident:
    known = known_problem(one, record.folder)
    return ReportedIncident(
        incident=one,
        known_problem=problem_fields(known) if known is not None else None,
        advice=advice(one),
        cost=_money(one.lost_s, per_hour),
    )


def _money(seconds: float, per_hour: float | None) -> float | None:
    return None if per_hour is None else per_hour * seconds / HOUR_S


def _causes(incidents: Sequence[Incident], per_hour: float | None) -> list[ReportedCause]:
    by_cause: dict[str, list[Incident]] = defaultdict(list)
    for one in incidents:
        by_cause[one.cause].append(one)
    found = [
        ReportedCause(
            cause=cause,
            incidents_count=len(ones),
            lost_s=(lost_s := round(sum(one.lost_s for one in ones), 3)),
            steps_lost=sum(one.steps_lost for one in ones),
            cost=_money(lost_s, per_hour),
        )
        for cause, ones in by_cause.items()
    ]
    return sorted(found, key=lambda one: -one.lost_s)


def _cost(look: JobLook) -> ReportedCost | None:
    if look.cost_per_hour is None or look.cost is None or look.job.cost is None:
        return None
    productive = look.cost * look.ledger.buckets[Bucket.PRODUCTIVE] / max(1, look.ledger.wall_ms)
    return ReportedCost(
        per_hour=look.cost_per_hour,
        total=look.cost,
        productive=productive,
        unproductive=look.cost - productive,
        per_spare_hour=look.job.cost.gpu_hour * look.workers_per_node,
    )
