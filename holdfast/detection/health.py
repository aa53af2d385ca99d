"""Readings of a node's counters in, facts out: which condition begins, changes, or is over.

Providers (holdfast/agent/health) read; what a reading means is decided here, by one table. A
condition is told when it begins, changes or ends, never at each look, so a node with nothing new
costs the controller nothing. What comes and goes around its limit ends only after it has been quiet
for a while.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from holdfast.detection import kernel_log, xid
from holdfast.events import HealthChanged, Severity

CALM_S = 30.0  # that a condition must have been away to be over
FLICKERS_S = 120.0  # likewise of what comes and goes with the load, and is told soon
AGAIN_S = 30.0  # between two alerts of one condition: less is the same one
STANDING_MAX = 64  # conditions of one node; more warnings than that tell nothing new
HISTORY_MAX = 128
XID, KERNEL, GPU = "xid", "kernel-log", "gpu"  # readings that are no number to compare


class Reading(NamedTuple):
    """One look at one thing. The larger the value, the worse, but for what fills up."""

    kind: str  # a key of RULES; or XID, KERNEL, GPU; anything else is only shown
    value: float = 0.0
    device: str = ""
    text: str = ""  # for people, with its unit; empty: there is nothing to say of it


class How(Enum):
    """When a value is a condition."""

    HOLDS = auto()  # at the limit or above for so long
    BEGINS = auto()  # the same, and it was below when it was first seen
    RISES = auto()  # by the limit within that time
    FILLS = auto()  # what is left would be used up within `limit` s, going on as within that time


class HealthRule(NamedTuple):
    """What a kind of reading means."""

    how: How
    limit: float
    for_s: float
    severity: Severity
    words: str  # of one sentence, with {text} and {device}
    advice: str
    quiet_s: float = CALM_S  # without it, and it is over; of what rises at least `for_s`


HOLDS, BEGINS, RISES, FILLS = How
WARN, ALERT, FATAL = Severity.WARN, Severity.ALERT, Severity.FATAL
LEAVES = Severity.LEAVES
REPLACE_GPU = "reset the GPU; if that does not help, have it replaced (RMA)"
COOL = "check cooling and power supply of the machine: nvidia-smi -q -d PERFORMANCE"
DRAIN_LINK = "check cable, port and switch of this link"
FREE_SPACE = "free some space: old checkpoints, logs, core dumps"
RIGHTS = (
    "let that user write there: owner and mode of the folder or of the volume's root; on "
    "Kubernetes fsGroup does that where the volume's driver supports it, hostPath and NFS do not"
)

RULES: dict[str, HealthRule] = {
    "gpu-lost": HealthRule(
        BEGINS, 1, 0, FATAL, "{device}: the GPU is lost ({text})", "drain and reboot the machine"
    ),
    "gpu-reset-needed": HealthRule(
        HOLDS, 1, 0, FATAL, "{device}: the driver asks for {text}", REPLACE_GPU
    ),
    "gpu-remap-failed": HealthRule(
        HOLDS, 1, 0, FATAL, "{device}: a row of GPU memory could not be remapped", REPLACE_GPU
    ),
    "gpu-remap-pending": HealthRule(
        HOLDS, 1, 0, WARN, "{device}: a row remapping of GPU memory is pending",
        "reset the GPU when the job is over",
    ),
    "gpu-ecc": HealthRule(
        RISES, 1, 3600, WARN, "{device}: uncorrectable ECC errors ({text})",
        "watch it; reset the GPU when the job is over",
    ),
    "gpu-hot": HealthRule(HOLDS, 0, 4, WARN, "{device}: {text}", COOL, FLICKERS_S),
    "gpu-throttled": HealthRule(
        HOLDS, 1, 4, WARN, "{device}: throttled ({text})", COOL, FLICKERS_S
    ),
    "gpu-pcie": HealthRule(
        HOLDS, 1, 4, WARN, "{device}: PCIe link width is reduced ({text})",
        "reseat the GPU, or have its slot checked",
    ),
    "gpu-nvlink": HealthRule(
        BEGINS, 1, 0, ALERT, "{device}: NVLinks went down ({text})", str(xid.Remedy.LINK)
    ),
    "gpu-nvlink-errors": HealthRule(
        RISES, 1, 3600, WARN, "{device}: errors on NVLink ({text})", str(xid.Remedy.LINK)
    ),
    "gpu-nvlink-crc": HealthRule(
        RISES, 6000, 60, WARN, "{device}: many errors on NVLink ({text})", str(xid.Remedy.LINK)
    ),
    "gpu-pcie-replays": HealthRule(
        RISES, 9, 60, WARN, "{device}: many PCIe replays ({text})",
        "reseat the GPU, or have its slot and riser checked",
    ),
    "gpu-silent": HealthRule(
        HOLDS, 10, 0, WARN, "the GPU driver does not answer ({text})", "nvidia-smi; dmesg"
    ),
    "memory-pressure": HealthRule(
        HOLDS, 10, 3.5, WARN, "memory pressure: {text}",
        "give the node more memory, or let the job use less", FLICKERS_S,
    ),
    "cpu-pressure": HealthRule(
        HOLDS, 80, 60, WARN, "CPU pressure: {text}",
        "use fewer threads and loader workers than there are cores, or move other work away",
    ),
    "cpu-stolen": HealthRule(
        HOLDS, 0.1, 3.5, WARN, "CPU steal by other virtual machines: {text}",
        "move the machine to a host with free processors", FLICKERS_S,
    ),
    "cpu-throttled": HealthRule(
        HOLDS, 0.25, 3.5, WARN, "CPU throttled by the cgroup limit: {text}",
        "raise the CPU limit of the node", FLICKERS_S,
    ),
    "disk-full": HealthRule(HOLDS, 0.98, 0, WARN, "{device} is full: {text}", FREE_SPACE),
    "disk-filling": HealthRule(
        FILLS, 3600, 300, WARN, "{device} will be full within the hour: {text}", FREE_SPACE
    ),
    "mount-read-only": HealthRule(
        BEGINS, 1, 0, FATAL, "{device} has become read-only ({text})",
        "look for errors of the disk in the kernel log, and have it replaced",
    ),
    "share-read-only": HealthRule(
        HOLDS, 1, 0, WARN, "{device} is {text}",
        "check the file server, and how the volume is mounted",
    ),
    "folder-denied": HealthRule(
        HOLDS, 1, 0, WARN, "{device} cannot be written to: {text}", RIGHTS
    ),
    "mount-stale": HealthRule(
        HOLDS, 6, 0, WARN, "{device} does not answer ({text})",
        "check the file server and the network path to it",
    ),
    "clock-jump": HealthRule(
        HOLDS, 1, 0, WARN, "the clock was set by {text}", "check the time service: chronyc tracking"
    ),
    "ports-taken": HealthRule(
        HOLDS, 1, 0, WARN, "{text} ({device})",
        "other nodes must be able to reach that port; `ss -ltnp` on the machine shows who listens",
    ),
    "process-stuck": HealthRule(
        HOLDS, 5.5, 0, WARN, "{device} is blocked in the kernel (state D): {text}",
        "find what it waits for: storage or a driver that does not answer",
    ),
    "zombies": HealthRule(
        HOLDS, 20, 5.5, WARN, "zombie processes: {text}",
        "let the script wait for (reap) the processes that it starts",
    ),
    "link-down": HealthRule(RISES, 1, 300, ALERT, "{device} lost its link ({text})", DRAIN_LINK),
    "link-errors": HealthRule(
        RISES, 100, 60, WARN, "{device}: transmission errors ({text})", DRAIN_LINK
    ),
    "link-drops": HealthRule(
        RISES, 10_000, 60, WARN, "{device}: packets are dropped ({text})", "raise ring buffers"
    ),
    "rdma-inactive": HealthRule(
        BEGINS, 1, 0, ALERT, "{device}: the port is not active any more ({text})", DRAIN_LINK
    ),
    "rdma-down": HealthRule(
        RISES, 1, 300, ALERT, "{device}: the port went down ({text})", DRAIN_LINK
    ),
    "rdma-errors": HealthRule(
        RISES, 100, 60, WARN, "{device}: transmission errors ({text})", DRAIN_LINK
    ),
    "rdma-retries": HealthRule(
        RISES, 1000, 60, WARN, "{device}: packets were lost and sent again ({text})", DRAIN_LINK
    ),
    "rdma-congestion": HealthRule(
        RISES, 600_000, 60, WARN, "{device}: the network is congested ({text})",
        "check PFC and ECN of the switches, and who else uses these links",
    ),
    "cloud-removal": HealthRule(
        HOLDS, 1, 0, LEAVES, "its machine leaves: {text}",
        "nothing, if a spare waits; otherwise it trains until shortly before",
    ),
    "cloud-warning": HealthRule(
        HOLDS, 1, 0, WARN, "its cloud announces: {text}", "have a spare ready (nodes.spares)"
    ),
}  # fmt: skip
"""What each kind of reading means. Slowness is told and nobody is replaced for it.

