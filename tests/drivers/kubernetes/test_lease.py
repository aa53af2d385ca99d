"""There is one controller at a time, and whoever is not sure to be it knows so in time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.drivers.kubernetes import api as client
from holdfast.drivers.kubernetes import lease
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, LEASES, ApiError, DeniedError
from holdfast.drivers.kubernetes.lease import Lease
from holdfast.drivers.kubernetes.leased_cluster import LeasedCluster
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.cluster.faults import Fault
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.playing import playing
from tests.patience import PATIENCE_S

NUMBERS = {"DURATION_S": 3.0, "SURE_S": 1.8, "RENEW_S": 0.3, "POLL_S": 0.02, "CALL_S": 0.9}
REAL = {name: getattr(lease, name) for name in NUMBERS}


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in a third of the time, with the same order between the numbers."""
    for name, value in NUMBERS.items():
        monkeypatch.setattr(lease, name, value)
    monkeypatch.setattr(client, "PAUSE_S", 0.01)


def of(api: Api, who: str) -> Lease:
    return Lease(api, "run-controller", who, {})


class Mood:
    """What the holder was told, in order."""

    def __init__(self, held: Lease) -> None:
        self.told: list[str] = []
        held.on_doubt = lambda: self.told.append("doubt")
        held.on_sure = lambda: self.told.append("sure")


