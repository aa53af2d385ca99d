"""Repeating a step as one node of a group: what `RepeatStep` orders.

Its workers are like those of an attempt, with shared memory of their own: what is in the node's own
memory stays as it is, and nothing is saved. They end after the step and leave digests of the state
(`train/repetition.py`). One repetition at a time: whatever starts or stops an attempt ends it, and
so does another one.
"""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import xxhash

from holdfast.agent import environment
from holdfast.agent.metrics_file import logged_steps, words_of
from holdfast.agent.parts import NodeParts
from holdfast.agent.storage.places import ADDRESS
from holdfast.agent.workers import Worker
from holdfast.checkpoint.settings import PLACES, VARIABLE, CheckpointSettings
from holdfast.checkpoint.tiers import Tier
from holdfast.masking import masker
from holdfast.messages import GroupOpened, RepeatStep, StepRepeated
from holdfast.rank import ERROR_FILE

REPLAY = "HOLDFAST_REPLAY"
LOOK_S = 0.05
ENOUGH_S = 600.0
END_S = 10.0  # for workers to be gone after SIGKILL
LEAVES_MAX = 4000  # of all ranks of a node; more of them are told as one
LAST_LINES = 3  # of its output, where that tells more than how it ended
LINE_CHARS = 500


class LeftDigests(msgspec.Struct, frozen=True):
    """What a rank leaves after the step."""

    world_size: int
    digests: dict[str, str]


class StepRepetition:
    """Carries out `RepeatStep`."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._newest = 0  # order that may run
        self._workers: list[Worker] = []
        self._mask = masker({**os.environ, **parts.job.env})

    def end(self) -> None:
        """Whatever runs of it ends, and is not told of."""
        self._newest += 1
        for worker in self._workers:
            self._parts.processes.signal(worker, signal.SIGKILL)
        self._parts.processes.stores.close_beside()

    @property
    def running(self) -> bool:
        """Whether a process of it is left."""
        return _any_alive(self._workers)

    async def gone(self) -> None:
        """Nothing of it is left, as far as SIGKILL can see to that."""
        workers, end = self._workers, time.monotonic() + END_S
        while _any_alive(workers) and time.monotonic() < end:
            await asyncio.sleep(LOOK_S)

    async def obey(self, order: RepeatStep) -> None:
        """Answer once the step is over, or will never be."""
        self.end()
        mine = self._newest
        await self.gone()
        if mine != self._newest or self._parts.end.begun:
            return
        store, stores = order.start.store, self._parts.processes.stores
        if order.opens:
            store = await stores.open_beside()
            if mine != self._newest:
                return
            self._parts.controller.answer(GroupOpened(number=order.number, store=store))
        start = msgspec.structs.replace(order.start, store=store)
        order = msgspec.structs.replace(order, start=start)
        with tempfile.TemporaryDirectory(prefix="holdfast-replay-") as folder:
            said = await self._repeated(order, Path(folder), mine)
        if mine == self._newest:
            stores.close_beside()
            self._parts.controller.answer(said)

    async def _repeated(self, order: RepeatStep, folder: Path, mine: int) -> StepRepeated:
        processes = self._parts.processes
        if not processes.ready:
            return StepRepeated(number=order.number, why="its forkserver is not ready")
        self._workers = self._fork(order, folder)
        end, why = time.monotonic() + ENOUGH_S, ""
        while not why and mine == self._newest and self.running:
            why = next(filter(None, map(_failure, self._workers)), "")
            if time.monotonic() > end:
                why = f"it did not complete step {order.step} within {ENOUGH_S:g} s"
            await asyncio.sleep(LOOK_S)
        for worker in self._workers:
            processes.signal(worker, signal.SIGKILL)
        await self.gone()
        why = why or next(filter(None, map(_failure, self._workers)), "")
        digests = {} if why else _digests(folder)
        if not why and len(digests) < len(self._workers):
            why = "the script ended before the end of the step (it has to call run.track())"
        return self._told(order, digests, self._mask(why))

    def _fork(self, order: RepeatStep, folder: Path) -> list[Worker]:
        start, workers = order.start, self._parts.processes.workers
        program = self._parts.versions.program(start.version)
        forkserver = self._parts.processes.forkserver
        assert forkserver is not None, "it is ready"
        alone = _alone(order.step, folder)
        return [
            workers.beside(
                forkserver,
                rank,
                {**environment.rank_environment(self._parts.job, start, rank), **alone},
                program,
            )
            for rank in range(start.workers_per_node)
        ]

    def _told(
        self, order: RepeatStep, digests: dict[int, dict[str, str]], why: str
    ) -> StepRepeated:
        first = again = ""
        if digests and order.start.node_rank == 0:
            file = self._parts.processes.workers.folder / "metrics.jsonl"
            first = logged_steps(file, order.step - 1, order.step).get(order.step, "")
            records, _ = self._workers[0].page.records(0)
            last = next((one for one in records if one.step == order.step), None)
            again = words_of(last.loss, last.grad_norm) if last is not None else ""
        return StepRepeated(
            number=order.number, digests=_bounded(digests), why=why, first=first, again=again
        )


def _alone(step: int, folder: Path) -> dict[str, str]:
    """What keeps a worker from everything but the step: it reads checkpoints that all nodes see."""
    saves_nothing = CheckpointSettings(copies=0, beside=False)
    return {
        REPLAY: f"{step}:{folder}",
        ERROR_FILE: str(folder / "error.json"),
        ADDRESS: "",
        VARIABLE: msgspec.json.encode(saves_nothing).decode(),
        PLACES[Tier.LOCAL]: "",
        "HOLDFAST_CHECK_REPLICAS": "0",
        "HOLDFAST_ON_NAN": "ignore",
    }


def _digests(folder: Path) -> dict[int, dict[str, str]]:
    """What the ranks of this node have left, by rank."""
    return {
        int(file.stem.removeprefix("rank-")): msgspec.json.decode(
            file.read_bytes(), type=LeftDigests
        ).digests
        for file in folder.glob("rank-*.json")
    }


def _bounded(digests: Mapping[int, dict[str, str]]) -> dict[int, dict[str, str]]:
    """Leaf by leaf where there are not too many, else all leaves of a rank as one."""
    if sum(map(len, digests.values())) <= LEAVES_MAX:
        return dict(digests)
    return {
        rank: {"state": xxhash.xxh3_64_hexdigest(repr(sorted(leaves.items())).encode())}
        for rank, leaves in digests.items()
    }


def _any_alive(workers: list[Worker]) -> bool:
    return any(one.death is None for one in workers)


def _failure(worker: Worker) -> str:
    """Why it will not come to the end of the step; known before its process is gone."""
    error, death = worker.page.error(), worker.death
    if error is not None:
        return f"{error.type}: {error.message}"
    if death is None or death.exit_code == 0:
        return ""
    worker.output.catch_up()
    lines = worker.output.tail.decode(errors="replace").splitlines()
    last = [line.strip()[:LINE_CHARS] for line in lines if line.strip()][-LAST_LINES:]
    return f"a worker ended: {death.words}{': ' if last else ''}{'; '.join(last)}"
