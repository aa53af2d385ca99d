"""What ranks do that have been idle for long, of a script of which no steps are seen.

Such a script may sleep, serve, or wait for work for as long as it likes, and nobody who looks at it
from outside can tell that from a fault. Two things can be told. Where every thread of every rank,
and of the processes below them, waits for another one of them without a time limit, and none has
woken up all the time, nothing will ever wake them: that is a deadlock. And where ranks wait in a
collective for one that neither does anything nor sleeps until a time, PyTorch would fail before
long. Both hang after `idle_limit_s`. Whatever else they wait for, it is told, and hangs only where
the job file says how long a step may take (`overdue`). Who moves, computes, compiles or has its GPU
work does something; so may who wakes up, or has a thread that waits for the network: what is
received slowly shows in nothing else.
"""

from collections.abc import Mapping, Sequence

from holdfast.collectives import GroupLog
from holdfast.diagnosis.collectives import find
from holdfast.diagnosis.hang import (
    ENDED,
    STOPPED,
    HangTold,
    SeenRank,
    network_beside,
    paused_by,
    place_of,
    ranks_named,
    story_of,
    suspects_among,
)
from holdfast.events import HangJudged, HangSuspected, Judgement, each_of
from holdfast.messages import WorkerReport
from holdfast.stacks import AMONG_THEMSELVES, Activity, StackGroup, Wait

WORKS = (Activity.MOVES, Activity.BUSY, Activity.UNKNOWN)
NOT_STOPPED = "not stopped, as that may be meant; recovery.step_timeout_s would limit it"


def judge_idle(
    suspicion: HangSuspected,
    groups: Sequence[StackGroup],
    missing: Sequence[str],
    pages: Mapping[int, WorkerReport],
    collectives: Sequence[GroupLog] = (),
    *,
    some_exited: bool = False,
) -> HangJudged:
    """From the newest page of each rank, looks at all workers that could be reached, and what they
    have entered. `missing` are nodes that did not answer; some ranks may have ended well
    (`some_exited`)."""
    looks = [SeenRank(rank, group) for group in groups for rank in each_of(group.ranks)]
    finding = find(collectives)
    suspects = looks if len(looks) == 1 else suspects_among(looks, pages, finding)
    told = HangTold(suspicion, groups, [look.rank for look in suspects], finding, collectives)
    if paused := paused_by(looks, all_live=not some_exited):
        return told(Judgement.PAUSED, paused, 0.95)
    if missing or not looks or any(look.group.why == ENDED for look in looks):
        who = f"node {missing[0]} did not answer" if missing else "a worker has just ended"
        return told(Judgement.UNKNOWN, f"Idle: {who}", 0.3)
    if stopped := [look.rank for look in looks if look.group.state in STOPPED]:
        told = HangTold(suspicion, groups, stopped, finding, collectives)
        return told(Judgement.HANG, f"{ranks_named(stopped)}: stopped by a signal (SIGSTOP)", 0.97)
    idle = [look for look in looks if look.rank in set(each_of(suspicion.ranks))]
    if working := next(filter(_works, looks), None):
        return told(Judgement.SLOW, _while_others_work(idle, working), 0.7)
    limit_s = suspicion.idle_limit_s or 0.0
    late, summary = (
        suspicion.ago_s >= limit_s,
        story_of(suspects, _others(looks, suspects), {}, finding),
    )
    if late and all(_is_sealed(look, pages, limit_s) for look in looks):
        return told(Judgement.HANG, summary, 0.9)
    waits_only = all(_is_asleep(look, pages, limit_s) for look in suspects)
    if late and waits_only and _are_awaited(looks, suspects):
        return told(Judgement.HANG, summary, 0.8)
    if suspicion.overdue and all(_is_asleep(look, pages) for look in looks):
        return told(Judgement.HANG, summary, 0.7)
    why = f"; {NOT_STOPPED}" if late else ""
    return told(Judgement.SLOW, f"Idle: {_does((suspects or idle or looks)[0])}{why}", 0.7)


def judge_over(attempt: int, rank: int) -> HangJudged:
    """Of ranks that were told of: this one has done something since."""
    return HangJudged(
        attempt=attempt,
        judgement=Judgement.OVER,
        summary=f"Rank {rank} does something again",
        confidence=0.9,
        ago_s=0.0,
    )


def _others(looks: Sequence[SeenRank], suspects: Sequence[SeenRank]) -> list[SeenRank]:
    named = {look.rank for look in suspects}
    return [look for look in looks if look.rank not in named]


def _works(look: SeenRank) -> bool:
    """Who waits in a collective may take a processor, or its GPU, for that alone."""
    group = look.group
    acts = group.activity is Activity.MOVES or (group.activity in WORKS and not look.waits)
    return acts or look.uses_gpu or group.compiles


def _is_asleep(look: SeenRank, pages: Mapping[int, WorkerReport], for_s: float = 0.0) -> bool:
    """Whether no main thread has woken up for so long, and no other thread does anything."""
    group, page = look.group, pages.get(look.rank)
    still = group.activity is Activity.STILL and not network_beside(group)
    return still and page is not None and page.asleep_s >= for_s


def _is_sealed(look: SeenRank, pages: Mapping[int, WorkerReport], limit_s: float) -> bool:
    """Whether nothing outside of its processes can wake it, and nothing has all the time."""
    waits = look.group.waits
    sealed = bool(waits) and AMONG_THEMSELVES.issuperset(waits)
    return sealed and _is_asleep(look, pages, limit_s)


def _are_awaited(looks: Sequence[SeenRank], suspects: Sequence[SeenRank]) -> bool:
    """Whether others wait in a collective for ranks that do not sleep until some time, or all for
    each other."""
    sleeps = any(Wait.TIMER in look.group.waits or _sleeps(look) for look in suspects)
    return any(look.waits for look in looks) and not sleeps


def _sleeps(look: SeenRank) -> bool:
    return look.group.sleeps_in.startswith(("hrtimer_nanosleep", "do_nanosleep"))


def _does(look: SeenRank) -> str:
    waits = look.group.waits
    for_locks = bool(waits) and AMONG_THEMSELVES.issuperset(waits)
    does = "sleeps" if _sleeps(look) else "waits for itself" if for_locks else "waits"
    return f"rank {look.rank} {does} {place_of(look)}"


def _while_others_work(idle: Sequence[SeenRank], working: SeenRank) -> str:
    idle = [look for look in idle if look.rank != working.rank]
    works = f"rank {working.rank} works {place_of(working)}"
    return f"Idle: {_does(idle[0])}, while {works}" if idle else f"Idle: {works}"
