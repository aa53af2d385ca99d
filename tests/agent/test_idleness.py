"""A worker is idle only where the kernel counts nothing of it and of the processes below it."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent import idleness
from holdfast.agent.activity import Scheduled
from holdfast.agent.idleness import (
    IDLE_SHARE,
    LATE_S,
    SAMPLE_S,
    Counts,
    Idle,
    IdleClock,
    counts_of,
)
from tests.more import examples
from tests.patience import until

BEGINS = Counts(frozenset({7}), 3.0, 1000, 50)


class Worker:
    """Counted as often as an agent does."""

    def __init__(self) -> None:
        self.now, self.clock, self.counts, self.printed = 100.0, IdleClock(), BEGINS, 0
        self.take()

    def take(self, *, disturbed: bool = False) -> Idle:
        self.clock.take(self.counts, self.printed, self.now, disturbed=disturbed)
        assert self.clock.idle is not None
        return self.clock.idle

    def after(
        self, did: dict[str, Any] | None = None, *, times: int = 1, disturbed: bool = False
    ) -> Idle:
        self.counts = self.counts._replace(**(did or {}))
        for _ in range(times):
            self.now += SAMPLE_S
            idle = self.take(disturbed=disturbed)
        return idle


def test_of_one_that_does_nothing_the_time_grows() -> None:
    worker = Worker()
    assert worker.clock.idle == Idle(0.0, 0.0)
    assert worker.after(times=4) == Idle(4 * SAMPLE_S, 4 * SAMPLE_S)
    assert IdleClock().idle is None


@pytest.mark.parametrize(
    "did",
    [
        {"processor_s": BEGINS.processor_s + 2 * IDLE_SHARE * SAMPLE_S},
        {"moved_bytes": BEGINS.moved_bytes + 1},
        {"pids": frozenset({7, 8})},
        {"pids": frozenset({9})},
    ],
)
def test_a_single_byte_and_a_new_process_count(did: dict[str, Any]) -> None:
    worker = Worker()
    worker.after(times=3)
    assert worker.after(did) == Idle(0.0, 0.0)
    assert worker.after(times=2) == Idle(2 * SAMPLE_S, 2 * SAMPLE_S)


def test_so_does_what_it_prints() -> None:
    worker = Worker()
    worker.after(times=3)
    worker.printed = 1
    assert worker.after() == Idle(0.0, 0.0)


def test_one_that_only_wakes_up_is_idle_and_not_asleep() -> None:
    worker = Worker()
    worker.after(times=3)
    least = BEGINS.processor_s + 0.5 * IDLE_SHARE * SAMPLE_S
    assert worker.after({"switches": 51, "processor_s": least}) == Idle(4 * SAMPLE_S, 0.0)


@pytest.mark.parametrize("ran_s", [0.0, 0.001, IDLE_SHARE * SAMPLE_S])
def test_one_that_is_ready_to_compute_and_gets_next_to_no_processor_is_not_idle(
    ran_s: float,
) -> None:
    """Found beside other work: a rank that got less than 2 % of a processor was told as idle."""
    worker, had = Worker(), Scheduled(9.0, 100.0)
    waits = Scheduled(9.0, 50.0)
    worker.after({"scheduled": {7: waits, 8: had}})
    did = Scheduled(9.0 + ran_s, 100.0 + SAMPLE_S - ran_s)
    assert worker.clock.is_doubted, "so its threads are asked"
    assert worker.after({"scheduled": {7: waits, 8: did}}) == Idle(0.0, 0.0)
    assert not worker.clock.is_doubted


@pytest.mark.parametrize(
    "did",
    [
        Scheduled(9.0, 100.0),  # sleeps
        Scheduled(9.001, 100.0 + 0.1 * SAMPLE_S),  # waits for its turn, once it wakes up
        Scheduled(9.001, 100.0 + 0.9 * SAMPLE_S),  # likewise, on a machine that is far too busy
        Scheduled(9.001, 100.0 + SAMPLE_S, 50),  # likewise, for longer than it sleeps
    ],
)
def test_one_that_sleeps_or_only_wakes_up_is_idle_however_long_it_waits_for_its_turn(
    did: Scheduled,
) -> None:
    worker = Worker()
    worker.after({"scheduled": {7: Scheduled(9.0, 100.0)}}, times=3)
    new = {8: Scheduled(0.001, 5.0)}  # a thread of which nothing was known
    assert worker.after({"scheduled": {7: did, **new}}) == Idle(4 * SAMPLE_S, 4 * SAMPLE_S)


@pytest.mark.parametrize(("turns", "idle_s"), [(498, 2 * SAMPLE_S), (13, 0.0)])
def test_turns_that_are_short_are_no_computation(turns: int, idle_s: float) -> None:
    """Found beside a load of 17: the thread of gloo that looks each 10 ms was ready to run for all
    of the time, 18 microseconds a turn, and the deadlock of its rank was never looked at."""
    worker, had = Worker(), Scheduled(0.42, 177.0, 19747)
    worker.after({"scheduled": {8: had}})
    looks = Scheduled(had.ran_s + 0.009, had.starved_s + 2.7, had.turns + turns)
    assert worker.after({"scheduled": {8: looks}}).idle_s == idle_s


def test_our_own_looks_wake_nobody_up() -> None:
    worker = Worker()
    worker.after(times=3)
    assert worker.after({"switches": 60}, disturbed=True) == Idle(4 * SAMPLE_S, 4 * SAMPLE_S)
    assert worker.after({"moved_bytes": 2000}, disturbed=True).idle_s == 5 * SAMPLE_S
    assert worker.after().asleep_s == 6 * SAMPLE_S, "they are not counted later either"
    assert worker.after({"switches": 61}).asleep_s == 0.0


def test_where_nobody_has_counted_for_long_nothing_is_known() -> None:
    worker = Worker()
    worker.after(times=3)
    worker.now += LATE_S
    assert worker.after() == Idle(0.0, 0.0), "all of this node may have been stopped"


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
@settings(max_examples=examples(100), deadline=None)
def test_it_is_never_asleep_for_longer_than_it_is_idle_nor_idle_for_longer_than_it_is_known(
    does: list[tuple[bool, bool]],
) -> None:
    worker, quiet = Worker(), 0.0
    for acts, wakes in does:
        acted = {"moved_bytes": worker.counts.moved_bytes + 1} if acts else {}
        woken = {"switches": worker.counts.switches + 1} if wakes else {}
        idle = worker.after({**acted, **woken})
        quiet = 0.0 if acts else quiet + SAMPLE_S
        assert idle.idle_s == pytest.approx(quiet) and idle.asleep_s <= idle.idle_s


def test_only_of_a_worker_that_may_be_starved_the_threads_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []

    def counts(_pid: int, *, threads: bool) -> Counts:
        asked.append(threads)
        scheduled = {7: Scheduled(1.0, len(asked) * SAMPLE_S)} if threads else {}
        return BEGINS._replace(scheduled=scheduled)

    monkeypatch.setattr(idleness, "counts_of", counts)
    page = SimpleNamespace(reached=lambda _: False, printed_step=None)
    worker = SimpleNamespace(id=1, pid=7, death=None, is_parked=False, page=page)
    worker.output = SimpleNamespace(count=0)
    sampled: Any = idleness.Idleness()
    for turn in range(5):
        asyncio.run(sampled.sample([worker], turn * SAMPLE_S))
    assert asked == [False, False, True, True, False], "and not once it turns out to be"
    assert sampled.of(1) == Idle(SAMPLE_S, SAMPLE_S)


@contextmanager
def program(code: str) -> Iterator[int]:
    """A real one, once it says that it is up."""
    ran = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert ran.stdout is not None and ran.stdout.readline() == b"up\n"
        yield ran.pid
    finally:
        ran.kill()
        ran.wait()
        assert ran.stdout is not None
        ran.stdout.close()


UP = "print('up', flush=True)\n"
ONE_CORE = "import os, time\nos.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
LAST = "os.nice(19)\n"


@contextmanager
def starved(does: str) -> Iterator[Callable[[], Idle]]:
    """A program for which another one leaves next to no processor, and what is seen of it."""
    clock = IdleClock()
    with program(f"{ONE_CORE}{UP}while True: pass"), program(f"{ONE_CORE}{LAST}{UP}{does}") as pid:

        def seen() -> Idle:
            counts = counts_of(pid, threads=True)._replace(processor_s=0.0)  # as if it were less
            clock.take(counts, 0, time.monotonic(), disturbed=False)
            assert clock.idle is not None
            return clock.idle

        assert seen() == Idle(0.0, 0.0)
        yield seen


def test_the_kernel_tells_who_is_starved() -> None:
    with starved("while True: pass") as seen:
        assert until(lambda: seen().idle_s == 0.0)


def test_and_who_sleeps_beside_the_same_load() -> None:
    with starved("time.sleep(1e6)") as seen:
        idle = [seen().idle_s for _ in range(20)]
        assert idle == sorted(set(idle)) and idle[0] > 0.0


def test_of_a_program_that_sleeps_nothing_is_counted() -> None:
    with program(f"import time\n{UP}time.sleep(1e6)") as pid:
        assert until(lambda: counts_of(pid) == counts_of(pid))
        before = counts_of(pid)
        assert before.pids == {pid} and before.switches > 0
        assert counts_of(pid) == before


@pytest.mark.parametrize(
    "does", ["while True: pass", "while True: os.getpid(), open('/proc/self/stat').read()"]
)
def test_of_one_that_computes_or_reads_below_it_something_is(does: str) -> None:
    below = f"import os\n{UP}os.fork() or exec({does!r})\nos.waitpid(-1, 0)"
    with program(below) as pid:
        assert until(lambda: len(counts_of(pid).pids) == 2)
        before = counts_of(pid)
        assert until(lambda: counts_of(pid).processor_s > before.processor_s + 0.05)
        assert "open" not in does or counts_of(pid).moved_bytes > before.moved_bytes
        for child in before.pids - {pid}:
            os.kill(child, 9)


def test_of_a_process_that_is_gone_there_is_nothing() -> None:
    with program(UP) as pid:
        pass
    assert not counts_of(pid).pids
