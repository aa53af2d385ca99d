"""What `holdfast simulate SCENARIO` does and prints."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.output import count, is_terminal, json_result, result, table, talk
from holdfast.errors import Error

if TYPE_CHECKING:
    from holdfast.simulation.plan import Plan
    from holdfast.simulation.result import Interval, Summary
    from holdfast.simulation.sweep import Axis, Point, Question

CAUSES_SHOWN = 12
HOUR_S = 3600.0


def run(
    scenario: str,
    *,
    seed: int | None,
    seeds: int | None,
    settings: Sequence[str],
    compare: str | None,
    sweep: Sequence[str],
    plot: Path | None,
    as_json: bool,
) -> None:
    """Answer a scenario's question, or the questions of a sweep."""
    from holdfast.simulation import plots
    from holdfast.simulation.sweep import axis, plan_of, question

    _check(compare, sweep)
    if plot is not None:
        plots.check(plot)
    given = [*settings, *([f"seeds={seeds}"] if seeds is not None else [])]
    asked = question(scenario, given)
    if sweep:
        _sweep(asked, [axis(text) for text in sweep], seed or 0, plot, as_json)
    else:
        plan_of(asked)
        _scenario(asked, seed or 0, compare, plot, as_json)


def _check(compare: str | None, sweep: Sequence[str]) -> None:
    if compare not in (None, "torchrun"):
        raise Error(
            "usage",
            f"cannot compare with {compare}",
            why="the only baseline is torchrun",
            help="holdfast simulate llama3-16k --compare torchrun",
        )
    if compare is not None and sweep:
        raise Error(
            "usage",
            "--compare and --sweep are mutually exclusive",
            why="a sweep varies the inputs of Holdfast's worlds only",
            help="run the scenario once with each",
        )


def _scenario(
    asked: "Question", first: int, compare: str | None, plot: Path | None, as_json: bool
) -> None:
    from holdfast.simulation import plots
    from holdfast.simulation.answer import of_scenario
    from holdfast.simulation.sweep import answer

    with _progress("worlds") as done:
        plan, summary, results = answer(asked, first, done=done)
    ways = {"holdfast": summary}
    if compare is not None:
        with _progress("worlds of torchrun") as done:
            ways[compare] = answer(asked, first, way=compare, done=done)[1]
    if plot is not None:
        plots.draw_ledgers(plot, plan.scenario.name, ways)
        talk(f"plot written to {plot}")
    if as_json:
        json_result(of_scenario(plan, summary, results, ways.get("torchrun")))
        return
    for line in _told(plan, ways):
        result(line)


def _sweep(
    asked: "Question", axes: "Sequence[Axis]", first: int, plot: Path | None, as_json: bool
) -> None:
    from holdfast.simulation import plots
    from holdfast.simulation.answer import of_sweep
    from holdfast.simulation.sweep import sweep

    with _progress("worlds") as done:
        points = sweep(asked, axes, first, done)
    name = points[0].plan.scenario.name
    if plot is not None:
        plots.draw_sweep(plot, name, axes, points)
        talk(f"plot written to {plot}")
    if as_json:
        json_result(of_sweep(axes, points))
        return
    result(f"{name}: model results, means over {count(points[0].summary.seeds, 'seed')}")
    result(table(_sweep_header(axes), [_sweep_row(point) for point in points]))
    result("")
    result(
        table(("INPUTS", "(of the first row; all of them with --json)"), _inputs(points[0].plan))
    )


def _sweep_header(axes: "Sequence[Axis]") -> list[str]:
    keys = [axis.key.upper() for axis in axes]
    return [*keys, "ETTR", "95 %", "INCIDENTS", "REPLACED", "WAITS", "GAVE UP"]


def _sweep_row(point: "Point") -> list[str]:
    summary = point.summary
    return [
        *map(str, point.values),
        f"{summary.ettr.mean:.2%}",
        _plus_minus(summary.ettr),
        f"{summary.incidents:.1f}",
        f"{summary.replaced:.1f}",
        f"{summary.waits:.1f}",
        str(summary.gave_up),
    ]


# ── the text of one scenario ──────────────────────────────────────────────────────────────────


