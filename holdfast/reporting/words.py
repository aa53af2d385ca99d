"""What the text and the page of a report say alike: labels with values, and rows of tables."""

import time
from collections.abc import Iterator, Sequence

from holdfast.reporting.shapes import ComparedSetting, JobReport, ReportedIncident
from holdfast.status import TierStatus

INCIDENTS_SHOWN = 200
DAY_S = 86_400.0
Rows = list[Sequence[str]]


def moment(at: float) -> str:
    """Seconds since the epoch, the same for every reader."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def length(seconds: float) -> str:
    """A length of time in its two greatest units."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, small, units in ((86_400, 3600, "d h"), (3600, 60, "h min"), (60, 1, "min s")):
        if whole >= size:
            first, second = units.split()
            return f"{whole // size} {first} {whole % size // small} {second}"
    return f"{whole} s"


def share(part: float) -> str:
    """A share as a percentage; of what is nearly all or nothing the digits that tell."""
    return f"{part * 100:.2f} %"


def money(amount: float | None) -> str:
    """In the currency of the job file; empty: not known."""
    if amount is None:
        return ""
    return f"{amount:,.2f}" if abs(amount) < 1000 else f"{amount:,.0f}"


def headline(report: JobReport) -> str:
    """How it stands, in one sentence."""
    status = report.status
    how = (status.outcome or status.phase).replace("_", " ")
    why = f": {status.why}" if status.why and status.outcome not in (None, "succeeded") else ""
    away = "; its controller does not respond" if status.controller == "away" else ""
    return f"{how} after {length(report.goodput.wall_s)}{why}{away}"


def facts(report: JobReport) -> Iterator[tuple[str, str]]:
    """What it comes to; what is not known is left out."""
    learned, status = report.learning, report.status
    of = f" of {status.steps_total}" if status.steps_total else ""
    yield "ETTR", share(report.goodput.ettr)
    yield "wall time", length(report.goodput.wall_s)
    yield "steps", f"{learned.steps}{of}" if learned.steps is not None else "none reported"
    if learned.loss_is or learned.loss is not None:
        yield "final loss", learned.loss_is or f"{learned.loss:.5g}"
    if learned.loss_best is not None:
        yield "best loss", f"{learned.loss_best:.5g}, by step {learned.loss_best_step}"
    yield "incidents", str(len(report.incidents))
    yield "restarts", str(status.restarts_count)
    if report.cost is not None:
        yield "cost", money(report.cost.total)


def setup(report: JobReport) -> Iterator[tuple[str, str]]:
    """What was trained, on what, from when to when."""
    what, learned, status = report.setup, report.learning, report.status
    yield "command", what.command
    yield "from", moment(report.began_at)
    yield "to" if status.outcome else "known until", moment(report.until)
    spares = f" and {what.spares_count} spare" + ("s" if what.spares_count != 1 else "")
    yield "nodes", f"{what.nodes_count}{spares if what.spares_count else ''}"
    yield "engine", what.engine
    yield "devices", what.devices
    layout = " × ".join(f"{name} {size}" for name, size in (what.layout or {}).items())
    yield "layout", layout or "one rank" if what.layout is not None else "not known"
    yield "framework", what.framework
    yield "Holdfast", what.holdfast
    for name, value, digits in (
        ("step time", learned.step_s, ""),
        ("tokens/s", learned.tokens_per_s, ",.0f"),
        ("MFU", learned.mfu, ".1%"),
        ("gradient norm", learned.grad_norm, ".4g"),
        ("learning rate", learned.lr, ".4g"),
    ):
        if value is not None:
            yield name, format(value, digits) if digits else length(value)
    for one in status.updates:
        content = [f"code {one.code[:12]}"] if one.code else []
        content += [f"{key}={value}" for key, value in one.sets.items()]
        told = (one.stage, f"asked for by {one.by}", moment(one.at), *content)
        yield f"version {one.version}", ", ".join(told)


def buckets(report: JobReport) -> Rows:
    """Bucket, length, share and money; the largest first."""
    wall_s = report.goodput.wall_s or 1.0
    paid = report.cost.total / wall_s if report.cost is not None else None
    spent = sorted(report.goodput.buckets.items(), key=lambda item: -item[1])
    rows: Rows = [
        (name, length(s), share(s / wall_s), money(None if paid is None else s * paid))
        for name, s in spent
        if s > 0
    ]
    whole = money(report.cost.total) if report.cost is not None else ""
    return [*rows, ("wall time", length(report.goodput.wall_s), share(1.0), whole)]


