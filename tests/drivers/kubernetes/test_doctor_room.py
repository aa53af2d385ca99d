"""Room for a job, counted as the scheduler would, against a slow count by hand."""

from fractions import Fraction
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.drivers.kubernetes.doctor_room import NodeObject, Using, demand, needs, room
from tests.drivers.kubernetes.asking import asked
from tests.more import examples

READY = [{"type": "Ready", "status": "True"}]


def machine(name: str = "m", *, taints: Any = (), labels: Any = None, **have: str) -> NodeObject:
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {"taints": list(taints)},
            "status": {"allocatable": {"pods": "110", **have}, "conditions": READY},
        },
        NodeObject,
    )


def using(machine: str, **requests: str) -> Using:
    containers = [{"resources": {"requests": requests}}]
    return msgspec.convert({"spec": {"nodeName": machine, "containers": containers}}, Using)


GPU = "nvidia.com/gpu"
JOB: dict[str, Any] = {"nodes": {"count": 2, "spares": 1}, "resources": {"gpus": 8, "cpu": "4"}}


def test_a_node_asks_for_what_its_resources_say() -> None:
    found = needs(asked("pods", **JOB))
    assert (found[GPU], found["cpu"]) == (Fraction(8), Fraction(4))


def test_what_others_use_is_not_free() -> None:
    have = {"cpu": "64", GPU: "8"}
    machines = [machine("a", **have), machine("b", **have)]
    found = room(asked("pods", **JOB), machines, [using("b", **{GPU: "1"})])
    assert (found.nodes, found.machines, found.lacking) == (1, 2, {GPU: 1})


def test_pods_that_have_ended_use_nothing() -> None:
    ended = msgspec.structs.replace(
        using("a", **{GPU: "8"}), status=msgspec.convert({"phase": "Succeeded"}, _phase())
    )
    assert room(asked("pods", **JOB), [machine("a", cpu="64", **{GPU: "8"})], [ended]).nodes == 1


def _phase() -> type[Any]:
    return type(using("a").status)


def test_machines_that_are_tainted_away_or_not_ready_do_not_count() -> None:
    have = {"cpu": "64", GPU: "8"}
    ours = {"key": GPU, "effect": "NoSchedule"}  # tolerated by whoever asks for GPUs
    away = {"key": "maintenance", "effect": "NoSchedule"}
    soft = {"key": "maintenance", "effect": "PreferNoSchedule"}
    sick = msgspec.structs.replace(
        machine("d", **have), spec=msgspec.convert({"unschedulable": True}, type(machine().spec))
    )
    machines = [
        machine("a", taints=[ours], **have),
        machine("b", taints=[away], **have),
        machine("c", taints=[soft], **have),
        sick,
    ]
    found = room(asked("pods", **JOB), machines, [])
    assert (found.nodes, found.machines, found.of) == (2, 2, 4)


def test_only_selected_machines_count() -> None:
    request = asked("pods", **JOB, scheduling={"node_selector": {"pool": "a"}})
    have = {"cpu": "64", GPU: "8"}
    machines = [machine("a", labels={"pool": "a"}, **have), machine("b", **have)]
    assert room(request, machines, []).nodes == 1


def test_nodes_that_share_no_machine_take_one_each() -> None:
    request = asked("pods", nodes=3, scheduling={"one_per_machine": True})
    assert room(request, [machine("a", cpu="64"), machine("b", cpu="64")], []).nodes == 2


@settings(max_examples=examples(60), deadline=None)
@given(
    cpus=st.integers(1, 4),
    frees=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=4),
)
def test_as_many_fit_as_one_after_the_other_can_be_placed(
    cpus: int, frees: list[tuple[int, int]]
) -> None:
    request = asked("pods", nodes=100, resources={"cpu": str(cpus)})
    machines = [machine(f"m{i}", cpu=str(have)) for i, (have, _) in enumerate(frees)]
    pods = [using(f"m{i}", cpu=str(used)) for i, (_, used) in enumerate(frees)]
    left, placed = [have - used for have, used in frees], 0
    for i in range(len(left)):
        while left[i] >= cpus:
            left[i] -= cpus
            placed += 1
    assert room(request, machines, pods).nodes == placed


def test_a_quota_is_asked_for_the_whole_job_and_its_controller() -> None:
    found = demand(asked("pods", **JOB))
    assert found["pods"] == 4
    assert found[f"requests.{GPU}"] == 24
    assert found["requests.cpu"] == found["cpu"] == Fraction(12)
