"""Looks at the workers of this node, as the controller orders them: where they stand, and when they
entered their collectives."""

import asyncio
import time
from collections.abc import Iterable
from functools import partial

import msgspec
import psutil

from holdfast.agent.activity import usage_of
from holdfast.agent.gpu_use import GpuBusy
from holdfast.agent.idleness import no_steps_are_seen
from holdfast.agent.native_stacks import native_stacks_of
from holdfast.agent.recorders import Recorder, logs_of
from holdfast.agent.stack_dump import LookedAt, stacks_of
from holdfast.agent.workers import Worker
from holdfast.collectives import Collective, GroupLog, RankTimes, joined_logs, unread
from holdfast.diagnosis import mismatch
from holdfast.events import LastEntered
from holdfast.messages import EntryTimes, Stacks, TakeEntryTimes, TakeStacks

LAST = 32  # collectives of a group, where it is looked for who has not come
MICROSECOND = 1e-6
WORDS_S = 0.25  # for what may delay a restart


async def obey(
    order: TakeStacks | TakeEntryTimes, workers: Iterable[Worker], gpu_busy: GpuBusy
) -> Stacks | EntryTimes:
    """Never raises; takes some seconds at most. `gpu_busy` says of a local rank whether its GPU
    has had work since the order came."""
    asked_us = _wall_us()
    known = {w.assignment.rank: w for w in workers if w.assignment is not None and w.pid}
    match order:
        case TakeStacks(rank=None):
            return await _stacks(order, known, gpu_busy)
        case TakeStacks(rank=rank):
            return await _stacks(order, {r: w for r, w in known.items() if r == rank}, gpu_busy)
        case TakeEntryTimes():
            return await _times(order, known, asked_us)


async def last_words(workers: Iterable[Worker]) -> dict[int, tuple[LastEntered, ...]]:
    """What workers that are about to be stopped have entered last, by rank: those that say so in
    no time. Never raises."""
    known = [(w.assignment.rank, w.sockets.recorder) for w in workers if w.assignment is not None]
    asked = logs_of(known, mismatch.LAST, kinds=True, within_s=WORDS_S)
    try:
        told = await asyncio.wait_for(asked, WORDS_S)
    except TimeoutError:  # somebody else is asking, too
        return {}
    return {rank: mismatch.last_entered(log.groups) for rank, log in told.items()}


async def _stacks(order: TakeStacks, known: dict[int, Worker], gpu_busy: GpuBusy) -> Stacks:
    workers = (_seen_as(rank, worker, gpu_busy) for rank, worker in known.items())
    if order.native:
        return Stacks(number=order.number, groups=await native_stacks_of(workers))
    seen = stacks_of(workers, order.looks, order.apart_s)
    if order.looks == 1:
        return Stacks(number=order.number, groups=await seen)
    entered = logs_of(_recorders(known), LAST, kinds=True)
    groups, logs = await asyncio.gather(seen, entered)
    same = joined_logs(_timeless(log) for own in logs.values() for log in own.groups)
    return Stacks(number=order.number, groups=groups, collectives=tuple(map(unread, same)))


async def _times(order: TakeEntryTimes, known: dict[int, Worker], asked_us: int) -> EntryTimes:
    logs = await logs_of(_recorders(known), order.recent, kinds=False)
    used = await asyncio.to_thread(_used, {rank: known[rank].pid for rank in logs})
    ranks = tuple(
        RankTimes(
            rank=rank,
            groups=log.groups,
            paces=log.paces,
            steps=log.steps,
            processor_s=used[rank][0],
            starved_s=used[rank][1],
        )
        for rank, log in logs.items()
        if rank in used
    )
    return EntryTimes(number=order.number, ranks=ranks, asked_us=asked_us, told_us=_wall_us())


def _used(pids: dict[int, int]) -> dict[int, tuple[float, float]]:
    """Of the workers that still live: seconds of processors, and without one."""
    found = {}
    for rank, pid in pids.items():
        try:
            usage = usage_of(psutil.Process(pid))
        except psutil.Error:
            continue
        found[rank] = usage.main_s, usage.starved_s
    return found


def _seen_as(rank: int, worker: Worker, gpu_busy: GpuBusy) -> LookedAt:
    recorder, dump = worker.sockets.recorder, worker.sockets.dump
    return LookedAt(
        rank,
        worker.pid,
        own=recorder.stacks if recorder is not None else None,
        dumped=dump.stacks if dump is not None else None,
        gpu_busy=partial(gpu_busy, worker.local_rank),
        waits=no_steps_are_seen(worker.page),
    )


def _recorders(known: dict[int, Worker]) -> list[tuple[int, Recorder | None]]:
    return [(rank, worker.sockets.recorder) for rank, worker in known.items()]


def _timeless(log: GroupLog) -> GroupLog:
    """Without what differs between ranks that did the same."""
    recent = (Collective(c.sequence, 0, c.pending, c.kind) for c in log.recent)
    return msgspec.structs.replace(log, recent=tuple(recent))


def _wall_us() -> int:
    """Of the clock that the recorder reads."""
    return int(time.time() / MICROSECOND)
