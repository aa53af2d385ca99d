"""A step that a node repeats, and the attempt that comes after it: never both at a time."""

import asyncio
import signal
from types import SimpleNamespace
from typing import Any

from holdfast.agent.attempts import Attempts
from holdfast.agent.processes import ProcessExit
from holdfast.agent.step_repetition import StepRepetition
from holdfast.messages import RepeatStep
from tests.agent.parts import make_parts, start


class Repeating:
    """A node whose workers repeat a step, and die when the test says so."""

    def __init__(self) -> None:
        self.parts = make_parts()
        self.parts.controller.answer = self.parts.controller.facts.append
        self.workers: list[Any] = []
        self.parts.processes.forkserver = object()
        self.parts.processes.workers.beside = self._fork
        self.repetition = StepRepetition(self.parts)
        self.attempts = Attempts(self.parts)

    def _fork(self, _forkserver: object, rank: int, *_: object) -> Any:
        page = SimpleNamespace(error=lambda: None)
        output = SimpleNamespace(catch_up=lambda: None, tail=b"")
        worker = SimpleNamespace(local_rank=rank, death=None, page=page, output=output)
        self.workers.append(worker)
        return self.workers[-1]

    async def begin(self) -> None:
        """Its workers run."""
        order = RepeatStep(number=1, step=9, start=start(2), opens=False)
        self.parts.tasks.start(self.repetition.obey(order))
        while not self.workers:
            await asyncio.sleep(0)

    def goes_on(self) -> None:
        """As the agent does when the next attempt is ordered."""
        self.repetition.end()
        assert self.repetition.running
        self.attempts.start(start(2), self.repetition.gone)

    def die(self) -> None:
        """SIGKILL is carried out."""
        assert sorted(self.parts.processes.signals) == [(0, signal.SIGKILL), (1, signal.SIGKILL)]
        for worker in self.workers:
            worker.death = ProcessExit(1, None, signal.SIGKILL, 0.0)

    @property
    def started(self) -> list[int]:
        """Ranks of the attempt that were started."""
        return [one.rank for one in self.parts.processes.started]


def test_an_attempt_starts_once_nothing_of_a_repetition_is_left() -> None:
    async def told() -> None:
        node = Repeating()
        await node.begin()
        node.goes_on()
        node.attempts.start_waiting()  # a forkserver that is ready says so at any time
        assert node.started == [] and node.attempts.ordered == 2
        node.die()
        await node.parts.tasks.settle()
        assert node.started == [2, 3] and not node.repetition.running

    asyncio.run(told())


def test_an_attempt_that_is_stopped_before_is_never_started() -> None:
    async def told() -> None:
        node = Repeating()
        await node.begin()
        node.goes_on()
        node.attempts.fence(2)
        node.die()
        await node.parts.tasks.settle()
        assert node.started == []

    asyncio.run(told())
