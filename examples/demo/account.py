"""Say what happened to a job: loss curve, incidents, ledger, what to try next.

Everything shown comes from the job's own records, read the way any user can: `--json` and
metrics.jsonl. `broken_promises` is the other half of honesty: it lists what is not as it should be.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from curve import plot
from holdfast.status import Goodput, Incident, JobStatus


@dataclass(frozen=True)
class Account:
    """What the job left behind. `losses` are (seconds since the start, step, loss)."""

    status: JobStatus
    incidents: Sequence[Incident]
    goodput: Goodput
    losses: Sequence[tuple[float, int, float]]


def losses(metrics: Path, started_at: float) -> list[tuple[float, int, float]]:
    """The lines of metrics.jsonl as (seconds since the start, step, loss)."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [(line["at"] - started_at, line["step"], line["loss"]) for line in lines]


def broken_promises(account: Account, exit_status: int, steps: int, spare: str) -> list[str]:
    """Sentences about what the demo promises and the job did not keep; none if all is well."""
    status, incidents, goodput = account.status, account.incidents, account.goodput
    missing = set(range(1, steps + 1)) - {step for _, step, _ in account.losses}
    off_s = sum(goodput.buckets.values()) - goodput.wall_s
    heirs = [a.reason for i in incidents for a in i.actions if a.action == "AssignRank"]
    checks = {
        f"holdfast run ended with status {exit_status}": exit_status != 0,
        f"the job {status.outcome}, it did not succeed": status.outcome != "succeeded",
        f"{len(incidents)} incidents instead of 2": len(incidents) != 2,
        f"training did not go on on the spare, {spare}": not any(spare in why for why in heirs),
        f"no loss is recorded for the steps {sorted(missing)[:10]}": bool(missing),
        f"the ledger is off by {off_s:.6f} s": abs(off_s) >= 0.0005,
    }
    return [sentence for sentence, broken in checks.items() if broken]


def show(account: Account, console: Console) -> None:
    """Print the curve, the incidents and the ledger."""
    _heading(console, "Loss", "nats per byte, over the time; incidents marked")
    console.print(Text("\n".join(_curve(account, console.width))))
    _heading(console, "Incidents", "holdfast incidents")
    for incident in account.incidents:
        _incident(incident, account.status.started_at, console)
    _heading(console, "Where the time went", "holdfast goodput")
    console.print(_ledger(account.goodput))


def next_commands(folder: Path, holdfast: str, script: str, console: Console) -> None:
    """Commands that work when pasted."""
    _heading(console, "Try next", "the record of this job is kept")
    prefix = f"HOLDFAST_HOME={folder.parents[1]} {holdfast}"
    for verb in ("why", "incidents", "goodput", "logs"):
        console.print(Text(f"  {prefix} {verb} {folder.name}"), soft_wrap=True)
    run = f"  {holdfast} run --nproc-per-node 2 {script} --steps 50"
    console.print(Text(run), soft_wrap=True)


def _curve(account: Account, width: int) -> list[str]:
    marks = {
        f"{i.id} {i.cause}": i.started_at - account.status.started_at for i in account.incidents
    }
    points = [(at, loss) for at, _, loss in account.losses]
    return plot(points, marks, width=min(width, 100), height=12)


def _incident(incident: Incident, started_at: float, console: Console) -> None:
    where = incident.node if incident.rank is None else f"{incident.node}, rank {incident.rank}"
    at = incident.started_at - started_at
    console.print(f"  [bold]{incident.id}[/] at {at:.1f} s, {incident.cause} ({where})")
    console.print(Text(f"    what   {incident.summary}"), soft_wrap=True)
    for taken in incident.actions:
        console.print(Text(f"    did    {taken.action}: {taken.reason}"), soft_wrap=True)
    bill = " + ".join(f"{name} {took:.2f}" for name, took in incident.bill.items() if took)
    cost = f"{incident.lost_s:.2f} s and {incident.steps_lost} steps of work"
    console.print(Text(f"    cost   {cost}  ({bill})"), soft_wrap=True)


def _ledger(goodput: Goodput) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    for name, took in sorted(goodput.buckets.items(), key=lambda item: -item[1]):
        if took:
            table.add_row(name, f"{took:.3f} s", f"{took / goodput.wall_s:.1%}")
    table.add_section()
    total = sum(goodput.buckets.values())
    table.add_row("sum of the parts", f"{total:.3f} s", "")
    table.add_row("wall time", f"{goodput.wall_s:.3f} s", "")
    table.add_row("[bold]ETTR[/]", f"[bold]{goodput.ettr:.3f}[/]", "productive / wall")
    return table


def _heading(console: Console, title: str, comment: str) -> None:
    console.print(f"\n[bold]{title}[/]  [dim]{comment}[/]", highlight=False)
