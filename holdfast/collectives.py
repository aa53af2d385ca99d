"""Collectives of workers, as PyTorch's flight recorder has seen them: what each rank entered, when.

Every rank of a process group enters the same collectives in the same order, and none is over before
the last rank has entered it. So the numbers tell who has not come, the kinds who has come to
something else, and the times who always comes last. Ranks that did the same are told together, so
that what a large job waits in stays small.
"""

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.events import Ranks, each_of, in_rows

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
    members: Ranks = ()  # ranks of the attempt; empty if unknown
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
    members: Ranks
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


def joined_logs(logs: Iterable[GroupLog]) -> tuple[GroupLog, ...]:
    """Those that say the same of different ranks made one."""
    found: dict[tuple[object, ...], list[GroupLog]] = {}
    for log in logs:
        found.setdefault((log.name, log.members, log.recent), []).append(log)
    made = map(_one, found.values())
    return tuple(sorted(made, key=lambda log: (log.name, log.ranks))[:LOGS_MAX])


def _one(same: Sequence[GroupLog]) -> GroupLog:
    ranks = in_rows(rank for log in same for rank in each_of(log.ranks))
    return msgspec.structs.replace(same[0], ranks=ranks)
