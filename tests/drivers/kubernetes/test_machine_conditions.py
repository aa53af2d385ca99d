"""What machines say of themselves reaches the nodes on them: once, and until it is over."""

import asyncio
import re
from typing import Any

import msgspec
import pytest

from holdfast.controller import Limits
from holdfast.controller.state import HealthRecord, Node, State
from holdfast.drivers.kubernetes import machine_watch
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import NODES
from holdfast.drivers.kubernetes.left_machines import Machines
from holdfast.drivers.kubernetes.machine_conditions import (
    ANNOUNCED,
    PRESSURES,
    REMOVALS,
    MachineConditions,
    signs,
)
from holdfast.drivers.kubernetes.machine_watch import MachineWatch
from holdfast.drivers.kubernetes.machines import OUT_OF_SERVICE, RACKS, Machine
from holdfast.events import HealthChanged, NodeJoined, Severity
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.playing import playing

WELL = {"type": "Ready", "status": "True"}
GONE = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute", "value": "nodeshutdown"}
US = "default/run"


def machine(
    *conditions: dict[str, str], name: str = "m0", taints: Any = (), **more: Any
) -> Machine:
    body = {
        "metadata": {"name": name, **more.pop("metadata", {})},
        "spec": {"taints": list(taints), **more},
        "status": {"conditions": list(conditions) or [WELL]},
    }
    return msgspec.convert(body, Machine)


def wrong(kind: str, status: str = "True", **words: str) -> dict[str, str]:
    return {"type": kind, "status": status, **words}


def taint(key: str, effect: str = "NoExecute", value: str = "") -> dict[str, str]:
    return {"key": key, "effect": effect, "value": value}


def state(*nodes: str) -> State:
    known = {n: Node(node=n, name=n, address="", workers=1) for n in nodes}
    return State(limits=Limits(node_count=2), nodes=known)


def listening(it: State, **machine_of: str) -> MachineConditions:
    """The pods of these nodes are known."""
    return hearing(it, machine_of)


def hearing(it: State, machine_of: dict[str, str]) -> MachineConditions:
    found = MachineConditions(it, lambda node: machine_of.get(node, ""), US)
    for node in machine_of:
        assert found.look(node) == []
    return found


@pytest.mark.parametrize(
    ("seen", "slug", "severity"),
    [
        (machine(wrong("Ready", "False")), "machine-not-ready", "warn"),
        (machine(wrong("Ready", "Unknown")), "machine-not-ready", "warn"),
        (machine(WELL, wrong("MemoryPressure")), "machine-memory-pressure", "warn"),
        (machine(WELL, wrong("DiskPressure")), "machine-disk-pressure", "warn"),
        (machine(WELL, wrong("PIDPressure")), "machine-pid-pressure", "warn"),
        (machine(WELL, wrong("NetworkUnavailable")), "machine-network-unavailable", "warn"),
        (machine(WELL, wrong("ReadonlyFilesystem")), "machine-read-only", "fatal"),
        (machine(WELL, wrong("KernelDeadlock")), "machine-problem", "warn"),
        (machine(WELL, wrong("AcceleratedHardwareReady", "False")), "machine-problem", "warn"),
        (machine(unschedulable=True), "machine-cordoned", "warn"),
        (machine(taints=[GONE]), "machine-out-of-service", "fatal"),
        (machine(taints=[taint("maintenance")]), "machine-tainted", "warn"),
        (machine(taints=[taint("karpenter.sh/disrupted")]), "machine-leaving", "leaves"),
        (machine(wrong("PreemptScheduled")), "machine-leaving", "leaves"),
        (machine(wrong("FreezeScheduled")), "machine-problem", "warn"),
    ],
)
def test_what_is_wrong_has_a_name_and_only_what_cannot_pass_is_a_fault(
    seen: Machine, slug: str, severity: str
) -> None:
    [sign] = signs(seen)
    assert (sign.condition, str(sign.severity)) == (slug, severity)
    assert sign.detail and sign.advice


@pytest.mark.parametrize(
    ("seen", "name"),
    [
        *((machine(wrong(kind)), kind) for kind in (*PRESSURES, *ANNOUNCED)),
        *((machine(taints=[taint(key)]), key) for key in (*REMOVALS, OUT_OF_SERVICE)),
        (machine(unschedulable=True), "spec.unschedulable"),
    ],
)
def test_what_kubernetes_calls_it_is_named_so_that_it_can_be_searched_for(
    seen: Machine, name: str
) -> None:
    [sign] = signs(seen)
    assert re.search(rf"\b{re.escape(name)}\b", sign.detail)


