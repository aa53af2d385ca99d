"""New pods avoid a machine that is to go, or has faults, for as long as it is that machine."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.controller.state import HealthRecord
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, NODES, PODS
from holdfast.drivers.kubernetes.left_machines import BLAMED_S, GOES_S, Machines
from holdfast.drivers.kubernetes.machines import Machine, _Meta, _NodeInfo, _Status
from holdfast.drivers.kubernetes.roster import Roster
from holdfast.drivers.kubernetes.supply import Supply
from holdfast.events import HealthChanged, Severity
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.playing import playing
from tests.drivers.kubernetes.test_api import pod
from tests.drivers.kubernetes.test_preemption import ready
from tests.drivers.kubernetes.test_roster import state

PLACES = {"a": "m-0", "b": "m-0", "c": "m-1"}
Harm = Callable[[Machines], None]
EITHER = [
    {"matchExpressions": [{"key": "pool", "operator": "Exists"}]},
    {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["m-9"]}]},
]


def notice(node: str, severity: Severity, condition: str = "cloud-removal") -> HealthChanged:
    return HealthChanged(node=node, condition=condition, severity=severity)


def machine(name: str = "m-0", uid: str = "u", boot: str = "b") -> Machine:
    return Machine(_Meta(name=name, uid=uid), status=_Status(node_info=_NodeInfo(boot)))


class Job:
    """The machines that a job avoids, at a time that is set."""

    def __init__(self, cluster: Any = None) -> None:
        self.now = 0.0
        self.state = state(*PLACES)
        self.machines = Machines(cluster, asked("pods"), lambda: self.now)

    def hears(self, event: HealthChanged) -> None:
        """What the controller does, and then the driver."""
        known = self.state.health.setdefault(event.node, {})
        known.pop(event.condition, None)
        if event.severity is not Severity.OK:
            known[event.condition] = HealthRecord(
                condition=event.condition, device="", severity=event.severity, detail="",
                advice="", at=0.0,
            )  # fmt: skip
        self.machines.heard(event, self.state, lambda node: PLACES.get(node, ""))

    async def is_blamed(self) -> None:
        await self.machines.leave("m-0", "a device failed")

    def avoids(self) -> list[str]:
        """Machines that a pod made now is kept off: one in each requirement, as a field takes."""
        kept_off = self.machines.avoided({"spec": {}})
        if "affinity" not in kept_off["spec"]:
            return []
        required = kept_off["spec"]["affinity"]["nodeAffinity"]
        [term] = required["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        told = term["matchFields"]
        assert {(one["key"], one["operator"]) for one in told} == {("metadata.name", "NotIn")}
        return [name for [name] in (one["values"] for one in told)]


def test_a_machine_that_is_announced_to_go_is_avoided_and_no_other() -> None:
    job = Job()
    job.hears(notice("c", Severity.WARN))
    job.hears(notice("c", Severity.LEAVES, "gpu-lost"))
    job.hears(notice("zzz", Severity.LEAVES))
    assert job.avoids() == []
    job.hears(notice("a", Severity.LEAVES))
    assert job.avoids() == ["m-0"]
    job.hears(notice("c", Severity.LEAVES, "machine-leaving"))
    assert job.avoids() == ["m-0", "m-1"]


def test_a_notice_that_is_taken_back_ends_it_once_nobody_there_has_another() -> None:
    job = Job()
    for node in "ab":
        job.hears(notice(node, Severity.LEAVES))
    job.hears(notice("a", Severity.OK, "gpu-hot"))
    job.hears(notice("a", Severity.OK))
    assert job.avoids() == ["m-0"]
    job.hears(notice("b", Severity.OK))
    assert job.avoids() == []


def test_it_ends_by_itself_because_nobody_may_be_there_to_say_so() -> None:
    job = Job()
    job.hears(notice("a", Severity.LEAVES))
    job.now = GOES_S - 1
    assert job.avoids() == ["m-0"]
    job.now = GOES_S
    assert job.avoids() == []


CHANGES: dict[str, tuple[Harm, bool, bool]] = {
    "nothing new": (lambda m: m.see(machine()), True, True),
    "another machine is gone": (lambda m: m.gone("m-1"), True, True),
    "the machine is gone": (lambda m: m.gone("m-0"), False, False),
    "it is on no list any more": (lambda m: m.listed([machine("m-1")]), False, False),
    "another one has its name": (lambda m: m.see(machine(uid="other", boot="x")), False, False),
    "it was started again": (lambda m: m.see(machine(boot="another")), False, True),
}  # then whether it is avoided still, after a notice and after a fault of its devices


@pytest.mark.parametrize("seen_before", [True, False])
@pytest.mark.parametrize("what", CHANGES)
def test_a_machine_that_came_back_anew_is_used(what: str, seen_before: bool) -> None:
    async def story(_it: FakeCluster, _api: Api) -> None:
        change, announced, blamed = CHANGES[what]
        for is_blamed, expected in ((False, announced), (True, blamed)):
            job = Job()
            if seen_before:
                job.machines.listed([machine(), machine("m-1")])
            if is_blamed:
                await job.is_blamed()
            job.hears(notice("a", Severity.LEAVES))  # which takes nothing back from a fault
            if not seen_before:
                job.machines.listed([machine(), machine("m-1")])
            change(job.machines)
            assert job.avoids() == (["m-0"] if expected else []), (what, is_blamed)

    playing(story)


def test_a_fault_of_devices_outlives_a_notice_and_is_over_after_a_day() -> None:
    async def story(_it: FakeCluster, _api: Api) -> None:
        job = Job()
        job.hears(notice("a", Severity.LEAVES))
        await job.is_blamed()
        job.hears(notice("a", Severity.OK))
        job.now = BLAMED_S - 1
        assert job.avoids() == ["m-0"]
        job.now = BLAMED_S
        assert job.avoids() == []

    playing(story)


def test_the_next_controller_avoids_the_same_ones() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await ready(it, api)
        before = Job(api)
        before.machines.see(machine())
        before.hears(notice("a", Severity.LEAVES))
        before.hears(notice("c", Severity.LEAVES))
        assert before.machines.changed.is_set()
        await before.machines.save()
        after = Job(api)
        after.now = 60.0
        await after.machines.load()
        assert after.avoids() == ["m-0", "m-1"]
        after.machines.see(machine(boot="started again"))
        assert after.avoids() == ["m-1"]
        await after.machines.save()
        await before.machines.load()
        assert before.avoids() == ["m-1"]

    playing(story)


def test_a_controller_whose_clock_is_ahead_has_no_machine_avoided_for_years() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await ready(it, api)
        ahead = Job(api)
        ahead.now = 1e9
        ahead.hears(notice("a", Severity.LEAVES))
        await ahead.machines.save()
        job = Job(api)
        await job.machines.load()
        job.now = BLAMED_S - 1
        assert job.avoids() == ["m-0"]
        job.now = BLAMED_S
        assert job.avoids() == []

    playing(story)


def test_without_a_list_or_with_one_that_cannot_be_read_none_is_avoided(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        job = Job(api)
        await job.machines.load()
        await ready(it, api)
        await job.machines.load()
        assert job.avoids() == []
        for text in ("[1]", '{"m_0 ": {"until": 1e9}}', '{"": {"until": 1e9}}'):
            broken = {"metadata": {"annotations": {"holdfast.dev/left-machines": text}}}
            await api.patch(CONFIG_MAPS, "run-job", broken)
            await job.machines.load()
            assert job.avoids() == [], "no pod with such a name in its affinity is accepted"

    playing(story)
    assert "holdfast.dev/left-machines is ignored" in capsys.readouterr().err


def test_the_pod_that_replaces_a_node_is_placed_on_another_machine() -> None:
    """The machine that goes is the emptiest, and is neither tainted nor cordoned."""

    async def placed(it: FakeCluster, api: Api, job: Job) -> str:
        known = state(asked=1)
        supply = Supply(api, asked("pods", nodes={"count": 1}), known, Roster(known), job.machines)
        await supply.make_missing()
        await it.until(lambda: it.store.all(PODS)[-1]["spec"].get("nodeName"))
        return str(it.store.all(PODS)[-1]["spec"]["nodeName"])

    async def story(it: FakeCluster, api: Api) -> None:
        await ready(it, api)
        for name in ("m-0", "m-1"):
            it.machine(name)
        job = Job(api)
        job.hears(notice("a", Severity.LEAVES))
        assert await placed(it, api, job) == "m-1"
        job.hears(notice("a", Severity.OK))
        for made in it.store.all(PODS):
            it.store.delete(PODS, "default", made["metadata"]["name"], grace_s=0)
        assert await placed(it, api, job) == "m-0"
        assert it.store.find(NODES, "", "m-0")["spec"] == {}  # type: ignore[index]

    playing(story)


@pytest.mark.parametrize("alternatives", [[], EITHER])
def test_a_pod_starts_on_the_machine_that_was_not_left(alternatives: list[object]) -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        machines = Machines(api, asked("pods", nodes=2))
        await asyncio.gather(*(machines.leave(name, "a fault") for name in ("m-0", "m-1")))
        body = pod()
        if alternatives:
            required = {"nodeSelectorTerms": alternatives}
            node = {"requiredDuringSchedulingIgnoredDuringExecution": required}
            body["spec"]["affinity"] = {"nodeAffinity": node}
        await api.create(machines.avoided(body))
        placed = await it.until(lambda: it.pods()[0]["spec"].get("nodeName"))
        assert placed == "m-2"

    playing(act, machines=3)


def test_a_pod_of_a_job_that_has_left_none_is_as_it_was() -> None:
    body = pod()
    assert Machines(Api.__new__(Api), asked("pods")).avoided(body) is body


def test_one_job_cordons_three_machines_an_hour_and_a_tenth_of_its_nodes_a_day(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        now = 0.0
        keys: dict[str, Any] = {
            "nodes": {"count": 40},
            "access": {"cordon": True, "cordon_share": 1.0},
        }
        machines = Machines(api, asked("pods", namespace="default", **keys), lambda: now)

        async def cordoned(number: int) -> bool:
            await machines.leave(f"m-{number}", "XID 79")
            found = it.store.find(NODES, "", f"m-{number}")
            assert found is not None
            return bool(found["spec"].get("taints"))

        assert [await cordoned(number) for number in range(4)] == [True, True, True, False]
        assert "3 machines were cordoned in the last hour" in capsys.readouterr().err
        now = 3600.0
        assert [await cordoned(number) for number in (4, 5)] == [True, False]
        told = "the limit of one job is 4 of 40 nodes within a day"
        assert told in capsys.readouterr().err
        now = BLAMED_S
        assert await cordoned(6)

    playing(story, machines=8)
