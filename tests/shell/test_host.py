"""A shell in a process: late timers, signals, duties, and what ends it."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.actions import Entry, Outcome
from holdfast.controller import Limits
from holdfast.events import DeadlinePassed, JobSubmitted, StopRequested
from holdfast.messages import Start, Stop
from holdfast.shell import supervision
from holdfast.shell.supervision import DutyError
from tests.shell.scene import TERM, hello
from tests.shell.site import DEADLINE_S, Agent, Site, dial, open_site, send, until

ONE = Limits(node_count=1)


def hosted(test: Callable[[Site], Awaitable[None]], limits: Limits = ONE) -> None:
    """Run this with a site that has begun, and is not run yet."""

    async def story() -> None:
        site = Site(limits, 2.0)
        site.shell.begin(JobSubmitted())
        async with asyncio.timeout(DEADLINE_S):
            await test(site)
        await site.host.server.close()

    asyncio.run(story())


def nothing(_text: str) -> None:
    pass


# ── what ends it ──


def test_it_runs_until_the_job_has_ended() -> None:
    async def test(site: Site) -> None:
        site.shell.put(StopRequested(by="me"))
        assert await site.host.run({}, nothing) is Outcome.STOPPED

    hosted(test)


def test_its_journal_says_how_far_the_wall_clock_is_ahead_of_what_it_decides_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after the machine has slept: what is told of it is told by the clock of all other logs."""

    async def test(site: Site) -> None:
        wall = time.time
        monkeypatch.setattr(time, "time", lambda: wall() + 28_800.0)
        seen: list[Entry] = []
        site.shell.decisions.observe = lambda entry, _state: seen.append(entry)
        site.shell.put(StopRequested(by="me"))
        await site.host.run({}, nothing)
        assert seen[-1].ahead_s == pytest.approx(28_800.0, abs=1.0)
        assert seen[-1].at < wall() + 60, "and not decided by it"

    hosted(test)


def test_it_ends_without_an_outcome_once_a_newer_controller_is_known_of() -> None:
    async def story() -> None:
        async with open_site(ONE) as (site, port):
            async with dial(port) as agent:
                await send(agent, hello("a", obeyed=TERM + 1))
                await until(lambda: site.shell.replaced_by == TERM + 1)
            assert site.host._over.done() and site.host._over.result() is None

    asyncio.run(story())


def test_the_engine_clears_up_while_the_duties_go_on_and_sees_what_they_see() -> None:
    async def test(site: Site) -> None:
        asked, seen = asyncio.Event(), asyncio.Event()

        async def watching() -> None:
            await asked.wait()
            seen.set()
            await asyncio.Event().wait()

        async def end(_outcome: Outcome) -> None:
            asked.set()
            await seen.wait()

        site.shell.put(StopRequested(by="me"))
        assert await site.host.run({"watching": watching}, nothing, end) is Outcome.STOPPED

    hosted(test)


def test_a_step_that_fails_ends_it_with_that_exception() -> None:
    async def test(site: Site) -> None:
        def broken(_order: object) -> None:
            raise RuntimeError("no such engine")

        site.engine.make = broken  # type: ignore[method-assign, assignment]
        with pytest.raises(RuntimeError, match="no such engine"):
            await site.host.run({}, nothing)

    hosted(test)


def test_a_look_that_fails_ends_it_with_that_exception() -> None:
    async def test(site: Site) -> None:
        def broken(_now: float) -> None:
            raise RuntimeError("cannot look")

        site.shell.nodes.look = broken  # type: ignore[method-assign, assignment]
        with pytest.raises(RuntimeError, match="cannot look"):
            await site.host.run({}, nothing)

    hosted(test)


def test_a_look_at_a_deadline_that_fails_ends_it_too() -> None:
    async def test(site: Site) -> None:
        looks = []

        def broken(now: float) -> None:
            looks.append(now)
            raise RuntimeError("cannot look")

        async def never() -> None:
            await asyncio.Event().wait()

        site.shell.nodes.look = broken  # type: ignore[method-assign]
        site.host._look_again_and_again = never  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="cannot look"):
            await site.host.run({}, nothing)
        assert looks

    hosted(test, Limits(node_count=1, node_wait_s=0.1))


def test_what_the_engine_calls_a_failure_ends_it() -> None:
    async def test(site: Site) -> None:
        running = asyncio.create_task(site.host.run({}, nothing))
        await asyncio.sleep(0)
        site.host.fail(OSError("gone"))
        site.host.fail(OSError("later"))
        with pytest.raises(OSError, match="gone"):
            await running

    hosted(test)


