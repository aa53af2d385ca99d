"""What `holdfast doctor` says of the health of this machine: what can be read, and what it reads.

The same providers as an agent's, one look each. What they lack is told and is no fault: a laptop
has no GPU, and a container often may not read the kernel log.
"""

import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.agent.cloud_notices import provider as cloud_notices
from holdfast.agent.health.find import find, root_of
from holdfast.agent.health.kernel_log import KernelLog
from holdfast.agent.health.provider import Missing, Provider
from holdfast.agent.health.telling import of_each_device
from holdfast.counts import count
from holdfast.detection import kernel_log, xid
from holdfast.detection.health import KERNEL, Conditions, Reading
from holdfast.events import HealthChanged, Severity

LOOK_S = 10.0
SHOWN_MAX = 16  # lines of one provider, and kinds of faults


class HealthCheck(NamedTuple):
    """One provider, in the words of the doctor's other checks."""

    name: str
    ok: bool
    found: str
    remedy: str


def checks(folder: Path) -> list[HealthCheck]:
    """One for each provider, here or missing; `folder` is where jobs are kept."""
    root = root_of(os.environ, "doctor")
    found = find(root, [folder])
    told = [*map(_check, found.present), *map(_lacking, found.missing)]
    return [
        *told,
        _of_cloud(cloud_notices.find(root, "auto", cloud_notices.url_of(os.environ, "doctor"))),
    ]


def _of_cloud(cloud: cloud_notices.MetadataWatch | Missing) -> HealthCheck:
    """A service that does not answer is no fault: in many clusters pods may not reach it."""
    if isinstance(cloud, Missing):
        return _lacking(cloud)
    found = _look(cloud)
    if isinstance(found, str):
        return HealthCheck(f"health of {cloud.name}", True, f"not watched: {found}", "")
    return HealthCheck(f"health of {cloud.name}", True, _shown(found), "")


def _lacking(one: Missing) -> HealthCheck:
    return HealthCheck(f"health of {one.name}", True, f"not watched: {one.why}", "")


def _check(provider: Provider) -> HealthCheck:
    name = f"health of {provider.name}"
    if isinstance(provider, KernelLog):
        return HealthCheck(name, True, _history(provider), "")
    answers: list[list[Reading] | str] = []
    thread = threading.Thread(target=lambda: answers.append(_look(provider)), daemon=True)
    thread.start()
    thread.join(LOOK_S)
    answer = answers[0] if answers else f"no answer within {LOOK_S:g} s"
    if isinstance(answer, str):
        return HealthCheck(name, False, answer, "see what this driver or file system waits for")
    faults = list(_faults(answer))
    if faults:
        return HealthCheck(name, False, faults[0].detail, faults[0].advice)
    return HealthCheck(name, True, _shown(answer, provider.name.removeprefix("folder ")), "")


def _look(provider: Provider) -> list[Reading] | str:
    try:
        return provider.read()
    except OSError as error:
        return error.strerror or str(error)


def _faults(readings: list[Reading]) -> Iterator[HealthChanged]:
    told = Conditions("").hear(readings, 0.0)
    return (change for change in told if change.severity is Severity.FATAL)


def _shown(readings: list[Reading], told_already: str = "") -> str:
    """A line for each device, without those that say nothing: no text, or that there are none."""
    if not readings:
        return "nothing to read"
    lines: list[str] = []
    for device, texts in of_each_device(readings).items():
        label = "" if device in ("", told_already) else f"{device}: "
        lines += [label + "; ".join(texts)] if texts else []
    if len(lines) > SHOWN_MAX:
        lines[SHOWN_MAX:] = [f"and {len(lines) - SHOWN_MAX} more"]
    return "\n".join(lines) or "no findings"


def _history(log: KernelLog) -> str:
    """What the log still holds of faults: some may be long over."""
    reader = log.from_the_start()
    lines = [reading.text for reading in reader.read() if reading.kind == KERNEL]
    reader.close()
    kinds: Counter[str] = Counter()
    for line in lines:
        error, trouble = xid.parse(line), kernel_log.read(line)
        if error is not None:
            kinds[f"XID {error.number}"] += 1
        elif trouble is not None:
            kinds[trouble.condition] += 1
    told = ", ".join(f"{kind} {count(n, 'time')}" for kind, n in kinds.most_common(SHOWN_MAX))
    return f"readable; it reports {told}" if told else "readable; no fault reported"
