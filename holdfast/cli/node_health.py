"""This machine as it is remembered, and the nodes of a job on it: what is wrong with each now, and
how often it was trouble."""

import time
from typing import Any

from holdfast.cli.locate import all_jobs, job_folder
from holdfast.cli.machine_story import fields_of, history_lines, signals_text
from holdfast.cli.output import json_result, result, table, talk
from holdfast.diagnosis.lemons import LEMON_SCORE, LemonSignal, score
from holdfast.drivers import client, records
from holdfast.drivers.machine_book import memory, this_machine

HEADER = ("NODE", "STATE", "SIGNALS", "WHICH", "NOW")
OF_MACHINE = ("MACHINE", "SIGNALS", "LAST CHECK")


def show(job: str | None, as_json: bool) -> None:
    """Print them; without a job only the machine."""
    machine = {"machine": this_machine(), **fields_of(memory(), time.time())}
    found = _nodes(job) if job is not None or all_jobs() else []
    if as_json:
        json_result({"machine": machine, "nodes": found})
        return
    result(table(OF_MACHINE, [(machine["machine"], signals_text(machine), _check(machine))]))
    for line in history_lines(machine):
        result(line)
    if found:
        result("\n" + table(HEADER, map(_row, found)))
    if any(fields["lemon"] for fields in found):
        talk(f"replace nodes with {LEMON_SCORE} of {len(LemonSignal)} signals permanently")


def _check(machine: dict[str, Any]) -> str:
    if machine["checked"] is None:
        return "never: holdfast check"
    return f"{machine['checked']}: {machine['check_failed'] or 'passed'}"


def _nodes(job: str | None) -> list[dict[str, Any]]:
    folder = job_folder(job)
    status, counted = client.status(folder), records.signals(folder)
    reasons = records.given_up(folder)
    alive = {node.name: node for node in status.nodes} if status.outcome is None else {}
    return [
        {
            "node": name,
            "state": alive[name].state if name in alive else "gone",
            "why": "" if name in alive else reasons.get(name, ""),
            "signals": {str(signal): count for signal, count in counts.items()},
            "score": score(counts),
            "lemon": score(counts) >= LEMON_SCORE,
            "conditions": alive[name].conditions if name in alive else (),
        }
        for name, counts in sorted(counted.items())
    ]


def _row(fields: dict[str, Any]) -> tuple[str, ...]:
    which = ", ".join(f"{count} {signal}" for signal, count in fields["signals"].items())
    now = fields["why"] or "; ".join(
        f"{one.severity}: {one.detail}" for one in fields["conditions"]
    )
    return fields["node"], fields["state"], f"{fields['score']} of {len(LemonSignal)}", which, now