# ── duties ──


def test_a_duty_that_dies_is_said_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.0)
    said: list[str] = []
    tries: list[int] = []

    async def test(site: Site) -> None:
        async def duty() -> None:
            tries.append(len(tries))
            if len(tries) < 3:
                raise OSError("no route")
            site.shell.put(StopRequested(by="me"))
            await asyncio.Event().wait()

        assert await site.host.run({"watching": duty}, said.append) is Outcome.STOPPED

    hosted(test)
    assert said == ["watching failed and is restarted: OSError: no route"] * 2


def test_a_duty_that_fails_too_often_ends_it_and_the_other_duties(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.0)
    ended: list[str] = []

    async def test(site: Site) -> None:
        async def failing() -> None:
            raise OSError("no route")

        async def steady() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("steady")

        with pytest.raises(DutyError, match="watching failed"):
            await site.host.run({"watching": failing, "steady": steady}, nothing)

    hosted(test)
    assert ended == ["steady"]


# ── signals ──


def test_a_second_signal_stops_at_once() -> None:
    async def story() -> None:
        async with open_site(ONE) as (site, port):
            agent = await Agent("a").join(port)
            await until(lambda: agent.was_told(Start))
            site.host.stop_at(signal.SIGINT, signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            await until(lambda: agent.was_told(Stop))
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: len(site.events(StopRequested)) == 2)
            stops = [m for m in agent.told if isinstance(m, Stop)]
            await until(lambda: len([m for m in agent.told if isinstance(m, Stop)]) == 2)
            stops = [m for m in agent.told if isinstance(m, Stop)]
            assert site.events(StopRequested) == [
                StopRequested(by="Ctrl-C"), StopRequested(by="SIGTERM", now=True)
            ]  # fmt: skip
            assert stops[0].grace_s > stops[1].grace_s == 0.0
            await agent.leave()

    asyncio.run(story())


# ── time ──


def test_a_deadline_is_told_when_it_has_come_although_nothing_is_heard() -> None:
    async def test(site: Site) -> None:
        assert await site.host.run({}, nothing) is Outcome.GAVE_UP
        assert len(site.events(DeadlinePassed)) == 1

    hosted(test, Limits(node_count=1, node_wait_s=0.3))


STOPPED_PROCESS = """
import asyncio, sys, time
sys.path.insert(0, {root!r})
from holdfast.controller import Limits
from holdfast.events import NodeLost
from holdfast.messages import Start
from tests.shell.site import Agent, open_site, until

async def story():
    async with open_site(Limits(node_count=1), timeout_s=1.0) as (site, port):
        print(port, flush=True)
        await until(lambda: site.shell.state.attempt == 1)
        forgiven = []
        forgive = site.shell.forgive
        site.shell.forgive = lambda late_s: (forgiven.append(late_s), forgive(late_s))
        print("running", flush=True)
        await until(lambda: forgiven)
        look = asyncio.get_running_loop().time()
        await until(lambda: asyncio.get_running_loop().time() > look + 0.6)
        print(len(site.events(NodeLost)), flush=True)

asyncio.run(story())
"""


def test_a_process_that_was_stopped_for_long_blames_nobody() -> None:
    """Its agents gave signs of life all the time, or could not: it does not know."""
    source = STOPPED_PROCESS.format(root=str(Path(__file__).parents[2]))
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    out = process.stdout

    async def story() -> None:
        port = int(await asyncio.to_thread(out.readline))
        agent = await Agent("a").join(port)
        assert await asyncio.to_thread(out.readline) == "running\n"
        process.send_signal(signal.SIGSTOP)
        since = time.monotonic()
        await until(lambda: time.monotonic() > since + 1.6)  # longer than its timeout
        process.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(out.readline) == "0\n"
        await agent.leave()

    try:
        asyncio.run(story())
    finally:
        process.kill()
        process.wait()
        out.close()


def test_turns_are_short_so_that_connections_are_read_between_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However much there is to decide."""
    monkeypatch.setattr("holdfast.shell.host.TURN_S", 0.0)

    async def test(site: Site) -> None:
        others: list[int] = []
        loop = asyncio.get_running_loop()

        def other() -> None:
            others.append(site.book.seq)
            loop.call_soon(other)

        loop.call_soon(other)
        for _ in range(3_000):
            site.shell.put(DeadlinePassed())
        running = asyncio.create_task(site.host.run({}, nothing))
        await until(lambda: site.book.seq > 3_000)
        assert len(set(others)) >= 3, "nothing else was done until all was decided"
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    hosted(test)
