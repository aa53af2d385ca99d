"""Which orders start and stop an attempt on a node, and what the controller is told of it."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from holdfast.agent import signals
from holdfast.agent import stop as stopping
from holdfast.agent.attempts import Attempts
from holdfast.agent.leaving import Leaving
from holdfast.agent.processes import ProcessExit
from holdfast.agent.signals import kill, terminate
from holdfast.agent.standing_by import StandingBy
from holdfast.agent.stop import AttemptStop
from holdfast.events import NodeReady, Progress, Store, WorkerError, WorkerExited
from holdfast.messages import WorkersStarted, WorkersStopped
from tests.agent.parts import die, make_parts, start, stop
from tests.patience import PATIENCE_S

ASKED = [(0, signal.SIGTERM), (0, signal.SIGCONT)]


@pytest.fixture(autouse=True)
def _no_strays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The children of the test are nobody's leftovers."""

    async def none(_: object) -> None:
        return

    monkeypatch.setattr(stopping, "end_strays", none)


def facts(parts: Any, kind: type) -> list[Any]:
    """What the controller was told of this kind."""
    return [fact for fact in parts.controller.facts if isinstance(fact, kind)]


def looped(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in an event loop."""

    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


@looped
async def test_a_start_gives_each_worker_its_rank_and_is_announced_once() -> None:
    parts = make_parts()
    attempts = Attempts(parts)
    attempts.start(start())
    attempts.announce()
    assert [told.rank for told in parts.processes.started] == [2, 3]
    assert [told.pids for told in facts(parts, WorkersStarted)] == [(1, 2)]


@looped
async def test_an_attempt_is_started_at_most_once_and_never_after_its_stop() -> None:
    parts = make_parts()
    attempts = Attempts(parts)
    attempts.start(start(2))
    attempts.start(start(2))
    attempts.start(start(1))
    assert len(parts.processes.started) == 2
    assert attempts.fence(5), "it may have started elsewhere"
    assert not attempts.fence(5)
    attempts.start(start(4))
    assert len(parts.processes.started) == 2


@looped
async def test_a_start_waits_for_the_forkserver_unless_it_is_stopped_meanwhile() -> None:
    parts = make_parts()
    attempts = Attempts(parts)
    parts.processes.ready = False
    attempts.start(start(1))
    attempts.fence(1)
    attempts.start(start(2))
    parts.processes.ready = True
    attempts.start_waiting()
    attempts.start_waiting()
    assert {told.attempt for told in parts.processes.started} == {2}


@looped
async def test_two_attempts_never_run_beside_each_other() -> None:
    parts = make_parts(1)
    attempts = Attempts(parts)
    attempts.start(start(1))
    attempts.start(start(2))
    assert parts.processes.signals == [*ASKED, (0, signal.SIGKILL)]


@looped
async def test_who_is_kept_is_not_killed_when_the_time_for_parking_is_over() -> None:
    parts = make_parts(2)
    attempts = Attempts(parts)
    attempts.start(start())
    run = attempts.newest
    assert run is not None
    kept: Any = run.workers[0]
    other: Any = run.workers[1]
    parking: Any = SimpleNamespace(able=True, order=lambda _: None, why="", parked=False)
    kept.sockets.parking = parking
    other.sockets.parking = SimpleNamespace(able=False, why="", parked=False)  # of which nothing
    terminate(run, parts.processes, 1.0, park_s=3.0)
    assert run.able == 1
    asked = [rank for rank, _ in parts.processes.signals]
    assert set(asked) == {1}, "one is ordered to park, the other is ended"
    kept.is_parked, other.death = True, ProcessExit(2, None, signal.SIGTERM, 1.0)
    run.look_gone()
    assert run.gone.is_set() and not run.alive
    kept.is_parked, kept.assignment = False, msgspec.structs.replace(kept.assignment, attempt=2)
    parts.processes.signals.clear()
    kill(run, parts.processes)
    assert not parts.processes.signals, "it is a worker of the next attempt by now"


@looped
async def test_who_may_still_park_outlives_those_that_are_ended() -> None:
    """A step may take longer than `recovery.restart_grace_s`; a later order leaves nobody."""
    parts = make_parts(2)
    attempts = Attempts(parts)
    stops = AttemptStop(parts, attempts, StandingBy(parts), has_tiers=False)
    parts.processes.stores.open()
    attempts.start(start())
    assert attempts.newest is not None
    kept: Any = attempts.newest.workers[0]
    kept.is_to_park = True
    parking: Any = SimpleNamespace(able=True, order=lambda _: None, why="")
    kept.sockets.parking = parking
    stops.obey(stop(grace_s=0.0, park_s=60.0))
    async with asyncio.timeout(PATIENCE_S):
        while (1, signal.SIGKILL) not in parts.processes.signals:
            await asyncio.sleep(0)
    assert 0 not in [rank for rank, _ in parts.processes.signals]
    stops.obey(stop(grace_s=0.0))
    assert (0, signal.SIGKILL) in parts.processes.signals
    for worker in attempts.newest.workers.values():
        die(attempts, worker)
    await parts.tasks.settle()
    (told,) = facts(parts, WorkersStopped)
    assert (told.parked, told.unkept) == (0, 1)


@looped
async def test_who_cannot_be_kept_in_time_is_ended_with_the_others() -> None:
    parts = make_parts(1)
    attempts = Attempts(parts)
    attempts.start(start())
    run = attempts.newest
    assert run is not None
    parking: Any = SimpleNamespace(able=True, order=lambda _: None, why="")
    run.workers[0].sockets.parking = parking
    terminate(run, parts.processes, 1.0, park_s=0.0)
    assert parts.processes.signals == ASKED and run.able == 1


@looped
async def test_who_is_known_to_end_could_not_have_been_kept() -> None:
    """The kernel takes it apart: it is told of before it is gone, and is not waited for."""
    parts = make_parts(1)
    attempts = Attempts(parts)
    attempts.start(start())
    run = attempts.newest
    assert run is not None
    parking: Any = SimpleNamespace(able=True, order=lambda _: None, why="")
    run.workers[0].sockets.parking = parking
    run.workers[0].ends = ProcessExit(1, None, signal.SIGKILL, 1.0)
    terminate(run, parts.processes, 1.0, park_s=3.0)
    assert not run.able


@looped
async def test_a_worker_that_died_while_it_was_warm_is_replaced_and_no_news() -> None:
    parts = make_parts(1)
    attempts = Attempts(parts)
    attempts.start(start())
    assert attempts.newest is not None
    first: Any = attempts.newest.workers[0]
    first.assigned_at = 5.0
    die(attempts, first, at=4.0)
    assert attempts.newest.workers[0] is not first
    assert not facts(parts, WorkerExited)


@looped
async def test_a_worker_has_finished_once_its_last_step_is_saved() -> None:
    parts = make_parts(1)
    attempts = Attempts(parts)
    attempts.start(start())
    assert attempts.newest is not None
    parts.saves.unsaved_count = 1
    die(attempts, attempts.newest.workers[0], code=0)
    await asyncio.sleep(0)
    assert not facts(parts, WorkerExited)
    parts.saves.saved.set()
    await parts.tasks.settle()
    assert [told.exit_code for told in facts(parts, WorkerExited)] == [0]


@looped
async def test_the_answer_to_a_stop_says_how_far_that_attempt_came_and_no_earlier_one() -> None:
    """Else training would be taken for past a bad step which the new attempt has not come to."""
    parts = make_parts(1)
    attempts = Attempts(parts)
    stops = AttemptStop(parts, attempts, StandingBy(parts), has_tiers=False)
    parts.processes.stores.open()
    attempts.start(start(attempt=1))
    assert attempts.newest is not None
    worker: Any = attempts.newest.workers[0]
    worker.page.progress = lambda _: Progress(step=7)
    stops.obey(stop(attempt=1))
    die(attempts, worker)
    await parts.tasks.settle()
    stops.obey(stop(attempt=2))
    await parts.tasks.settle()
    assert [told.progress.step for told in facts(parts, WorkersStopped)] == [7, None]


@looped
async def test_a_stop_is_answered_once_all_workers_are_gone_with_the_next_store() -> None:
    parts = make_parts(2)
    attempts = Attempts(parts)
    stops = AttemptStop(parts, attempts, StandingBy(parts), has_tiers=False)
    parts.processes.stores.open()
    attempts.start(start())
    stops.obey(stop(grace_s=60.0))
    stops.obey(stop())  # shortens the grace time, and is no second stop
    assert attempts.newest is not None
    sent = [sig for _, sig in parts.processes.signals]
    asked = [signal.SIGTERM, signal.SIGCONT]
    assert sent == asked * 2 + [signal.SIGKILL] * 2
    for worker in attempts.newest.workers.values():
        assert not facts(parts, WorkersStopped)
        die(attempts, worker)
    await parts.tasks.settle()
    (told,) = facts(parts, WorkersStopped)
    assert (told.attempt, told.store.port) == (1, 2), "a store is never used again"
    assert not facts(parts, WorkerExited), "our own signals explain these deaths"
    assert attempts.shown is None
    stops.obey(stop())
    await parts.tasks.settle()
    assert len(facts(parts, WorkersStopped)) == 2, "each order is answered"


@looped
async def test_a_store_that_may_have_been_used_elsewhere_is_not_offered_again() -> None:
    parts = make_parts()
    stops = AttemptStop(parts, Attempts(parts), StandingBy(parts), has_tiers=False)
    parts.processes.stores.open()
    stops.obey(stop(attempt=3))
    await parts.tasks.settle()
    assert [told.store.port for told in facts(parts, WorkersStopped)] == [2]
    assert [told.store.port for told in facts(parts, NodeReady)] == [1]


@looped
async def test_a_worker_that_is_failing_when_it_is_told_to_stop_has_failed_by_itself() -> None:
    """It raises, takes itself apart, and closes its connections before it is gone: so a peer may be
    seen to fail first."""
    parts = make_parts(2)
    attempts = Attempts(parts)
    stops = AttemptStop(parts, attempts, StandingBy(parts), has_tiers=False)
    parts.processes.stores.open()
    attempts.start(start())
    assert attempts.newest is not None
    failing, well = attempts.newest.workers.values()
    error = WorkerError(type="ValueError", message="a bad sample")
    failing.page.error = lambda: error  # type: ignore[method-assign]
    stops.obey(stop(grace_s=60.0))
    handled = WorkerError(type="SystemExit", message="its handler of SIGTERM raises")
    well.page.error = lambda: handled  # type: ignore[method-assign]
    for worker in (failing, well):
        worker.death = ProcessExit(worker.pid, None, signal.SIGTERM, 1e9)
        attempts.died(worker, worker.death)
    [told] = facts(parts, WorkerExited)
    assert (told.rank, told.exit_code, told.signal, told.error) == (2, 1, None, error)


@looped
async def test_who_raised_is_told_of_once_in_that_order_and_ends_by_itself() -> None:
    parts = make_parts(3)
    attempts = Attempts(parts)
    stops = AttemptStop(parts, attempts, StandingBy(parts), has_tiers=False)
    attempts.start(start())
    assert attempts.newest is not None
    later, first, well = attempts.newest.workers.values()
    later.raised_at, first.raised_at = 2.0, 1.0  # type: ignore[misc]
    attempts.look_for_ends()
    attempts.look_for_ends()
    told = facts(parts, WorkerExited)
    ranks = [worker.assignment.rank for worker in (first, later) if worker.assignment]
    assert [(one.rank, one.exit_code) for one in told] == [(rank, 1) for rank in ranks]
    assert told[0].ago_s > told[1].ago_s
    stops.obey(stop(grace_s=60.0))
    asked = {local for local, sig in parts.processes.signals if sig == signal.SIGTERM}
    assert asked == {well.local_rank}
    for worker in (later, first, well):
        worker.death = ProcessExit(worker.pid, 1, None, 1e9)
        attempts.died(worker, worker.death)
    assert facts(parts, WorkerExited)[2:] == facts(parts, WorkerExited)[-1:], "the third one"
    assert attempts.newest.gone.is_set()


def one_that_was_killed() -> "subprocess.Popen[bytes]":
    """A process that has ended by SIGKILL, and that nobody has waited for."""
    process = subprocess.Popen(["sleep", "600"])
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process


@looped
async def test_who_was_killed_is_told_of_once_before_the_kernel_is_done_with_it() -> None:
    """But whoever has only just got its rank may have ended without: then it is not its end."""
    parts = make_parts(3)
    attempts = Attempts(parts)
    attempts.start(start())
    assert attempts.newest is not None
    killed, fresh, well = attempts.newest.workers.values()
    gone = [one_that_was_killed(), one_that_was_killed()]
    killed.pid, fresh.pid, well.pid = gone[0].pid, gone[1].pid, os.getpid()
    fresh.assigned_at = time.monotonic()
    parts.processes.forkserver.pid = 1
    attempts.look_for_ends()
    assert not facts(parts, WorkerExited), "its forkserver has ended before"
    parts.processes.forkserver.pid = os.getpid()
    attempts.look_for_ends()
    attempts.look_for_ends()
    [told] = facts(parts, WorkerExited)
    assert killed.assignment is not None
    assert (told.rank, told.exit_code, told.signal) == (killed.assignment.rank, None, 9)
    assert killed in attempts.newest.alive, "what it held is not free before it is gone"
    killed.death = ProcessExit(killed.pid, None, signal.SIGKILL, 1e9)
    attempts.died(killed, killed.death)
    assert facts(parts, WorkerExited) == [told]
    for process in gone:
        process.wait()


@looped
async def test_who_had_left_with_status_0_when_the_order_to_stop_came_is_news() -> None:
    """Others fail for want of it, and are told of before anybody has reaped it. Status 0 of one
    that had not is what our signal brings about."""
    parts = make_parts(2)
    attempts = Attempts(parts)
    attempts.start(start())
    run = attempts.newest
    assert run is not None
    left = subprocess.Popen(["true"])
    os.waitid(os.P_PID, left.pid, os.WEXITED | os.WNOWAIT)
    early, stopped = run.workers.values()
    early.pid, stopped.pid = left.pid, os.getpid()
    terminate(run, parts.processes, time.monotonic())
    for worker in (early, stopped):
        worker.death = ProcessExit(worker.pid, 0, None, time.monotonic())
        attempts.died(worker, worker.death)
    [told] = facts(parts, WorkerExited)
    assert early.assignment is not None
    assert (told.rank, told.exit_code, told.signal) == (early.assignment.rank, 0, None)
    left.wait()


@looped
async def test_who_ends_with_its_forkserver_is_told_of_once_it_is_known_how_that_has_ended() -> (
    None
):
    parts = make_parts(1)
    attempts = Attempts(parts)
    attempts.start(start())
    assert attempts.newest is not None
    gone = one_that_was_killed()
    (worker,) = attempts.newest.workers.values()
    worker.pid, parts.processes.forkserver = gone.pid, None
    attempts.look_for_ends()
    assert not facts(parts, WorkerExited)
    cast("Any", worker).forkserver = "signal 9"
    attempts.look_for_ends()
    [told] = facts(parts, WorkerExited)
    assert (told.signal, told.forkserver) == (9, "signal 9")
    gone.wait()


@looped
async def test_a_forkserver_is_not_to_blame_for_what_the_kernel_takes_apart() -> None:
    parts = make_parts(1)
    attempts = Attempts(parts)
    attempts.start(start())
    assert attempts.newest is not None
    gone = one_that_was_killed()
    for pid, blamed in ((gone.pid, False), (os.getpid(), True)):
        attempts.newest.workers[0].pid = pid
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(signals, "FORCE_AFTER_S", 0.0)
            kill(attempts.newest, parts.processes)
        after = asyncio.Event()
        asyncio.get_running_loop().call_later(0.0, after.set)
        await after.wait()
        assert parts.processes.killed is blamed
    gone.wait()


@looped
async def test_a_stop_that_saves_comes_after_the_save() -> None:
    parts = make_parts(1)
    parts.saves.takes_snapshots = True
    attempts = Attempts(parts)
    stops = AttemptStop(parts, attempts, StandingBy(parts), has_tiers=True)
    attempts.start(start())
    stops.obey(stop(grace_s=60.0, save=True))
    await asyncio.sleep(0)
    assert parts.saves.saves == [{"node_goes": False, "job_ends": True, "holds": True}]
    assert not parts.processes.signals
    parts.saves.saved.set()
    await parts.tasks.running.pop(0)
    assert parts.processes.signals == ASKED
    for task in parts.tasks.running:
        task.cancel()


@pytest.mark.parametrize("ending", [False, True])
def test_a_job_that_ends_while_a_snapshot_is_taken_for_memory_only_ends_once_it_is_saved(
    ending: bool,
) -> None:
    """Somebody stops it while an update or another size is coming."""
    asyncio.run(stopped_while_it_changes(ending=ending))


async def stopped_while_it_changes(*, ending: bool) -> None:
    """`ending`: the snapshot has been taken, and the workers are on their way out."""
    parts = make_parts(1)
    parts.saves.takes_snapshots = True
    attempts = Attempts(parts)
    stops = AttemptStop(parts, attempts, StandingBy(parts), has_tiers=True)
    parts.processes.stores.open()
    attempts.start(start())
    stops.obey(stop(grace_s=60.0, keeps="here"))
    await asyncio.sleep(0)
    if ending:
        parts.saves.saved.set()
        await parts.tasks.running.pop(0)
        parts.saves.saved.clear()
    stops.obey(stop(grace_s=60.0, save=True))
    if not ending:
        parts.saves.saved.set()
        await parts.tasks.running.pop(0)
        parts.saves.saved.clear()
    assert attempts.newest is not None
    die(attempts, attempts.newest.workers[0], code=0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not facts(parts, WorkersStopped), "its checkpoint is not there yet"
    parts.saves.saved.set()
    await parts.tasks.settle()
    assert len(facts(parts, WorkersStopped)) == 1


@looped
async def test_a_node_that_is_asked_to_leave_saves_first_and_not_when_asked_twice() -> None:
    parts = make_parts(1)
    parts.saves.takes_snapshots = True
    attempts = Attempts(parts)
    leaving = Leaving(parts, attempts, has_tiers=False)
    attempts.start(start())
    leaving.ask(60.0)
    await asyncio.sleep(0)
    assert parts.saves.saves == [{"node_goes": True, "job_ends": False, "holds": False}]
    assert not parts.end.begun
    leaving.ask(60.0)
    assert parts.end.begun
    parts.saves.saved.set()
    await parts.tasks.settle()
    assert await parts.end.asked() == 60.0, "the first one who asks says how long workers have"


@looped
async def test_a_node_with_nothing_to_save_leaves_at_once() -> None:
    parts = make_parts(1)
    Leaving(parts, Attempts(parts), has_tiers=True).ask(7.0)
    assert await parts.end.asked() == 7.0


@looped
async def test_a_node_that_nobody_has_relieved_leaves_while_there_is_time_to_save() -> None:
    parts = make_parts(1)
    parts.saves.takes_snapshots = True
    attempts, announced = Attempts(parts), SimpleNamespace(leaves_at=1000.0)
    leaving = Leaving(parts, attempts, has_tiers=True, announced=announced)  # type: ignore[arg-type]
    attempts.start(start())
    grace_s = parts.job.recovery.stop_grace_s
    leaving.look(900.0)
    leaving.look(994.0 - grace_s)
    assert not leaving.asked.is_set(), "a spare may still take over"
    leaving.look(995.0 - grace_s)
    leaving.look(998.0 - grace_s)
    await asyncio.sleep(0)
    assert leaving.asked.is_set() and not parts.end.begun, "once, so that it may save"
    assert parts.saves.saves == [{"node_goes": True, "job_ends": False, "holds": False}]
    parts.saves.saved.set()
    await parts.tasks.settle()
    assert await parts.end.asked() <= grace_s


@looped
async def test_a_notice_that_is_taken_back_or_comes_late_makes_nobody_leave_too_soon() -> None:
    parts = make_parts(1)
    announced = SimpleNamespace(leaves_at=1000.0)
    leaving = Leaving(parts, Attempts(parts), has_tiers=True, announced=announced)  # type: ignore[arg-type]
    leaving.look(900.0)
    announced.leaves_at = None
    leaving.look(990.0)
    leaving.look(1000.0)
    assert not leaving.asked.is_set()
    announced.leaves_at = 1012.0
    leaving.look(1000.0)
    leaving.look(1004.0)
    assert not leaving.asked.is_set(), "the controller has a few seconds in any case"
    leaving.look(1005.0)
    assert await parts.end.asked() == 2.0, "no longer than until the machine goes"


@looped
async def test_who_waits_for_a_signal_hears_of_it_whatever_turn_it_comes_in() -> None:
    loop = asyncio.get_running_loop()
    for turns in range(6):
        parts = make_parts(1)
        leaving = Leaving(parts, Attempts(parts), has_tiers=True)
        parts.end.ask(0.0)  # the node ends already, and the signal comes while it does
        loop.add_signal_handler(signal.SIGTERM, leaving.ask, 7.0)
        loop.call_soon(signal.raise_signal, signal.SIGTERM)
        for _ in range(turns):
            await asyncio.sleep(0)
        await leaving.asked.wait()


@looped
async def test_a_lost_store_is_replaced_and_the_controller_told_of_the_next() -> None:
    parts = make_parts()
    stores = parts.processes.stores
    stores.open()
    stores.fresh = None
    parts.offer.lost()
    assert [told.store.port for told in facts(parts, NodeReady)] == [1, 2]


@looped
async def test_a_node_that_has_become_warm_says_so_of_the_store_that_it_has_told_of() -> None:
    parts = make_parts()
    parts.offer.warm = False
    parts.offer.tell_again()
    parts.processes.stores.open()
    parts.offer.warm = True
    parts.offer.tell_again()
    told = facts(parts, NodeReady)
    assert [(one.store.port, one.warm) for one in told] == [(1, False), (1, True)]
    parts.processes.stores.use(told[0].store)
    parts.offer.tell_again()
    assert len(facts(parts, NodeReady)) == 2, "an attempt has begun on it"


@looped
async def test_a_node_is_ready_again_when_tiers_know_of_a_later_attempt() -> None:
    parts = make_parts()
    parts.processes.stores.open()
    for attempt in (0, 4, 3):
        parts.offer.attempts_found(attempt)
    assert [told.attempt for told in facts(parts, NodeReady)] == [0, 4]


@looped
async def test_without_a_forkserver_nobody_waits_for_a_store() -> None:
    parts = make_parts()
    parts.processes.stores.can_open = False
    assert await parts.offer.next() is None
    parts.processes.stores.can_open = True
    assert await parts.offer.next() == Store(host="h", port=1, hosted=True)