CAUSES = ("cause", "incidents", "time lost", "steps redone", "cost")


def causes(report: JobReport) -> Rows:
    """Of each cause how often, and what it took."""
    return [
        (one.cause, str(one.incidents_count), length(one.lost_s), str(one.steps_lost),
         money(one.cost))
        for one in report.causes
    ]  # fmt: skip


INCIDENTS = ("", "when", "cause", "node", "step", "time lost", "steps redone", "cost", "what")


def incidents(report: JobReport) -> Rows:
    """The newest ones, a line each."""
    return [_incident(one, report.began_at) for one in report.incidents[-INCIDENTS_SHOWN:]]


def _incident(found: ReportedIncident, began: float) -> Sequence[str]:
    one = found.incident
    sure = "" if one.confidence is None else f" ({one.confidence:.0%})"
    others = len(set(one.nodes) - {one.node})
    return (
        str(one.id),
        f"after {length(max(0.0, one.started_at - began))}",
        f"{one.cause}{sure}",
        f"{one.node} +{others}" if others else one.node,
        "" if one.step is None else str(one.step),
        length(one.lost_s) if one.ended_at else f"{length(one.lost_s)}, ongoing",
        str(one.steps_lost),
        money(found.cost),
        one.summary,
    )


TIERS = ("tier", "newest step", "committed", "every", "took", "failed", "trouble")


def tiers(report: JobReport) -> Rows:
    """Checkpoints of each tier."""
    return [_tier(one) for one in report.status.checkpoints]


def _tier(one: TierStatus) -> Sequence[str]:
    return (
        one.tier,
        "none" if one.step is None else str(one.step),
        str(one.commits_count),
        "" if one.every_s is None else length(one.every_s),
        length(one.seconds) if one.commits_count else "",
        str(one.failures_count),
        one.why or "",
    )


CHANGES = ("setting", "expected ETTR", "95 %", "gain", "gain, 95 %", "")


def changes(found: Sequence[ComparedSetting]) -> Rows:
    """Each alternative beside the settings as they are."""
    return [
        (
            one.what,
            share(one.ettr),
            f"{share(one.ettr_low)} to {share(one.ettr_high)}",
            f"{one.gain * 100:+.2f} %" if place else "",
            f"{one.gain_low * 100:+.2f} to {one.gain_high * 100:+.2f} %" if place else "",
            "recommended" if one.recommended else one.note,
        )
        for place, one in enumerate(found)
    ]


def settings(found: Sequence[ComparedSetting]) -> list[str]:
    """What is to be written into the job file: of values of a key the one that gains most."""
    best = dict[str, str]()
    for one in sorted(found, key=lambda one: one.gain):
        if one.recommended:
            best[one.setting.partition(":")[0]] = one.setting
    return list(best.values())


def inputs(report: JobReport) -> Iterator[tuple[str, str]]:
    """What the simulator was given."""
    if report.changes is None:
        return
    given = report.changes.inputs
    a_day = given.nodes / 1000
    yield (
        "failures",
        f"{_rate(given.rate_per_1000_node_days * a_day)} a day of this job, 95 % confidence "
        f"{_rate(given.rate_low * a_day)} to {_rate(given.rate_high * a_day)} "
        f"(from {given.incidents_count} incident{'s' if given.incidents_count != 1 else ''}); "
        f"one in {length(given.mttf_s)}",
    )
    yield (
        "snapshots",
        f"every {_steps(given.snapshot_every_steps)} of {length(given.step_s)}, each keeps "
        f"training waiting {length(given.snapshot_s)}",
    )
    yield "restart", f"{length(given.restart_s)}, without work that is done again"
    yield "new node", f"after {length(given.new_node_s)}"
    for text in given.assumed:
        yield "assumed", text


def _steps(count: int) -> str:
    return "step" if count == 1 else f"{count} steps"


def _rate(a_day: float) -> str:
    return f"{a_day:.3g}" if a_day < 1000 else f"{a_day:,.0f}"


def measured(report: JobReport) -> str:
    """How far the model is from what was measured."""
    if report.changes is None:
        return ""
    now = report.changes.changes[0].ettr
    return (
        f"Model results: means over {report.changes.worlds_count} simulated worlds with the "
        f"production controller. As it is, they come to {share(now)}; measured was "
        f"{share(report.changes.measured_ettr)}, which includes the first start."
    )