Of PCIe 8 replays a minute and of NVLink 100 CRC errors a second are the most that NVIDIA's driver
takes for harmless, and any other error of NVLink is worth a word: so DCGM's health watches have it
(NVIDIA/DCGM, dcgm_gpu_hardware_limits.h). A congested flow sends a notification each 50 us at most
(DCQCN, SIGCOMM 2015): the limit is that of one which is slowed down half of the time. Some are
ordinary, as are retries where packets take several ways. Where there are as many threads as
processors somebody often waits for a moment: told is where that is so four fifths of the time, for
a minute, because as much while a job starts is nothing.

What holds is told with the second, third or fourth look in a row that shows it: times are a little
less than so many intervals of its provider, for looks are never on the dot.
"""

Key = tuple[str, str]  # condition, device


@dataclass(slots=True)
class _Course:
    """How one value has gone."""

    first: float
    above_since: float | None = None
    points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=HISTORY_MAX))


@dataclass(slots=True)
class _Standing:
    """A condition that was told."""

    severity: Severity
    told_at: float
    seen_at: float
    quiet_s: float  # after which it is over


class _Finding(NamedTuple):
    """A condition as it is now; `again`: each time it is found is another one."""

    key: Key
    severity: Severity
    detail: str
    advice: str
    quiet_s: float
    again: bool = False


class Conditions:
    """Of one node. `now` is a clock that never steps back."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._courses: dict[Key, _Course] = {}
        self._standing: dict[Key, _Standing] = {}
        self._bursts: dict[str, xid.Burst] = {}
        self._gpus: set[str] = set()  # of this node; empty: unknown, so each one counts

    def hear(self, readings: Iterable[Reading], now: float) -> list[HealthChanged]:
        """What these readings change."""
        told: list[HealthChanged] = []
        errors: list[xid.XidError] = []
        for reading in readings:
            match reading.kind:
                case "gpu":
                    self._gpus.add(reading.device)
                case "xid":
                    errors.append(xid.XidError(reading.device, int(reading.value), reading.text))
                case "kernel-log" if (error := xid.parse(reading.text)) is not None:
                    errors.append(error)
                case "kernel-log":
                    told += self._hear_kernel(reading.text, now)
                case kind if (rule := RULES.get(kind)) is not None:
                    told += self._judge(rule, reading, now)
        return [*told, *self._hear_xids(errors, now), *self._ended(now)]

    # ── what is no number ──

    def _hear_xids(self, errors: list[xid.XidError], now: float) -> Iterator[HealthChanged]:
        for gpu in dict.fromkeys(error.device for error in errors):
            if self._gpus and gpu not in self._gpus:
                continue  # of another node on this machine
            mine = [error for error in errors if error.device == gpu]
            burst = self._bursts[gpu] = xid.joined(self._bursts.get(gpu), mine, now)
            key = f"xid-{burst.cause.number}", gpu
            severity = burst.severity
            yield from self._tell(
                _Finding(key, severity, burst.words, burst.advice, _lasts_s(severity)), now
            )

    def _hear_kernel(self, line: str, now: float) -> Iterator[HealthChanged]:
        found = kernel_log.read(line)
        if found is not None:
            key, lasts_s = (found.condition, found.device), _lasts_s(found.severity)
            yield from self._tell(
                _Finding(key, found.severity, found.line, found.advice, lasts_s, again=True), now
            )

    # ── numbers ──

    def _judge(self, rule: HealthRule, reading: Reading, now: float) -> Iterator[HealthChanged]:
        key, value = (reading.kind, reading.device), reading.value
        course = self._courses.setdefault(key, _Course(value))
        if not _is_met(rule, course, value, now):
            return
        words = rule.words.format(device=reading.device, text=reading.text or f"{value:g}")
        rises = rule.how is RISES
        quiet_s = max(rule.for_s, rule.quiet_s) if rises else rule.quiet_s
        yield from self._tell(
            _Finding(key, rule.severity, words, rule.advice, quiet_s, again=rises), now
        )

    # ── what is told ──

    def _tell(self, found: _Finding, now: float) -> Iterator[HealthChanged]:
        known = self._standing.get(found.key)
        if known is None and (found.severity is Severity.OK or self._is_crowded(found.severity)):
            return
        if known is not None and known.severity is found.severity and not _anew(known, found, now):
            known.seen_at = now
            return
        if found.severity is Severity.OK:
            del self._standing[found.key]
        else:
            self._standing[found.key] = _Standing(found.severity, now, now, found.quiet_s)
        yield self._changed(found.key, found.severity, found.detail, found.advice)

    def _is_crowded(self, severity: Severity) -> bool:
        return severity is WARN and len(self._standing) >= STANDING_MAX

    def _changed(self, key: Key, severity: Severity, detail: str, advice: str) -> HealthChanged:
        condition, device = key
        return HealthChanged(
            node=self._node, condition=condition, severity=severity, device=device,
            detail=detail, advice=advice,
        )  # fmt: skip

    def _ended(self, now: float) -> Iterator[HealthChanged]:
        over = [k for k, s in self._standing.items() if now - s.seen_at >= max(s.quiet_s, CALM_S)]
        for key in over:
            del self._standing[key]
            yield self._changed(key, Severity.OK, "", "")


