"""Ranks that entered different collectives under one number, and failed of it.

With gloo whoever receives more than it expects is aborted, so it is the peer of a rank that came to
something else that ends first, and the others lose their connections. The line that the aborted one
has printed says what it is. Who was wrong is told by what those that could still say something had
entered last: where they differ the majority is right, else whoever has left the period of its own
steps is wrong. Where all of them have entered what was due, it is the one that was aborted.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.collectives import GroupLog
from holdfast.diagnosis.collectives import PERIOD_MAX, expected_after
from holdfast.diagnosis.symptoms import is_symptom
from holdfast.events import LastEntered, WorkerError, WorkerExited

MISMATCH = re.compile(
    r"op\.preamble\.length <= op\.nbytes|distributed collective mismatch"
    r"|Detected mismatch between collectives on ranks"
)
LAST, GROUPS_TOLD = 2 * PERIOD_MAX + 1, 3  # collectives that are looked at: a period, seen twice
CLUE_CHARS, KIND_CHARS = 300, 100
BY_OTHERS, BY_PERIOD, BY_ELIMINATION = 0.9, 0.8, 0.6  # how sure; judgements

Entered = Mapping[int, tuple[LastEntered, ...]]  # by rank
NOBODY: Entered = {}


class Wrong(NamedTuple):
    """Who entered something else than the others, and how that is known: without a full stop."""

    rank: int
    text: str
    confidence: float


def clue_in(output: str) -> str:
    """The line that says that collectives did not fit; empty if there is none."""
    lines = (line.strip() for line in reversed(output.splitlines()))
    return next((line[:CLUE_CHARS] for line in lines if MISMATCH.search(line)), "")


def says_so(error: WorkerError) -> bool:
    """Whether an exception says that collectives did not fit."""
    return MISMATCH.search(error.message) is not None


def may_be_one(error: WorkerError) -> bool:
    """Whether an exception may come from it: a collective has failed."""
    return says_so(error) or is_symptom(error)


def last_entered(logs: Iterable[GroupLog]) -> tuple[LastEntered, ...]:
    """Of a rank that has told `LAST` collectives of each group, with their kinds: those of the
    groups that it has used last."""
    newest = sorted((log for log in logs if log.recent), key=lambda log: -log.last.entered_us)
    return tuple(map(_last, newest[:GROUPS_TOLD]))


def _last(log: GroupLog) -> LastEntered:
    *before, kind = (one.kind[:KIND_CHARS] for one in log.recent)
    number, due = log.last.sequence, expected_after(before)
    return LastEntered(group=log.name, number=number, kind=kind, due=due, described=log.description)


def departed(entered: Sequence[LastEntered]) -> LastEntered | None:
    """Where a rank has entered last what was not due by its own period."""
    return next((one for one in entered if one.due not in ("", one.kind)), None)


def who(exits: Sequence[WorkerExited], first: WorkerExited, stopped: Entered = NOBODY) -> Wrong:
    """Of an attempt in which collectives did not fit, as `first` says. `stopped` is what ranks had
    entered last that were stopped because of it."""
    known = dict(stopped)
    known |= {e.rank: e.error.entered for e in exits if e.error is not None and e.error.entered}
    if (odd := _minority(known)) is not None:
        return odd
    left = {rank: one for rank, own in sorted(known.items()) if (one := departed(own))}
    if len(left) == 1:
        [(rank, one)] = left.items()
        return Wrong(rank, f"it entered {_which(one)} where {one.due} was expected", BY_PERIOD)
    peers = "no evidence against its peers" if known else "its peers could not be asked"
    return Wrong(first.rank, peers, BY_ELIMINATION)


def _minority(known: Entered) -> Wrong | None:
    sides: dict[tuple[str, int], dict[str, list[int]]] = {}
    for rank, own in sorted(known.items()):
        for one in own:
            sides.setdefault((one.group, one.number), {}).setdefault(one.kind, []).append(rank)
    for place, kinds in sides.items():
        by_count = sorted(kinds, key=lambda kind: len(kinds[kind]))
        rank, right = kinds[by_count[0]][0], by_count[-1]
        if len(kinds[by_count[0]]) < len(kinds[right]):
            [odd] = [one for one in known[rank] if (one.group, one.number) == place]
            return Wrong(rank, f"it entered {_which(odd)} where others entered {right}", BY_OTHERS)
    return None


def _which(one: LastEntered) -> str:
    return f"{one.kind} (number {one.number} of group {one.described or one.group})"