@pytest.mark.parametrize(
    "seen",
    [
        machine(),
        machine(WELL, wrong("KernelDeadlock", "False"), wrong("MemoryPressure", "Unknown")),
        machine(WELL, wrong("NetworkingReady"), wrong("StorageReady", "Unknown")),
        machine(taints=[taint("nvidia.com/gpu", "NoSchedule", "present")]),
        machine(taints=[taint("node.kubernetes.io/unreachable")]),  # Ready tells it
    ],
)
def test_what_is_well_or_ordinary_is_not_told(seen: Machine) -> None:
    assert list(signs(seen)) == []


def test_the_words_of_whoever_says_so_are_quoted() -> None:
    silent = wrong("Ready", "Unknown", reason="NodeStatusUnknown", message="Kubelet stopped.")
    listens = listening(state("a"), a="m0")
    [told] = listens.see(machine(silent))
    assert told.detail == "machine m0 is not ready (NodeStatusUnknown: Kubelet stopped.)"
    assert told.advice == "kubectl describe node m0"


def test_a_condition_is_told_to_the_nodes_of_its_machine_when_it_begins_and_when_it_ends() -> None:
    listens = listening(state("a", "b", "c"), a="m0", b="m1", c="m0")
    assert listens.see(machine()) == listens.see(machine(name="m1")) == []
    begun = listens.see(machine(WELL, wrong("DiskPressure")))
    assert [(e.node, e.severity) for e in begun] == [("a", Severity.WARN), ("c", Severity.WARN)]
    assert listens.see(machine(WELL, wrong("DiskPressure", reason="Again"))) == [], "it stands"
    over = listens.see(machine())
    assert [(e.node, e.condition, e.severity) for e in over] == [
        (node, "machine-disk-pressure", Severity.OK) for node in ("a", "c")
    ]


def test_a_taint_that_a_machine_always_had_is_how_the_cluster_is_run() -> None:
    listens, dedicated = listening(state("a"), a="m0"), taint("dedicated", value="training")
    assert listens.see(machine(taints=[dedicated])) == []
    [told] = listens.see(machine(taints=[dedicated, taint("maintenance")]))
    assert (told.condition, told.device) == ("machine-tainted", "maintenance")


def test_our_own_cordon_is_no_news_and_that_of_another_job_is() -> None:
    ours = {"annotations": {"holdfast.dev/cordoned-by": US}}
    theirs = {
        "annotations": {
            "holdfast.dev/cordoned-by": "lab/other",
            "holdfast.dev/cordon-reason": "GPU 0: XID 79",
        }
    }
    left = [taint("holdfast.dev/unhealthy", "NoSchedule")]
    assert not list(signs(machine(taints=left, metadata=ours), us=US))
    [sign] = signs(machine(taints=left, metadata=theirs), us=US)
    assert sign.detail == "was cordoned by job lab/other: GPU 0: XID 79"


def test_a_node_that_joins_later_is_told_of_its_machine() -> None:
    it = state("a")
    listens = listening(it, a="m0", b="m0")
    listens.see(machine(taints=[GONE]))
    assert listens.look("b") == [], "the controller does not know it yet"
    it.nodes["b"] = Node(node="b", name="b", address="", workers=1)
    [told] = listens.look("b")
    assert (told.node, told.severity) == ("b", Severity.FATAL)
    assert listens.look("b") == []
    del it.nodes["b"]
    assert listens.look("b") == []


def test_pods_that_are_gone_are_not_kept_for_ever() -> None:
    where = {"a": "m0"}
    listens = hearing(state("a"), where)
    listens.see(machine())
    for number in range(100):
        where[f"{number}"] = "m0"
        listens.look(f"{number}")
        del where[f"{number}"]
    assert len(listens._here["m0"]) == 2


def test_a_controller_that_comes_back_tells_only_what_has_changed_meanwhile() -> None:
    it = state("a")
    it.health["a"] = {
        f"{slug} ": HealthRecord(
            condition=slug, device="", severity=Severity.WARN, detail="", advice="", at=0.0
        )
        for slug in ("machine-cordoned", "machine-disk-pressure", "disk-full")
    }
    listens = listening(it, a="m0")
    [over] = listens.see(machine(unschedulable=True))
    assert (over.condition, over.severity) == ("machine-disk-pressure", Severity.OK)


