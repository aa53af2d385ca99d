"""Code or machine: what the places where an error came tell of whose it is.

A step is the same on every node that does it, batch and random numbers included. So an error that
comes at the same step on different nodes is not one machine's: it lies in the code, in its data, or
in what nodes share. That counts above all for errors of devices, which are the code's more often
than the machine's (illegal memory accesses: 41 of 62, ByteRobust, arXiv 2509.16293).

Chance may have it so as well: while a large job starts again for a machine that is broken, another
one may fail, and the broken one fails at that step until it is left. So two explanations are
weighed: each error strikes any of N nodes (or, with its data, always one rank), or it comes again
on those that had it, and as many others as have had it once failed meanwhile by themselves, at the
highest rate that is published. Twice only clears the machines; it takes a third time, or the same
rank on another node, to treat it as the script's; not on one that had failed there with a rank of
its own before.

A process of a data loader that is killed at the same step a third time, wherever, is the script's,
too: what it reads there needs more memory than there is, or crashes what reads it. Where the kernel
is known to have killed it for that, the verdict says so the first time (`out-of-memory`).

An error of the script that comes again and again, at different steps and only ever on one node,
where others do the same with other samples, is suspected to be that machine's, once chance would
hardly have it so. Not where only rank 0 has it: that rank does what no other does. A rank may also
have samples of its own, which no count can exclude; the next node will tell, if one takes over.

A worker that gets no GPU fails before any step. That the image or the settings of the job are wrong
shows on all nodes, though the first to say so may have all others stopped; where it is the same
node alone twice, that one is suspected.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from holdfast.counts import count
from holdfast.diagnosis import without_gpu
from holdfast.diagnosis.verdict import (
    CAUSES,
    LEFT,
    Origin,
    Verdict,
    cause_of,
    loader_was_killed,
    signature_of,
)
from holdfast.events import Ranks, WorkerExited, each_of
from holdfast.occurrences import CERTAIN, Occurrence, Recurrence

DEVICE = "device-error"
KILLED = "worker-killed"
OF_SEVERAL = "collective-mismatch"  # the rank that is blamed is not the one that raised it
TIMES = 3  # at least, that an error came on one node before its machine is suspected
CHANCE = 0.05  # at most, that it came so by chance
FAULTS_S = 6.5 / 1000 / 86_400  # of a node, by itself, per second: RSC-1 (arXiv 2410.21680)
LEAST = 1e-6
SURE = 0.95
ONLY_TWICE = 0.8
SUSPECTED = 0.6
LISTED_MAX = 4


def occurrence(
    verdict: Verdict,
    exits: Sequence[WorkerExited],
    others: Mapping[int, Ranks],
    name_of: Callable[[int], str],
    version: int,
) -> Occurrence | None:
    """The error that a verdict rests on; None where it has none that could be compared, or nothing
    was completed yet. `name_of` a rank is the name of its node, empty where that is not known."""
    first = verdict.chosen
    step = first.progress.step or 0 if first is not None else 0
    if first is None or first.error is None or not _is_compared(verdict):
        return None
    if not step and not (without_gpu.says_so(first.error) and verdict.cause != DEVICE):
        return None
    ranks: list[int] = []
    if verdict.cause != DEVICE:  # one device that fails may take others with it
        ranks = sorted(rank for one in _alike(verdict, exits) for rank in _all(one, others))
    return Occurrence(
        cause=verdict.cause,
        signature=verdict.signature or "",
        rank=first.rank,
        step=step,
        nodes=tuple(dict.fromkeys(filter(None, map(name_of, (first.rank, *ranks))))),
        version=version,
    )


def judge(
    now: Occurrence, before: Sequence[Occurrence], nodes: int, *, alike: bool = True
) -> Recurrence | None:
    """Whose it is, in a job of so many nodes; `alike`: they do the same, with other samples."""
    same = [one for one in before if _key(one) == _key(now)]
    if not now.step:
        return _of_no_gpu([*same, now], nodes)
    here = [one for one in same if one.step == now.step]
    if now.cause == KILLED and len(here) + 1 >= TIMES:
        return _too_large(len(here) + 1, now.step)
    if here and (found := _of_code([*here, now], nodes)) is not None:
        return found
    if now.cause == DEVICE or not alike:
        return None
    if _went_along(now, same, nodes):
        told = f"the same error occurred on {same[0].nodes[0]}, and now on {now.nodes[0]}"
        return _code(CERTAIN, told)
    return _of_machine([*same, now], nodes)


def _of_code(times: Sequence[Occurrence], nodes: int) -> Recurrence | None:
    """At one step, oldest first."""
    now, seen = times[-1], _names(times)
    first = {one.nodes[0]: one.rank for one in reversed(times)}
    moved = sum(rank == now.rank for rank in first.values()) > 1
    together = any(len(one.nodes) > 1 for one in times)
    again = 0 if together else len(times) - len(seen)
    faults, others = nodes * FAULTS_S * (now.at - times[0].at), len(seen) - 1
    by_chance = max(LEAST, faults) ** others / math.factorial(others)
    if not others or not (moved or by_chance <= CHANCE * nodes**-again):
        return None
    sure = SURE if moved or len(times) > 2 else ONLY_TWICE
    told = f"the same error occurred {len(times)} times after step {now.step}"
    return _code(sure, f"{told}, on {_listed(seen)}")


def _went_along(now: Occurrence, same: Sequence[Occurrence], nodes: int) -> bool:
    """Whether it has come to the node that has taken the rank of one that was suspected."""
    suspected = now.nodes[0] not in _names(same) and _is_suspicious(same, nodes)
    return suspected and now.rank in {one.rank for one in same}


def _of_machine(times: Sequence[Occurrence], nodes: int) -> Recurrence | None:
    if not _is_suspicious(times, nodes):
        return None
    steps = len({one.step for one in times})
    told = f"the same error occurred at {steps} different steps, only on {times[0].nodes[0]}"
    others = f"{count(nodes - 1, 'other node')} did the same work without it"
    text = f"{told}, while {others}: its machine is suspected"
    return Recurrence(whose="machine", confidence=SUSPECTED, text=text)


def _of_no_gpu(times: Sequence[Occurrence], nodes: int) -> Recurrence | None:
    """Before any step."""
    seen = _names(times)
    if len(times) < 2 or nodes < 2:
        return None
    if len(seen) > 1:
        return _code(CERTAIN, f"no GPU was found on {_listed(seen)}")
    text = f"no GPU was found, {len(times)} times only on {seen[0]}: its machine is suspected"
    return Recurrence(whose="machine", confidence=SUSPECTED, text=text)


def _is_suspicious(times: Sequence[Occurrence], nodes: int) -> bool:
    """Whether one node has had all of these, more often than chance would have it."""
    steps = len({one.step for one in times})
    often = steps >= TIMES and nodes > 1 and nodes ** (1 - steps) <= CHANCE
    return often and len(_names(times)) == 1 and any(one.rank for one in times)


def _code(confidence: float, told: str) -> Recurrence:
    where = "the code, its data, or something the nodes share, not one machine"
    return Recurrence(whose="code", confidence=confidence, text=f"{told}; cause: {where}")


def _too_large(times: int, step: int) -> Recurrence:
    what = f"a data loader process was killed {times} times after step {step}"
    text = f"{what}; cause: what it reads there is too large for the memory, or crashes the reader"
    return Recurrence(whose="code", confidence=SURE, text=text)


def _is_compared(verdict: Verdict) -> bool:
    """Whether it may be the script's, and is not certain to come again."""
    cause = verdict.cause
    if cause == KILLED and verdict.chosen is not None:
        return loader_was_killed(verdict.chosen.error)
    ours = CAUSES[cause].origin is Origin.CODE and not CAUSES[cause].final
    return cause == DEVICE or (ours and cause not in (*LEFT, OF_SEVERAL))


def _alike(verdict: Verdict, exits: Sequence[WorkerExited]) -> Iterator[WorkerExited]:
    for one in exits:
        cause = cause_of(one)
        if (cause, signature_of(cause, one)) == (verdict.cause, verdict.signature):
            yield one


def _all(one: WorkerExited, others: Mapping[int, Ranks]) -> list[int]:
    return [one.rank, *each_of(others.get(one.rank, ()))]


def _key(one: Occurrence) -> tuple[str, int]:
    return one.signature, one.version


def _names(times: Sequence[Occurrence]) -> list[str]:
    return list(dict.fromkeys(name for one in times for name in one.nodes))


def _listed(names: Sequence[str]) -> str:
    more = len(names) - LISTED_MAX
    told = ", ".join(names[:LISTED_MAX])
    return f"{told} and {more} more" if more > 0 else told
