"""A pod that waits is kept off a machine that goes: made anew, if it has none by then."""

import asyncio
from typing import Any

import pytest

from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import PODS, ApiError
from holdfast.drivers.kubernetes.left_machines import Machines
from holdfast.drivers.kubernetes.pods import Pod
from holdfast.drivers.kubernetes.roster import Gone, Roster
from holdfast.drivers.kubernetes.supply import Supply
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.cluster.faults import Fault
from tests.drivers.kubernetes.playing import playing
from tests.drivers.kubernetes.seen import condition, ended, pod
from tests.drivers.kubernetes.test_preemption import other, others_run, ready
from tests.drivers.kubernetes.test_roster import state

ONE: dict[str, Any] = {"nodes": {"count": 1}, "resources": {"cpu": 4}}
QUEUE: dict[str, Any] = {"scheduling": {"kueue": {"queue": "gpus"}}}


class Job:
    """One pod of a job in a cluster, as its controller sees it whenever it looks."""

    def __init__(self, api: Api, **keys: Any) -> None:
        request = asked("pods", **ONE, **keys)
        self.api, self.known = api, state(asked=1)
        self.roster, self.machines = Roster(self.known), Machines(api, request)
        self.supply = Supply(api, request, self.known, self.roster, self.machines)
        self.gone: list[Gone] = []

    async def sees(self) -> list[Pod]:
        found = (await self.api.listed(PODS, Pod, labels="holdfast.dev/job=run")).items
        self.gone += self.roster.relist(found)
        self.supply.listed()
        return found

    async def acts(self) -> None:
        await self.supply.withdraw_outdated()
        await self.sees()
        await self.supply.make_missing()
        await self.sees()

    async def waits(self, it: FakeCluster, name: str) -> None:
        """The scheduler has found no place for its pod."""
        await it.until(lambda: at(it, name).get("status", {}).get("conditions"))
        assert "nodeName" not in at(it, name)["spec"]
        await self.sees()


def at(it: FakeCluster, name: str) -> dict[str, Any]:
    return it.store.find(PODS, "default", name) or {}


async def full(it: FakeCluster, api: Api, **keys: Any) -> Job:
    """A job whose pod waits, because another one fills the only machine."""
    await ready(it, api, other("full", "high"))
    await others_run(it, "full")
    job = Job(api, **keys)
    await job.acts()
    await job.waits(it, "run-0")
    return job


def test_a_pod_that_waits_does_not_start_on_a_machine_that_is_announced_to_go() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        job = await full(it, api)
        job.machines.goes("m-0")
        await job.acts()
        assert at(it, "run-0") == {} and job.gone == [], "it is no node that failed"
        it.store.delete(PODS, "default", "full", grace_s=0)
        await job.waits(it, "run-1")
        it.machine("m-1", cpu="4")
        await others_run(it, "run-1")
        assert at(it, "run-1")["spec"]["nodeName"] == "m-1"

    playing(story, machines=0)


def test_a_pod_that_waits_gets_the_machine_whose_notice_was_taken_back() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        job = await full(it, api)
        job.machines.goes("m-0")
        await job.acts()
        await job.waits(it, "run-1")
        job.machines.stays("m-0")
        it.store.delete(PODS, "default", "full", grace_s=0)
        await job.acts()
        await others_run(it, "run-2")
        assert at(it, "run-1") == {} and job.gone == []

    playing(story, machines=0)


def test_a_pod_that_was_bound_since_it_was_seen_stays() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        job = await full(it, api)
        it.machine("m-1", cpu="4")
        await others_run(it, "run-0")
        job.machines.goes("m-0")
        await job.supply.withdraw_outdated()
        assert at(it, "run-0")["spec"]["nodeName"] == "m-1"
        assert "deletionTimestamp" not in at(it, "run-0")["metadata"]
        await job.acts()
        assert [one["metadata"]["name"] for one in it.pods(job="run")] == ["run-0"]
        assert job.gone == []
        (uid,) = job.roster.withdrawn
        it.store.delete(PODS, "default", "run-0", grace_s=0)
        await job.sees()
        assert [one.node for one in job.gone] == [uid], "and is a node"
        assert not job.roster.withdrawn

    playing(story, machines=0)