class Lateness:
    """Counts renewals that came later after the one before than the holder may be sure."""

    def __init__(self, held: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
        self._before, self._count, renewed = held._renewed_at, 0, held._renewed

        def noted(began: float) -> None:
            self._note()
            self._before = began
            renewed(began)

        monkeypatch.setattr(held, "_renewed", noted)

    def _note(self) -> None:
        self._count += lease._clock() - self._before > lease.SURE_S

    def count(self) -> int:
        """Up to now."""
        self._note()
        return self._count


@asynccontextmanager
async def keeping(held: Lease) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(held.keep())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def spec(it: FakeCluster) -> Body:
    found: Body = it.store.get(LEASES, "default", "run-controller")["spec"]
    return found


def test_the_numbers_leave_time_between_the_holders_doubt_and_the_successor() -> None:
    for number in (REAL, NUMBERS):
        renewed = number["RENEW_S"] + number["CALL_S"]
        assert renewed < number["SURE_S"] < number["DURATION_S"]
    assert REAL["DURATION_S"] + REAL["POLL_S"] + REAL["CALL_S"] < 20


def test_one_who_waits_takes_it_when_it_is_given_back() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        first, second = of(api, "a"), of(api, "b")
        await first.acquire()
        async with keeping(first):
            waiting = asyncio.create_task(second.acquire())
            renewed = spec(it)["renewTime"]
            await it.until(lambda: spec(it)["renewTime"] != renewed)
            assert not waiting.done()
        await first.release()
        await waiting
        assert (second.term, second.former) == (2, ""), "nobody is to be removed"
        assert spec(it)["holderIdentity"] == "b"

    playing(story)


def test_one_who_gives_way_leaves_others_the_time_to_take_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the same pod, started again at once, is faster, and hears no node this time either."""
    monkeypatch.setattr(lease, "DURATION_S", PATIENCE_S)

    async def story(it: FakeCluster, api: Api) -> None:
        first, second = of(api, "a"), of(api, "b")
        await first.acquire()
        await first.release()
        aside = asyncio.create_task(first.stand_aside())
        await asyncio.sleep(0)
        assert not aside.done() and spec(it)["holderIdentity"] == ""
        await second.acquire()
        await aside
        assert spec(it)["holderIdentity"] == "b"

    playing(story)


def test_where_none_stands_by_one_who_gives_way_is_not_held_up_for_long() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        only = of(api, "a")
        await only.acquire()
        await only.release()
        await asyncio.wait_for(only.stand_aside(), PATIENCE_S)
        assert spec(it)["holderIdentity"] == ""

    playing(story)


def test_a_holder_that_is_silent_is_followed_and_named() -> None:
    async def story(_: FakeCluster, api: Api) -> None:
        first, second = of(api, "a"), of(api, "b")
        await first.acquire()
        await second.acquire()
        assert (second.term, second.former) == (2, "a")
        assert second.is_sure and not first.is_sure
        await asyncio.wait_for(first.keep(), PATIENCE_S)

    playing(story)


def test_of_many_that_wait_one_gets_it() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await of(api, "a").acquire()
        others = [of(api, f"b{number}") for number in range(5)]
        tasks = [asyncio.create_task(other.acquire()) for other in others]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        (winner,) = [o for o, task in zip(others, tasks, strict=True) if task.done()]
        async with keeping(winner):
            renewed = spec(it)["renewTime"]
            await it.until(lambda: spec(it)["renewTime"] != renewed)
            assert sum(task.done() for task in tasks) == 1
        for task in tasks:
            task.cancel()

    playing(story)


def test_the_same_pod_takes_its_own_lease_up_again_at_once() -> None:
    async def story(_: FakeCluster, api: Api) -> None:
        await of(api, "a").acquire()
        again = of(api, "a")
        await asyncio.wait_for(again.acquire(), NUMBERS["DURATION_S"] / 2)
        assert (again.term, again.former) == (1, "")

    playing(story)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(plural="leases", code=503, times=1_000_000),
        Fault(plural="leases", code=403, times=1_000_000),
        Fault(plural="leases", times=1_000_000, delay_s=3600.0),
        Fault(plural="leases", cut=True, times=1_000_000),
    ],
    ids=["busy", "denied", "hangs", "cut"],
)
def test_a_holder_that_cannot_renew_doubts_before_anybody_else_can_have_it(fault: Fault) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        held = of(api, "a")
        await held.acquire()
        mood = Mood(held)
        async with keeping(held) as task:
            it.faults.add(fault)
            await it.until(lambda: mood.told == ["doubt"])
            assert not held.is_sure and not task.done(), "nobody else has it yet"
            it.faults.clear()
            fault.times = 0
            await it.until(lambda: mood.told == ["doubt", "sure"])
            assert held.is_sure

    playing(story)


def test_after_a_doubt_the_lease_of_another_is_a_loss() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        held = of(api, "a")
        await held.acquire()
        mood = Mood(held)
        async with keeping(held) as task:
            away = it.faults.add(Fault(plural="leases", code=503, times=1_000_000))
            await it.until(lambda: mood.told == ["doubt"])
            away.times = 0
            it.store.change(LEASES, "default", "run-controller", _given_to_b)
            await asyncio.wait_for(task, PATIENCE_S)
        assert mood.told == ["doubt"]

    def _given_to_b(body: Body) -> None:
        body["spec"] |= {"holderIdentity": "b", "leaseTransitions": 2}

    playing(story)


def test_a_clock_that_was_set_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine an hour behind renews into the past, one that is ahead into the future."""

    async def story(it: FakeCluster, api: Api) -> None:
        class Wrong(datetime):
            hours = 0

            @classmethod
            def now(cls, tz: Any = None) -> Any:
                cls.hours = -1 if cls.hours == 1 else 1
                return datetime.now(tz or UTC) + timedelta(hours=cls.hours)

        monkeypatch.setattr(lease, "datetime", Wrong)
        held = of(api, "a")
        await held.acquire()
        mood, late = Mood(held), Lateness(held, monkeypatch)
        async with keeping(held) as task:
            waiting = asyncio.create_task(of(api, "b").acquire())
            renewals: set[str] = set()

            def renewed() -> bool:
                renewals.add(spec(it)["renewTime"])
                return len(renewals) > 3

            await it.until(renewed)
            assert not task.done() and not waiting.done()
            assert mood.told.count("doubt") <= late.count(), "on a busy machine it may be late"
            waiting.cancel()

    playing(story)


def test_a_holder_that_slept_knows_at_once_that_it_is_not_sure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(_: FakeCluster, api: Api) -> None:
        held = of(api, "a")
        await held.acquire()
        assert held.is_sure
        real, slept = lease._clock, 60.0
        monkeypatch.setattr(lease, "_clock", lambda: real() + slept)
        assert not held.is_sure

    playing(story)


def test_terms_go_on_after_somebody_has_deleted_the_lease() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        first, second, third = (of(api, who) for who in "abc")
        await first.acquire()
        await second.acquire()
        waiting = asyncio.create_task(third.acquire())
        await it.until(lambda: third._newest == 2)
        await api.delete(LEASES, "run-controller")
        await waiting
        assert third.term == 3

    playing(story)


def test_terms_go_on_after_somebody_has_put_an_old_lease_back() -> None:
    """As a restored backup does. Agents refuse orders of a term that was before."""

    async def story(it: FakeCluster, api: Api) -> None:
        first, second, third = (of(api, who) for who in "abc")
        await first.acquire()
        await second.acquire()

        def put_back(body: Body) -> None:
            body["spec"]["leaseTransitions"] = 0

        it.store.change(LEASES, "default", "run-controller", put_back)
        assert await second._still_ours() and second.term == 2
        assert spec(it)["leaseTransitions"] == 2
        waiting = asyncio.create_task(third.acquire())
        await it.until(lambda: third._newest == 2)
        it.store.change(LEASES, "default", "run-controller", put_back)
        await waiting
        assert third.term == 3

    playing(story)


def test_a_holder_that_may_not_make_a_deleted_lease_anew_is_in_doubt_and_has_not_lost_it() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        first = of(api, "a")
        await first.acquire()
        await api.delete(LEASES, "run-controller")
        it.server.access.denied.add(("create", "leases"))
        assert await first._still_ours()
        it.server.access.denied.clear()
        assert await first._still_ours()
        assert it.store.get(LEASES, "default", "run-controller")["spec"]["holderIdentity"] == "a"

    playing(story)


def test_a_renewal_that_is_forbidden_is_said_once_and_one_that_only_fails_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        held = of(api, "a")
        await held.acquire()
        it.faults.add(Fault("get", "leases", code=503, times=4))
        assert await held._still_ours()
        it.faults.clear()
        it.server.access.denied.add(("patch", "leases"))
        for _ in range(2):
            assert await held._still_ours()

    playing(story)
    (line,) = capsys.readouterr().err.splitlines()
    assert "lease run-controller cannot be renewed: " in line
    assert 'cannot patch resource "leases"' in line


def test_who_may_not_have_a_lease_says_so_at_once() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        it.server.access.denied.add(("*", "leases"))
        with pytest.raises(DeniedError):
            await of(api, "a").acquire()

    playing(story)


def test_a_call_that_hangs_does_not_keep_the_successor_waiting() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        it.faults.add(Fault("get", "leases", delay_s=3600.0))
        await asyncio.wait_for(of(api, "a").acquire(), PATIENCE_S)

    playing(story)


# ── what a holder may do ──────────────────────────────────────────────────────────────────────


def test_who_is_in_doubt_changes_nothing_and_sees_everything() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        held = of(api, "a")
        fenced = LeasedCluster(api, held)
        it.store.create(CONFIG_MAPS, "default", {"metadata": {"name": "x", "uid": "u"}})
        uid = it.store.get(CONFIG_MAPS, "default", "x")["metadata"]["uid"]
        body: Body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "y"}}
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: fenced.create(body),
            lambda: fenced.apply(body),
            lambda: fenced.patch(CONFIG_MAPS, "x", {"data": {"a": "b"}}),
            lambda: fenced.evict("gone", uid="u"),
            lambda: fenced.delete(CONFIG_MAPS, "x", uid=uid),
        ]
        before = it.store.version
        for call in calls:
            with pytest.raises(ApiError, match="another controller may have the lease") as caught:
                await call()
            assert caught.value.transient, "it may be tried again"
        assert it.store.version == before
        assert (await fenced.get(CONFIG_MAPS, "x"))["metadata"]["uid"] == uid
        await held.acquire()
        async with keeping(held):
            for call in calls:
                await call()
        assert it.store.find(CONFIG_MAPS, "default", "x") is None

    playing(story)