def _anew(known: _Standing, found: _Finding, now: float) -> bool:
    """Whether it is another alert of the same kind; what only stands on is told once."""
    return found.again and found.severity is ALERT and now - known.told_at >= AGAIN_S


def _lasts_s(severity: Severity) -> float:
    """Of what was told once: how long it stands."""
    return math.inf if severity is FATAL else xid.QUIET_S


def _is_met(rule: HealthRule, course: _Course, value: float, now: float) -> bool:
    """Whether the value, after all before it, is the condition."""
    if rule.how in (HOLDS, BEGINS):
        if value < rule.limit or (rule.how is BEGINS and course.first >= rule.limit):
            course.above_since = None
            course.first = min(course.first, value)
            return False
        since = course.above_since = now if course.above_since is None else course.above_since
        return now - since >= rule.for_s
    course.points.append((now, value))
    while now - course.points[0][0] > rule.for_s:
        course.points.popleft()
    return _has_risen(rule, course) if rule.how is RISES else _fills(rule, course)


def _has_risen(rule: HealthRule, course: _Course) -> bool:
    """A counter that starts anew (a driver was loaded again) has not."""
    if course.points[-1][1] - course.points[0][1] < rule.limit:
        return False
    newest = course.points[-1]
    course.points.clear()
    course.points.append(newest)  # so that only a further rise counts again
    return True


def _fills(rule: HealthRule, course: _Course) -> bool:
    """By a straight line through the first and the last point; too short a time tells nothing."""
    (begun, before), (now, left) = course.points[0], course.points[-1]
    if now - begun < rule.for_s / 2 or left >= before:
        return False
    return left / ((before - left) / (now - begun)) < rule.limit