def test_one_whose_deletion_is_not_known_to_have_happened_is_replaced_once() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        job = await full(it, api)
        job.machines.goes("m-0")
        it.faults.add(Fault("delete", "pods", cut=True, done=True, times=9))
        await job.acts()
        await job.acts()
        it.faults.clear()
        await job.acts()
        assert [one["metadata"]["name"] for one in it.pods(job="run")] == ["run-1"]
        assert job.gone == []

    playing(story, machines=0)


def test_as_long_as_deletion_is_refused_pods_are_made_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        job = await full(it, api)
        job.machines.goes("m-0")
        job.known.asked = 2
        it.faults.add(Fault("delete", "pods", code=403))
        await job.acts()
        assert [one["metadata"]["name"] for one in it.pods(job="run")] == ["run-0", "run-1"]

    playing(story, machines=0)
    assert "pod run-0 waits, and cannot be replaced" in capsys.readouterr().err


def test_a_pod_for_which_others_make_room_elsewhere_stays_and_has_it() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await ready(it, api, other("low", "low"), other("high", "high"))
        await others_run(it, "low", "high")
        job = Job(api, scheduling={"replacement_priority_class": "urgent"})
        job.known.attempt = 1
        place = at(it, "low")["spec"]["nodeName"]
        goes = at(it, "high")["spec"]["nodeName"]
        await job.acts()
        await it.until(lambda: at(it, "run-0")["status"].get("nominatedNodeName"))
        await job.sees()
        job.machines.goes(goes)
        await job.acts()
        await others_run(it, "run-0")
        assert at(it, "run-0")["spec"]["nodeName"] == place

    playing(story, machines=0)


GATED = [condition("PodScheduled", "False", "SchedulingGated")]
FULL = [condition("PodScheduled", "False", "Unschedulable")]
STATES = {
    "no machine has room for it": (pod(machine="", phase="Pending", conditions=FULL), True),
    "the scheduler has not seen it": (pod(machine="", phase="Pending"), True),
    "room is made where it may not go": (
        pod(machine="", phase="Pending", nominatedNodeName="m-0"),
        True,
    ),
    "room is made elsewhere": (pod(machine="", phase="Pending", nominatedNodeName="m-1"), False),
    "it has a machine": (pod(machine="m-1", phase="Pending", state={}), False),
    "it runs on the machine that goes": (pod(machine="m-0"), False),
    "a gate holds it": (pod(machine="", phase="Pending", conditions=GATED), False),
    "it is being deleted": (pod(machine="", phase="Pending", leaving=True), False),
    "it has ended": (ended(machine=""), False),
}


@pytest.mark.parametrize("which", STATES)
def test_only_pods_that_the_scheduler_may_place_anywhere_are_made_anew(which: str) -> None:
    machines = Machines(Api.__new__(Api), asked("pods"))
    seen, expected = STATES[which]
    assert machines.outdated([seen]) == []
    machines.goes("m-0")
    assert machines.outdated([seen]) == ([seen] if expected else [])


def test_one_that_was_made_since_is_not_made_anew_nor_one_that_a_queue_has_admitted() -> None:
    class Refusing:
        """A cluster in which nothing may be deleted."""

        async def delete(self, *_what: object, **_how: object) -> None:
            raise AssertionError("it is to stay")

    cluster: Any = Refusing()
    waiting = pod(machine="", phase="Pending")
    keys: dict[str, Any]
    for keys in ({}, QUEUE):
        known = state(asked=1)
        request = asked("pods", **keys)
        machines, roster = Machines(cluster, request), Roster(known)
        supply = Supply(cluster, request, known, roster, machines)
        machines.goes("m-0")
        labels = machines.avoided({"spec": {}})["metadata"]["labels"]
        roster.see(waiting if keys else pod(machine="", phase="Pending", labels=labels))
        asyncio.run(supply.withdraw_outdated())


def test_news_of_a_machine_make_the_supply_look() -> None:
    class Empty:
        """A cluster whose pod goes with the first word."""

        def __init__(self) -> None:
            self.deleted = asyncio.Event()

        async def delete(self, *_what: object, **_how: object) -> None:
            self.deleted.set()
            raise ApiError(500, "InternalError", "later")

    async def story() -> None:
        cluster: Any = Empty()
        known, request = state(), asked("pods")
        machines, roster = Machines(cluster, request), Roster(known)
        supply = Supply(cluster, request, known, roster, machines)
        roster.see(pod(machine="", phase="Pending"))
        working = asyncio.create_task(supply.run())
        machines.goes("m-0")
        await cluster.deleted.wait()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    asyncio.run(asyncio.wait_for(story(), 60))
