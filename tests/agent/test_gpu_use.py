"""Whose GPU has work is told by what was read after a look began, where it is plain whose it is."""

import asyncio
import subprocess
import threading
from collections.abc import Iterator

import pytest

from holdfast.agent import gpu_use, stack_dump
from holdfast.agent.health.gpus import Gpus
from holdfast.agent.health.watch import HealthWatch
from holdfast.detection.health import Reading
from holdfast.events import HealthChanged
from holdfast.messages import TakeEntryTimes, TakeStacks
from tests.agent.health.recorded import H200_BUSY, H200_IDLE, LOST, RecordedNvml
from tests.patience import PATIENCE_S

FIRST, SECOND = {**H200_IDLE, "pci": "00000000:06:00.0"}, {**H200_BUSY, "pci": "00000000:07:00.0"}


class Machine:
    """Two GPUs of which the second computes, and the watch over them."""

    def __init__(self) -> None:
        self.nvml = RecordedNvml(FIRST, SECOND)
        self.gpus = Gpus(lambda: self.nvml)
        self.told: list[HealthChanged] = []
        self.watch = HealthWatch("n", [self], self.told.append)
        self.answers = threading.Event()
        self.answers.set()

    name, stalled, every_s = "GPUs", None, 5.0

    def read(self) -> list[Reading]:
        """As a driver that may take its time."""
        assert self.answers.wait(PATIENCE_S)
        return self.gpus.read()

    async def busy(self, workers: int = 2, **environ: str) -> list[bool]:
        """Of each worker, once all has been read."""
        tells = gpu_use.watched(self.watch, environ, workers)
        await self.watch.settled()
        return [tells(local_rank) for local_rank in range(workers)]


@pytest.fixture
def machine() -> Iterator[Machine]:
    found = Machine()
    yield found
    found.answers.set()


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.agent.health.watch.SETTLE_S", PATIENCE_S)


@pytest.mark.parametrize("order", [TakeEntryTimes(number=1, recent=8), TakeStacks(number=1)])
def test_nothing_is_read_for_orders_that_come_every_few_seconds(
    machine: Machine, order: TakeStacks | TakeEntryTimes
) -> None:
    async def asked() -> None:
        tells = gpu_use.during(order, machine.watch, {}, 2)
        await machine.watch.settled()
        assert not machine.watch.readings and not tells(1)
        tells = gpu_use.during(TakeStacks(number=2, looks=3), machine.watch, {}, 2)
        await machine.watch.settled()
        assert machine.watch.readings and tells(1)

    asyncio.run(asked())


def test_each_worker_has_the_gpu_of_its_number(machine: Machine) -> None:
    async def asked() -> None:
        assert await machine.busy() == [False, True]
        assert await machine.busy(CUDA_VISIBLE_DEVICES="1,0") == [True, False]
        assert await machine.busy(1) == [True], "all are of the only worker"
        assert await machine.busy(1, CUDA_VISIBLE_DEVICES="0") == [False]
        assert await machine.busy(1, CUDA_VISIBLE_DEVICES="1") == [True]

    asyncio.run(asked())


@pytest.mark.parametrize(
    ("workers", "visible"), [(4, None), (2, "1"), (1, "GPU-9a1c2f64"), (2, "0,7"), (1, "")]
)
def test_where_it_cannot_be_told_whose_a_gpu_is_nobody_has_one(
    machine: Machine, workers: int, visible: str | None
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert not any(asyncio.run(machine.busy(workers, **environ)))


def test_what_was_read_before_tells_nothing(machine: Machine) -> None:
    """The GPU was busy until its worker stood still; since then the driver has not answered."""

    async def asked() -> None:
        assert await machine.busy(1) == [True]
        machine.answers.clear()
        tells = gpu_use.watched(machine.watch, {}, 1)
        assert not tells(0)
        machine.answers.set()
        await machine.watch.settled()
        assert tells(0)

    asyncio.run(asked())


def test_a_gpu_that_is_lost_does_not_give_its_number_to_the_next(machine: Machine) -> None:
    async def asked() -> None:
        assert await machine.busy() == [False, True]
        machine.nvml.gpus[0]["all"] = LOST
        assert await machine.busy() == [False, True]

    asyncio.run(asked())


def test_a_machine_without_gpus_has_none_that_is_busy() -> None:
    watch = HealthWatch("n", [], lambda _: None)

    async def asked() -> bool:
        return gpu_use.watched(watch, {}, 1)(0)

    assert not asyncio.run(asked())


def test_a_look_tells_it_and_keeps_ranks_apart_that_differ_by_it() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:

        def looked_at(rank: int) -> stack_dump.LookedAt:
            return stack_dump.LookedAt(rank, process.pid, gpu_busy=lambda: rank == 1)

        try:
            groups = asyncio.run(stack_dump.stacks_of(map(looked_at, range(3)), 2, 0.01))
        finally:
            process.kill()
    assert {group.ranks: group.gpu_busy for group in groups} == {
        ((0, 0), (2, 2)): False,
        ((1, 1),): True,
    }
