"""The nodes of a job on this machine: what is wrong with each now, and how often it was trouble."""

from typing import Any

from holdfast.cli.locate import job_folder
from holdfast.cli.output import json_result, result, table, talk
from holdfast.diagnosis.lemons import LEMON_SCORE, LemonSignal, score
from holdfast.drivers import client, records

HEADER = ("NODE", "STATE", "SIGNALS", "WHICH", "NOW")


def show(job: str | None, as_json: bool) -> None:
    """Print them."""
    folder = job_folder(job)
    status, counted = client.status(folder), records.signals(folder)
    alive = {node.name: node for node in status.nodes} if status.outcome is None else {}
    found = [
        {
            "node": name,
            "state": alive[name].state if name in alive else "gone",
            "signals": {str(signal): count for signal, count in counts.items()},
            "score": score(counts),
            "lemon": score(counts) >= LEMON_SCORE,
            "conditions": alive[name].conditions if name in alive else (),
        }
        for name, counts in sorted(counted.items())
    ]
    if as_json:
        json_result(found)
        return
    result(table(HEADER, map(_row, found)))
    if any(fields["lemon"] for fields in found):
        talk(f"a node with {LEMON_SCORE} of {len(LemonSignal)} signals is better replaced for good")


def _row(fields: dict[str, Any]) -> tuple[str, ...]:
    which = ", ".join(f"{count} {signal}" for signal, count in fields["signals"].items())
    now = "; ".join(f"{one.severity}: {one.detail}" for one in fields["conditions"])
    return fields["node"], fields["state"], f"{fields['score']} of {len(LemonSignal)}", which, now
