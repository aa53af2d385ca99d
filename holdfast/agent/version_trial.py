"""Trying out another version of the job beside the one that trains.

Its warm workers run the script up to where it needs a rank, as they would before any attempt. Only
when all of them wait there is the version ready; a script that ends or fails before is refused, and
nobody who trains has noticed. Of a script that is not run ahead only the source is looked at.
"""

import asyncio
import os
import time

from holdfast import rank
from holdfast.agent.fork_protocol import ChildKind, Program
from holdfast.agent.node_attempt import NodeAttempt, error_of
from holdfast.agent.notes import note
from holdfast.agent.parts import NodeParts
from holdfast.agent.workers import Worker
from holdfast.masking import masker
from holdfast.messages import PrepareVersion, UseVersion, VersionPrepared
from holdfast.versions import Version

LOOK_S = 0.05
ENOUGH_S = 300.0  # for a script to come to `join()`
LAST_LINES = 3  # of its output, where that tells more than how it ended
LINE_CHARS = 500


class VersionTrial:
    """Carries out `PrepareVersion` and `UseVersion`."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts, self._versions = parts, parts.versions
        self._wanted: Version | None = None  # the newest that is to be used

    async def prepare(self, order: PrepareVersion) -> None:
        """Answer once it is known whether the version can be used."""
        why = await self._tried(order.version)
        mask = masker({**os.environ, **self._parts.job.env, **order.version.env})
        why = mask(why)
        self._parts.controller.answer(VersionPrepared(number=order.number, why=why))

    async def use(self, order: UseVersion, shown: NodeAttempt | None) -> None:
        """Have workers of this version ready, and of no other but one that is tried out."""
        version = self._wanted = order.version
        missing = self._versions.missing(version)
        if missing and (why := await self._flaw(version)):
            note(f"agent: version {version.number} cannot be prepared: {why}")
        if self._wanted != version or self._versions.missing(version):
            return  # it is tried once more when it is to be started
        beside = self._versions.program(order.beside) if order.beside is not None else None
        self._parts.ready.use(self._versions.program(version), beside)
        if shown is None and not self._parts.end.begun:
            self._parts.processes.warm_up()

    async def _tried(self, version: Version) -> str:
        if why := await self._flaw(version):
            return why
        program, processes = self._versions.program(version), self._parts.processes
        if program == processes.program or processes.workers.warm_kind is not ChildKind.RUN:
            return ""
        self._parts.ready.try_out(program)
        return await self._outcome(program)

    async def _flaw(self, version: Version) -> str:
        """Why it cannot be used, as far as that is seen before it is run."""
        if self._versions.missing(version):
            try:
                why = await self._parts.code.fetch(version.code)
            except OSError as error:
                why = str(error)
            if why:
                return why
        return await asyncio.to_thread(self._versions.flaw, version)

    async def _outcome(self, program: Program) -> str:
        """Once all of its workers wait, or one of them never will."""
        processes, ready = self._parts.processes, self._parts.ready
        end = time.monotonic() + ENOUGH_S
        tried: dict[int, Worker] = {}
        while time.monotonic() < end:
            if not ready.tries(program):
                return "" if program == processes.program else "another version was requested"
            if not tried:
                ready.try_out(program)  # there may have been no forkserver
                tried = dict(processes.workers.trial)
            if any(worker.forkserver for worker in tried.values()):
                tried = {}  # they died with it, which says nothing of the script
                continue
            if why := next(filter(None, map(_failure, tried.values())), ""):
                return why
            if tried and all(_waits_at(worker) for worker in tried.values()):
                return _ended(tried)
            await asyncio.sleep(LOOK_S)
        return f"the script did not reach join() within {ENOUGH_S:g} s"


def _waits_at(worker: Worker) -> str:
    return worker.control.waits_at() if worker.control is not None else ""


def _failure(worker: Worker) -> str:
    """Why it will never wait; known before the process is gone, which may take seconds."""
    error = worker.page.error()
    if worker.death is not None and error is None:
        error = error_of(worker, worker.death)
    if worker.death is None and error is None:
        return ""
    if error is None:
        assert worker.death is not None, "else nothing is wrong"
        return f"a worker ended before join(): {worker.death.words}{_last_words(worker)}"
    if error.type == "SystemExit" and error.message.lstrip("-").isdigit():  # it has said why
        return f"the script ended with exit status {error.message}{_last_words(worker)}"
    place = f" ({error.file}, line {error.line})" if error.file else ""
    return f"{error.type}: {error.message}{place}"


def _last_words(worker: Worker) -> str:
    """The end of what it has printed, which may still be on its way."""
    worker.output.catch_up()
    lines = worker.output.tail.decode(errors="replace").splitlines()
    last = [line.strip()[:LINE_CHARS] for line in lines if line.strip()][-LAST_LINES:]
    return f": {'; '.join(last)}" if last else ""


def _ended(tried: dict[int, Worker]) -> str:
    ended = any(_waits_at(worker) == rank.END for worker in tried.values())
    return "the script ends without a call of join()" if ended else ""