def test_a_machine_that_was_removed_ends_nothing() -> None:
    listens = listening(state("a"), a="m0")
    listens.see(machine(wrong("Ready", "False")))
    listens.lose("m0")
    assert listens.look("a") == []


# ── in a cluster ──


class Hearing:
    """A watch over the machines of a cluster, and what it has told."""

    def __init__(self, api: Api, *nodes: str) -> None:
        self.state = state(*nodes)
        self.told: list[HealthChanged] = []
        listens = listening(self.state, a="m-0", b="m-0")
        self.avoided = Machines(api, asked("pods"))
        self.watch = MachineWatch(api, listens, self.avoided, self._told)

    def _told(self, *events: HealthChanged) -> None:
        self.told.extend(events)

    def joins(self, node: str) -> str:
        """The rack with which a node that joins is known."""
        joined = NodeJoined(node=node, name=node, address="", workers=1)
        told = self.watch.explained(joined)
        assert isinstance(told, NodeJoined)
        return told.rack

    def heard(self) -> list[tuple[str, str, str]]:
        return [(one.node, one.condition, str(one.severity)) for one in self.told]


def test_machines_are_watched_and_a_node_that_joins_is_told_of_its_own() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        there = Hearing(api, "a")
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(there.watch.run())
            await it.until(lambda: ("watch", "nodes") in it.server.calls)
            taint_machine(it, [GONE])
            await it.until(lambda: there.told)
            there.state.nodes["b"] = Node(node="b", name="b", address="", workers=1)
            there.watch.observe(NodeJoined(node="b", name="b", address="", workers=1))
            taint_machine(it, [])
            await it.until(lambda: len(there.told) == 4)
            watching.cancel()
        begun, over = ("machine-out-of-service", "fatal"), ("machine-out-of-service", "ok")
        assert there.heard() == [(node, *one) for one in (begun, over) for node in ("a", "b")]

    playing(story, machines=1)


def test_a_machine_that_is_seen_to_go_is_avoided_no_more() -> None:
    """Another one may have its name."""

    async def story(it: FakeCluster, api: Api) -> None:
        there = Hearing(api, "a")
        for name in ("m-0", "m-1"):
            there.avoided.goes(name)
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(there.watch.run())
            await it.until(lambda: list(there.avoided._left) == ["m-0"])  # no m-1 is there
            it.store.delete(NODES, "", "m-0")
            await it.until(lambda: not there.avoided._left)
            watching.cancel()

    playing(story, machines=1)


def test_without_the_right_it_is_said_once_and_tried_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_watch, "AGAIN_S", 0.001)

    async def story(it: FakeCluster, api: Api) -> None:
        it.server.access.denied.add(("list", "nodes"))
        there = Hearing(api, "a")
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(there.watch.run())
            await it.until(lambda: it.server.calls.count(("list", "nodes")) > 2)
            taint_machine(it, [GONE])
            it.server.access.denied.clear()
            await it.until(lambda: there.told)
            watching.cancel()

    playing(story, machines=1)
    assert capsys.readouterr().err.count("are not watched: no permission (") == 1


def taint_machine(it: FakeCluster, taints: list[dict[str, str]]) -> None:
    it.store.change(NODES, "", "m-0", lambda body: body["spec"].update(taints=taints))


def test_a_node_that_joins_is_known_with_the_rack_that_its_machine_is_labelled_with() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        labels = {"topology.kubernetes.io/zone": "z", "network.topology.nvidia.com/leaf": "leaf-3"}
        it.machine("m-0", labels=labels)
        there = Hearing(api, "a")
        assert there.joins("a") == "", "nobody has said"
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(there.watch.run())
            await it.until(lambda: there.joins("a"))
            watching.cancel()
        assert (there.joins("a"), there.joins("zzz")) == ("leaf-3", "")

    playing(story)


def test_the_label_that_names_the_nearest_rack_is_the_one_that_counts() -> None:
    listens = listening(state("a"), a="m0")
    for key in reversed(RACKS):
        labels = {other: other for other in RACKS[RACKS.index(key) :]}
        listens.see(machine(metadata={"labels": labels}))
        assert listens.rack("a") == key
    listens.lose("m0")
    assert listens.rack("a") == ""
