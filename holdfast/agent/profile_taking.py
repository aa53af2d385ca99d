"""Has workers of this node profile their next steps, as the controller orders it.

What is wanted is left on each worker's page, and its answer looked for there. A worker that dies,
is parked or takes too long is told of with its reason, and nothing of it is left. Traces are kept
in the job's folder, those of the newest profile only, and of the newest automatic one.
"""

import asyncio
import contextlib
import itertools
import os
import shutil
import sys
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.agent.attempts import Attempts
from holdfast.agent.parts import NodeParts
from holdfast.agent.program_output import output_of
from holdfast.agent.read_trace import TraceReading
from holdfast.agent.workers import Worker
from holdfast.files import open_plain
from holdfast.profile_slot import ProfileNotes, ProfileOrder, ProfileStage
from holdfast.profiles import (
    AUTOMATIC,
    TRACE_PART_BYTES,
    ProfileTaken,
    RankProfile,
    TakeProfile,
    TakeTracePart,
    TracePart,
)

FOLDER = "profiles"  # in the job's folder
LOOK_S = 0.05
FREE_BYTES = 1 << 30  # of the disk, below which nothing is written: snapshots and logs need it
READ_S = 120.0  # for one trace to be read and compressed

_SLOW = {
    ProfileStage.ASKED: "it did not complete a step",
    ProfileStage.PREPARING: "it did not complete the warm-up step of the profiler",
    ProfileStage.RECORDING: "its steps were not completed",
    ProfileStage.WRITING: "it had not written its trace",
}


class _Asked(NamedTuple):
    """One worker, and what it was asked for."""

    worker: Worker
    rank: int
    number: int
    trace: Path


class ProfileTaking:
    """At most one at a time counts: of two the newer one."""

    def __init__(self, parts: NodeParts, attempts: Attempts, name: str, folder: Path) -> None:
        """`name` is that of the node, `folder` that of the job."""
        self._parts, self._attempts = parts, attempts
        self._name, self._folder = name, folder
        self._numbers = itertools.count(1)
        self._one_at_a_time = asyncio.Lock()  # to read one takes half a gibibyte

    async def obey(self, order: TakeProfile) -> None:
        """Never raises; answers within the time and that of reading the traces."""
        try:
            found = await self._found(order)
        except OSError as error:
            found = [self._none(rank, f"its node: {error}") for rank in order.ranks]
        self._parts.controller.answer(ProfileTaken(id=order.id, found=tuple(found)))

    async def hand_out(self, order: TakeTracePart) -> None:
        """Part of a trace that was kept. Never raises."""
        answer = await asyncio.to_thread(_part, self._folder, order)
        self._parts.controller.answer(answer)

    async def _found(self, order: TakeProfile) -> list[RankProfile]:
        place = self._folder / FOLDER / order.id
        if why := await asyncio.to_thread(_make_room, place):
            return [self._none(rank, why) for rank in order.ranks]
        ranks = (self._told(order, rank, place) for rank in order.ranks)
        return list(await asyncio.gather(*ranks))

    async def _told(self, order: TakeProfile, rank: int, place: Path) -> RankProfile:
        """What goes wrong with one rank is not the other's."""
        try:
            return await self._one(order, rank, place)
        except OSError as error:
            _forget(place / f"rank-{rank}.json")
            return self._none(rank, f"its node: {error}")

    async def _one(self, order: TakeProfile, rank: int, place: Path) -> RankProfile:
        worker = self._worker(order.attempt, rank)
        if isinstance(worker, str):
            return self._none(rank, worker)
        asked = _Asked(worker, rank, next(self._numbers), place / f"rank-{rank}.json")
        wish = ProfileOrder(
            steps=order.steps, after=order.after, path=str(asked.trace), within_s=order.within_s
        )
        try:
            worker.page.profile.ask(asked.number, wish)
        except ValueError as error:
            return self._none(rank, str(error))
        notes = await _answer(asked, order)
        if notes.why:
            _forget(asked.trace)
            return self._none(rank, notes.why)
        async with self._one_at_a_time:
            return await self._read(asked, notes)

    def _worker(self, attempt: int, rank: int) -> Worker | str:
        """Who has this rank, or why it cannot be profiled."""
        run = self._attempts.shown
        workers = run.workers.values() if run is not None else ()
        for worker in workers:
            if worker.assignment is None or worker.assignment.rank != rank:
                continue
            if not worker.acts_in(attempt):
                return "its worker has ended"
            report = worker.page.report(rank, worker.pid, time.monotonic())
            if not self._parts.job.uses_torch:
                return "it does not train with PyTorch"
            if report.progress.step is None and not report.optimizer_steps:
                return (
                    "no step of it was seen: neither holdfast.train nor an optimizer of PyTorch "
                    "has ended one in this process (`instrument` of the job must not be off)"
                )
            return worker
        return "its node has no worker of this rank"

    async def _read(self, asked: _Asked, notes: ProfileNotes) -> RankProfile:
        kept = asked.trace.relative_to(self._folder).with_suffix(".json.gz")
        wanted = TraceReading(
            trace=str(asked.trace),
            folder=str(self._folder),
            kept=str(kept),
            rank=asked.rank,
            node=self._name,
            notes=notes,
        )
        program = [sys.executable, "-P", "-m", "holdfast.agent.read_trace"]
        text = msgspec.json.encode(wanted).decode()
        try:
            told = await output_of([*program, text], self._parts.node, READ_S)
            return msgspec.json.decode(told, type=RankProfile)
        except TimeoutError:
            why = f"its trace was not read within {READ_S:g} s"
        except ValueError:  # of msgspec, and UnicodeDecodeError
            why = "its trace could not be read (see agent.log of the node)"
        _forget(asked.trace)
        return self._none(asked.rank, why)

    def _none(self, rank: int, why: str) -> RankProfile:
        return RankProfile(rank=rank, node=self._name, why=why)


