"""A report as text: the same facts as its page, for a terminal or a pipe."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from holdfast.cli.output import result, styled, table
from holdfast.cli.trend import bars, can_draw
from holdfast.reporting import words

if TYPE_CHECKING:
    from holdfast.reporting.shapes import JobReport

BARS = 72


def print_report(report: "JobReport") -> None:
    """All of it."""
    result(styled(f"{report.job}: {words.headline(report)}", "bold"))
    if report.incomplete:
        result(styled(f"Incomplete: {report.incomplete}", "red"))
    _pairs("IN SHORT", words.facts(report))
    _pairs("WHAT WAS TRAINED", words.setup(report))
    _curve(report)
    _rows("WHERE THE TIME WENT", ("", "TIME", "SHARE", "COST"), words.buckets(report))
    if report.incidents:
        _rows("CAUSES", words.CAUSES, words.causes(report))
        _rows("INCIDENTS", words.INCIDENTS, words.incidents(report))
    else:
        _heading("INCIDENTS")
        result("none")
    if report.status.checkpoints:
        _rows("CHECKPOINTS", words.TIERS, words.tiers(report))
    _changes(report)


def _heading(text: str) -> None:
    result("")
    result(styled(text, "bold"))


def _pairs(heading: str, pairs: Iterable[tuple[str, str]]) -> None:
    known = list(pairs)
    width = max(len(name) for name, _ in known)
    _heading(heading)
    for name, value in known:
        result(f"  {name:<{width}}  {value}")


def _rows(heading: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns in which there is nothing are left out."""
    found = list(rows)
    kept = [n for n in range(len(header)) if any(row[n] for row in found)]
    _heading(heading)
    lines = table([header[n] for n in kept], [[row[n] for n in kept] for row in found])
    result("\n".join(f"  {line}" for line in lines.splitlines()))


def _curve(report: "JobReport") -> None:
    _heading("LOSS")
    curve = report.curve
    known = [] if curve is None else [value for value in curve.mean if value is not None]
    if not known:
        result(f"  no curve: {report.curve_missing}")
        return
    each = -(-len(known) // BARS)
    means = [
        sum(part) / len(part) for part in (known[n : n + each] for n in range(0, len(known), each))
    ]
    if can_draw():
        result(f"  {bars(means)}")
    result(f"  {means[0]:.4g} at the beginning, {means[-1]:.4g} at the end")


def _changes(report: "JobReport") -> None:
    found = report.changes
    if found is None:
        if report.changes_missing:
            _heading("WHAT TO CHANGE")
            result(f"  not known: {report.changes_missing}")
        return
    _rows("WHAT TO CHANGE", words.CHANGES, words.changes(found.changes))
    result("")
    result(f"  {found.verdict}")
    for setting in words.settings(found.changes):
        result(f"    {setting}")
    result(f"  {words.measured(report)}")
    _pairs("MEASURED", words.inputs(report))