def _told(plan: "Plan", ways: "Mapping[str, Summary]") -> Iterator[str]:
    summary = ways["holdfast"]
    yield (
        f"{plan.scenario.name}: ETTR {summary.ettr.mean:.2%} {_plus_minus(summary.ettr)}"
        f" (model result, mean over {count(summary.seeds, 'seed')}, 95 % confidence)"
    )
    if "torchrun" in ways:
        other = ways["torchrun"].ettr
        yield f"baseline (torchrun, requeue): ETTR {other.mean:.2%} {_plus_minus(other)}"
    if summary.gave_up:
        yield f"the job gave up in {summary.gave_up} of {summary.seeds} worlds"
    yield ""
    yield table(("WHERE THE TIME WENT", *(_hours(way) for way in ways)), _ledger_rows(ways))
    yield ""
    yield table(("INCIDENTS BY CAUSE", "FAULTS", "INCIDENTS", "HOURS LOST"), _cause_rows(summary))
    yield ""
    yield _spares(plan, summary)
    yield _restores(summary)
    yield ""
    yield table(("INPUTS", "(all of them with --json)"), _inputs(plan))


def _hours(way: str) -> str:
    return f"HOURS ({way})"


def _ledger_rows(ways: "Mapping[str, Summary]") -> list[list[str]]:
    buckets = dict.fromkeys(name for summary in ways.values() for name in summary.buckets)
    first = next(iter(ways.values()))
    order = sorted(buckets, key=lambda name: -first.buckets.get(name, 0.0))
    return [[name, *(_cell(summary, name) for summary in ways.values())] for name in order]


def _cell(summary: "Summary", name: str) -> str:
    seconds = summary.buckets.get(name, 0.0)
    share = seconds / sum(summary.buckets.values())
    return f"{seconds / HOUR_S:>9,.2f} {share:>7.2%}"


def _cause_rows(summary: "Summary") -> list[list[str]]:
    order = sorted(summary.causes.items(), key=lambda item: -item[1].lost_s)
    rows = [
        [name, f"{c.faults:.1f}", f"{c.incidents:.1f}", f"{c.lost_s / HOUR_S:.2f}"]
        for name, c in order[:CAUSES_SHOWN]
    ]
    rest = [c for _, c in order[CAUSES_SHOWN:]]
    if rest:
        faults, incidents = sum(c.faults for c in rest), sum(c.incidents for c in rest)
        lost = f"{sum(c.lost_s for c in rest) / HOUR_S:.2f}"
        rows.append([f"{len(rest)} others", f"{faults:.1f}", f"{incidents:.1f}", lost])
    return rows


def _spares(plan: "Plan", summary: "Summary") -> str:
    return (
        f"Spares: {plan.spares}, of which at most {summary.spares_used_most} were in use; "
        f"{summary.replaced:.1f} nodes replaced, training waited for a node {summary.waits:.1f} "
        "times"
    )


def _restores(summary: "Summary") -> str:
    shown = (f"{name} {times:.1f}" for name, times in summary.restores.items())
    return f"State restored from: {', '.join(shown)}"


def _inputs(plan: "Plan") -> list[tuple[str, str]]:
    scenario, times = plan.scenario, plan.scenario.times
    gpus = scenario.nodes * scenario.cluster.gpus_per_node
    restart_s = times.teardown_s + times.start_s + plan.rendezvous_s + times.first_step_s
    rate = plan.fault_rate * 1000 * 24 * HOUR_S
    new_s = times.schedule_s + times.image_s + times.warm_s
    fixed = times.detection_s
    return [
        ("job", f"{scenario.nodes:,} nodes, {gpus:,} GPUs, {scenario.days:g} days"),
        ("faults", f"{rate:.2f} per 1,000 node-days, mix {scenario.failures.mix}"),
        ("  source", plan.mix.source),
        ("  assumed", plan.mix.assumed),
        ("  between two", f"{plan.mttf_s / HOUR_S:.2f} h on average"),
        ("detection", "by cause, see the mix" if fixed is None else f"{fixed:g} s"),
        ("restart", f"{restart_s:.0f} s, of which rendezvous {plan.rendezvous_s:.0f} s"),
        ("new node", f"{new_s:g} s after the request"),
        ("snapshots", f"every {plan.memory.steps * scenario.step_s:g} s, "
                      f"blocking {plan.memory.block_s:g} s"),
        ("remote", f"every {plan.remote.steps * scenario.step_s:g} s"),
        ("spares", f"{plan.spares}; {plan.free_nodes} more nodes are available"),
    ]  # fmt: skip


def _plus_minus(interval: "Interval") -> str:
    half = interval.half
    return f"± {half * 100:.2f}" if half < float("inf") else "± ?"


# ── progress ──────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error while a person looks at it."""
    if not is_terminal(sys.stderr):
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (what, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)
