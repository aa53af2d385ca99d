"""A look that does not come back holds up nothing else, and is itself a sign."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from holdfast.agent.health import watch
from holdfast.agent.health.watch import HealthWatch
from holdfast.detection.health import Reading
from holdfast.events import HealthChanged, Severity
from tests.patience import PATIENCE_S


class Played:
    """A provider that answers what the test says."""

    name = "played"
    every_s = 0.01

    def __init__(self, *readings: Reading, stalled: Reading | None = None) -> None:
        self.readings = list(readings)
        self.stalled = stalled
        self.looks = 0
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.threads: set[str] = set()

    def read(self) -> list[Reading]:
        """One look."""
        self.gate.wait(PATIENCE_S)
        self.looks += 1
        self.threads.add(threading.current_thread().name)
        if self.error is not None:
            raise self.error
        return list(self.readings)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "TICK_S", 0.01)


def run(
    providers: list[Played],
    until: Callable[[list[HealthChanged]], bool],
    clock: Callable[[], float] = time.monotonic,
) -> list[HealthChanged]:
    """Watch until this holds of what was told."""

    async def watched() -> list[HealthChanged]:
        told: list[HealthChanged] = []
        task = asyncio.create_task(HealthWatch("n", providers, told.append, clock).run())
        async with asyncio.timeout(PATIENCE_S):
            while not until(told):
                await asyncio.sleep(0.005)
        task.cancel()
        return told

    return asyncio.run(watched())


SICK = Reading("gpu-remap-failed", 1.0, "gpu")


def test_what_begins_is_told_once_however_often_it_is_read() -> None:
    provider = Played(SICK)
    told = run([provider], lambda _: provider.looks > 5)
    assert [(change.node, change.severity) for change in told] == [("n", Severity.FATAL)]
    assert provider.threads == {"health: played"}, "never the agent's own"


def test_a_provider_that_does_not_answer_holds_up_nobody_and_is_told() -> None:
    clock = [0.0]

    def later() -> float:
        clock[0] += 0.5
        return clock[0]

    stuck, other = Played(stalled=Reading("mount-stale", device="/data")), Played()
    stuck.gate.clear()
    told = run([stuck, other], lambda told: bool(told) and other.looks > 10, later)
    assert [(change.condition, change.device) for change in told] == [("mount-stale", "/data")]
    assert "/data does not answer" in told[0].detail
    assert stuck.looks == 0
    stuck.gate.set()


def test_a_provider_that_fails_is_noted_once_and_asked_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    provider = Played(SICK)
    provider.error = OSError("no such driver")
    run([provider], lambda _: provider.looks > 5)
    assert capfd.readouterr().err.count("no such driver") == 1
    provider.error = None
    assert run([provider], bool)


def test_a_look_can_be_had_at_once() -> None:
    provider = Played(SICK)
    provider.every_s = 3600.0

    async def at_once() -> int:
        told: list[HealthChanged] = []
        watched = HealthWatch("n", [provider], told.append)
        watched.look()
        async with asyncio.timeout(PATIENCE_S):
            while not told:
                await asyncio.sleep(0)
        return len(told)

    assert asyncio.run(at_once()) == 1


def test_what_a_look_shows_is_waited_for_and_a_stuck_provider_is_not() -> None:
    sick, stuck = Played(SICK), Played()
    stuck.gate.clear()

    async def waited() -> list[HealthChanged]:
        told: list[HealthChanged] = []
        watched = HealthWatch("n", [sick, stuck], told.append)
        watched.look()
        async with asyncio.timeout(PATIENCE_S):
            await watched.settled()
        return told

    assert len(asyncio.run(waited())) == 1
    stuck.gate.set()


def test_what_asks_over_a_network_is_never_waited_for() -> None:
    """An agent says that it is ready once its machine has answered, and not its cloud."""
    near, far = Played(SICK), Played()
    far.gate.clear()

    async def started() -> list[str]:
        told: list[HealthChanged] = []
        watched = HealthWatch("n", [near], told.append, far=[far])
        watched.look()
        await watched.settled()
        assert not watched.have_read()() and not far.threads
        task = asyncio.create_task(watched.run())
        async with asyncio.timeout(PATIENCE_S):
            far.gate.set()
            while not far.looks:
                await asyncio.sleep(0.005)
        task.cancel()
        return [change.condition for change in told]

    assert asyncio.run(started()) == [SICK.kind]