async def _answer(asked: _Asked, order: TakeProfile) -> ProfileNotes:
    """What the worker says, or why it says nothing."""
    slot, end = asked.worker.page.profile, time.monotonic() + order.within_s
    while (notes := slot.answer_to(asked.number)) is None:
        if not asked.worker.acts_in(order.attempt):
            death = asked.worker.death
            return ProfileNotes(why=f"its worker ended: {death.words if death else 'parked'}")
        if slot.wanted != asked.number:
            return ProfileNotes(why="another profile was requested meanwhile")
        if time.monotonic() >= end:
            slow = _SLOW[slot.stage]
            slot.withdraw()
            return ProfileNotes(why=f"{slow} within {order.within_s:g} s")
        await asyncio.sleep(LOOK_S)
    if not notes.why and not asked.trace.exists():
        return ProfileNotes(why="Kineto wrote no trace (is the disk full?)")
    return notes


def _part(folder: Path, order: TakeTracePart) -> TracePart:
    told = TracePart(trace=order.trace, offset=order.offset)
    if not order.trace:
        return msgspec.structs.replace(told, why="it has no name")
    try:
        with open_plain(folder / order.trace) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(order.offset)
            return msgspec.structs.replace(told, size=size, data=file.read(TRACE_PART_BYTES))
    except FileNotFoundError:
        why = "its node no longer has it: another profile was taken meanwhile"
    except OSError as error:
        why = f"its node: {error}"
    return msgspec.structs.replace(told, why=why)


def _forget(trace: Path) -> None:
    """Of Kineto, which writes `rank-0.json.tmp` first, and of a reader that was killed."""
    for ending in (".json", ".json.tmp", ".json.part"):
        with contextlib.suppress(OSError):
            trace.with_suffix(ending).unlink(missing_ok=True)


def _make_room(place: Path) -> str:
    """For this profile; older ones go, but none that somebody has asked for because of one that
    nobody has. Other nodes of this machine may be at it, too. Says why there is none."""
    prefix = AUTOMATIC if place.name.startswith(AUTOMATIC) else ""
    with contextlib.suppress(FileNotFoundError):
        for old in place.parent.iterdir():
            if old.name != place.name and old.name.startswith(prefix):
                shutil.rmtree(old, ignore_errors=True)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (free := shutil.disk_usage(place).free) < FREE_BYTES:
        return f"its node has {free >> 20} MiB left for traces; {FREE_BYTES >> 20} are required"
    return ""
