"""Collectives of workers, as PyTorch's flight recorder has seen them: what each rank entered, when.

Every rank of a process group enters the same collectives in the same order, and none is over before
the last rank has entered it. So the numbers tell who has not come, the kinds who has come to
something else, and the times who always comes last. Ranks that did the same are told together, so
that what a large job waits in stays small.
"""

import contextlib
from collections.abc import Iterable

import msgspec

from holdfast.events import Ranks
from holdfast.rank_rows import JoinedRows
from holdfast.rank_runs import RankRuns

RECENT_MAX = 256  # collectives of a group that are reported at once
GROUPS_MAX = 32  # of one worker
LOGS_MAX = 1 << 16  # of a job


class Collective(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One that a rank has entered. `kind` reads "all_reduce float[1000]"; empty if not asked."""

    sequence: int  # counts from 1 in each group
    entered_us: int = 0  # of the node's wall clock, since 1970; 0 if not asked
    pending: bool = False  # not over yet, as far as the recorder knows
    kind: str = ""


class GroupLog(msgspec.Struct, frozen=True, kw_only=True):
    """What these ranks did in one process group lately, the oldest first."""

    name: str
    description: str = ""
    members: RankRuns = ()  # ranks of the attempt; empty if unknown
    ranks: Ranks = ()
    recent: tuple[Collective, ...] = ()

    @property
    def last(self) -> Collective:
        """The newest."""
        return self.recent[-1]


class CollectivePace(msgspec.Struct, frozen=True, array_like=True):
    """How many collectives of a group a rank had entered by the end of its steps: at these steps,
    and evenly between two of them."""

    name: str
    members: RankRuns
    points: tuple[tuple[int, int], ...]  # steps, which count from 1 in an attempt, and collectives


class CollectiveLog(msgspec.Struct, frozen=True, kw_only=True):
    """Of one worker. `why` says why there is nothing."""

    groups: tuple[GroupLog, ...] = ()
    paces: tuple[CollectivePace, ...] = ()  # of a script whose steps are counted by its optimizer
    steps: tuple[tuple[int, int], ...] = ()  # the newest, and when they ended, like `entered_us`
    why: str = ""


class RankTimes(msgspec.Struct, frozen=True, kw_only=True):
    """When a rank entered its collectives, and the seconds it has used so far."""

    rank: int
    groups: tuple[GroupLog, ...]
    paces: tuple[CollectivePace, ...] = ()
    steps: tuple[tuple[int, int], ...] = ()
    processor_s: float = 0.0  # of its main thread, and of processes of its own
    starved_s: float = 0.0  # ready to run, and without a processor


class UnreadLog(msgspec.Struct, frozen=True, kw_only=True):
    """A `GroupLog` as it comes, of which only the ranks are read: nodes of a large job say the rest
    thousands of times alike."""

    name: msgspec.Raw
    description: msgspec.Raw
    members: msgspec.Raw
    ranks: Ranks
    recent: msgspec.Raw


class _Said(msgspec.Struct, frozen=True, array_like=True):
    """That rest."""

    name: str
    description: str
    members: RankRuns
    recent: tuple[Collective, ...]

    def by(self, ranks: Ranks) -> GroupLog:
        """That these ranks have said."""
        return GroupLog(
            name=self.name,
            description=self.description,
            members=self.members,
            ranks=ranks,
            recent=self.recent,
        )


_unread = msgspec.msgpack.Decoder(UnreadLog)
_said = msgspec.msgpack.Decoder(_Said)
_FOUR = b"\x94"  # begins an array of four in MessagePack


def unread(log: GroupLog) -> UnreadLog:
    """As it is sent."""
    return _unread.decode(msgspec.msgpack.encode(log))


class JoinedLogs:
    """Those that say the same of different ranks made one, as they come; of more kinds than
    `LOGS_MAX` the first."""

    def __init__(self) -> None:
        self._found: dict[bytes, JoinedRows] = {}

    def add(self, logs: Iterable[UnreadLog]) -> None:
        """More of them."""
        for log in logs:
            said = b"".join((_FOUR, log.name, log.description, log.members, log.recent))
            known = self._found.get(said)
            if known is not None:
                known.add(log.ranks)
            elif len(self._found) < LOGS_MAX:
                self._found[said] = JoinedRows(log.ranks)

    def logs(self) -> tuple[GroupLog, ...]:
        """In order; what is no log is left out."""
        found = []
        same: dict[tuple[Collective, ...], tuple[Collective, ...]] = {}
        for said, rows in self._found.items():
            with contextlib.suppress(msgspec.MsgspecError):
                log = _said.decode(said).by(rows.rows())
                recent = same.setdefault(log.recent, log.recent)  # that of many groups is held once
                found.append(msgspec.structs.replace(log, recent=recent))
        return tuple(sorted(found, key=lambda log: (log.name, log.ranks)))


def joined_logs(logs: Iterable[GroupLog]) -> tuple[GroupLog, ...]:
    """All of them (`JoinedLogs`)."""
    found = JoinedLogs()
    found.add(map(unread, logs))
    return found.logs()
