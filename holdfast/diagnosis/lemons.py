"""Nodes that trouble a job again and again: seven signals, counted from its journal.

A node may be well by every single check and still be behind one failure after another. Meta found
such lemon nodes by seven signals over 28 days, and taking them out cut the failures of jobs on 512
and more GPUs from 14 % to 4 % (arXiv 2410.21680). Theirs come from a fleet's records, ours from
jobs' journals; no event counts as two signals, so several of them are several troubles. What a
person, an autoscaler or a scheduler does to a machine is no signal: a machine that was cordoned or
drained has done nothing.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from holdfast.actions import AssignRank, Entry, Fence, StartAttempt
from holdfast.events import (
    COMMON_CONDITIONS,
    Diagnosed,
    HangJudged,
    HealthChanged,
    Judgement,
    NodeJoined,
    NodeLost,
    NodeLostReason,
    NodesChecked,
    NodeUnfit,
    Severity,
    each_of,
)

WINDOW_S = 28 * 86_400.0
LEMON_SCORE = 3  # signals of seven; a judgement, not a measurement
NOT_THE_NODES = frozenset(("hardware-fault", "hang", "nan", "peer-lost", "node-lost", "node-left"))
"""Causes that say nothing of the blamed rank's node, or that another signal counts."""

NOT_THE_MACHINES = COMMON_CONDITIONS | {
    "machine-cordoned", "machine-leaving", "cloud-warning", "ports-taken",
}  # fmt: skip
"""Conditions that somebody has put it into, or that every machine is in."""


class LemonSignal(StrEnum):
    """One kind of trouble; the value is its name for people."""

    FAULT = "faults"  # of hardware, that would not pass, and checks that failed
    XID = "XIDs"  # that a restart cures
    ALERT = "alerts"  # of links and memory
    WARNING = "warnings"  # slowness, little memory, full disks
    LOST = "losses"  # of the node
    FAILURE = "failures"  # of its workers, for no fault of the script's
    HANG = "hangs"  # of its workers


Counts = dict[LemonSignal, int]


class Signals:
    """Tells the signals among the facts of one job, heard in their order."""

    def __init__(self, ranks: Mapping[int, str] | None = None, workers: int = 1) -> None:
        self._ranks = dict(ranks or {})  # node rank → node, as it was given last
        self._workers = workers

    def hear(self, entry: Entry) -> tuple[LemonSignal, str] | None:
        """The signal that this line of the journal is, and the id of the node that gave it."""
        match entry.event:
            case NodeUnfit() | NodesChecked():
                signal, node = _of_checks(entry)
            case event:
                signal, node = _signal(event, self._ranks, self._workers)
        for action in entry.actions:
            if isinstance(action, AssignRank):
                self._ranks[action.node_rank] = action.node
            elif isinstance(action, StartAttempt):
                self._workers = action.workers_per_node
        return (signal, node) if signal is not None and node else None


def signals(entries: Iterable[Entry], now: float) -> dict[str, Counts]:
    """What each node that a job has had did within the window, by its name; `now` in seconds since
    the epoch."""
    found: dict[str, Counts] = {}
    names: dict[str, str] = {}
    told = Signals()
    for entry in entries:
        if isinstance(entry.event, NodeJoined):
            names[entry.event.node] = entry.event.name
            found.setdefault(entry.event.name, {})
        given = told.hear(entry)
        if given is None or entry.at <= now - WINDOW_S or given[1] not in names:
            continue
        counts = found[names[given[1]]]
        counts[given[0]] = counts.get(given[0], 0) + 1
    return found


def _signal(event: object, ranks: dict[int, str], workers: int) -> tuple[LemonSignal | None, str]:
    """Which signal an event is, and of which node."""
    match event:
        case HealthChanged():
            return _of_health(event), event.node
        case NodeLost(planned=False) if event.reason is not NodeLostReason.STUCK:
            return LemonSignal.LOST, event.node
        case HangJudged(judgement=Judgement.HANG):
            rank = next(each_of(event.ranks), None)
            return LemonSignal.HANG, "" if rank is None else ranks.get(rank // workers, "")
        case Diagnosed(rank=int(rank)) if not (
            event.user_error or event.environment or _is_codes(event)
        ):
            failed = event.cause not in NOT_THE_NODES
            return (LemonSignal.FAILURE if failed else None), ranks.get(rank // workers, "")
        case _:
            return None, ""


def _is_codes(event: Diagnosed) -> bool:
    """Whether the same came wherever its step was done."""
    recurs = event.occurrence.recurs if event.occurrence is not None else None
    return recurs is not None and recurs.whose == "code"


def _of_checks(entry: Entry) -> tuple[LemonSignal | None, str]:
    """Only of a machine that is left for it: the others have failed alike."""
    left = (one.node for one in entry.actions if isinstance(one, Fence) and one.blamed)
    return LemonSignal.FAULT, next(left, "")


def _of_health(event: HealthChanged) -> LemonSignal | None:
    match event.severity:
        case Severity.OK | Severity.LEAVES:
            return None
        case _ if event.condition in NOT_THE_MACHINES:
            return None
        case Severity.FATAL:
            return LemonSignal.FAULT
        case _ if event.condition.startswith("xid-"):
            return LemonSignal.XID
        case Severity.ALERT:
            return LemonSignal.ALERT
        case Severity.WARN:
            return LemonSignal.WARNING


def score(counts: Counts) -> int:
    """How many of the seven signals a node has given."""
    return sum(1 for count in counts.values() if count)
