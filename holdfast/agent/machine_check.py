"""Whether this node's machine may train: the quick checks, before the controller may count on it.

They run in processes of their own (`python -m holdfast.checks`), beside the forkserver that loads.
Only what belongs to the machine is checked, or counts: another one would fail for storage that
nodes share, for owner and mode of a folder and for settings of the container just the same.
"""

import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from holdfast.agent.program_output import output_of
from holdfast.agent.storage.protocol import DurablePlace
from holdfast.checks.compare import CheckReport, digests
from holdfast.checks.outcome import CheckResult
from holdfast.checks.plan import DISK, nearest_folder
from holdfast.events import ENVIRONMENT, HealthChanged, Severity

LONGEST_S = 300.0  # all of them together; each has its own deadline


class MachineFound(NamedTuple):
    """Why this machine may not train, empty if it may; digests of what it has computed, by check
    and kind of device."""

    why: str
    digests: dict[str, str]


async def look(
    node: str, places: Iterable[DurablePlace], tell: Callable[[HealthChanged], None], only: str = ""
) -> MachineFound:
    """What is wrong on every machine alike is told as a warning. `only`: for all that this check
    tells."""
    folders = [nearest_folder(place.where) for place in places if place.own]
    command = [sys.executable, "-P", "-m", "holdfast.checks", f"--only={only}"]
    try:
        said = await output_of([*command, *dict.fromkeys(folders)], node, LONGEST_S)
    except TimeoutError:
        return MachineFound(f"its checks timed out after {LONGEST_S:g} s", {})
    return _judged(said, node, tell)


def _judged(said: bytes, node: str, tell: Callable[[HealthChanged], None]) -> MachineFound:
    try:
        report = msgspec.json.decode(said, type=CheckReport)
    except msgspec.MsgspecError:
        return MachineFound("its checks ended without a result (see agent.log of the node)", {})
    for one in report.checks:
        if one.environment and not one.name.startswith(DISK):  # the watch over folders tells that
            tell(_warning(node, one))
    wrong = [f"{one.name}: {one.found}" for one in report.checks if one.blames_machine]
    computed = {
        f"{name}: {kind}": digest for (name, kind), digest in digests(report.checks).items()
    }
    return MachineFound("; ".join(wrong), computed)


def _warning(node: str, result: CheckResult) -> HealthChanged:
    return HealthChanged(
        node=node,
        condition=ENVIRONMENT,
        severity=Severity.WARN,
        device=result.name,
        detail=f"{result.name}: {result.found}",
        advice=result.help,
    )
