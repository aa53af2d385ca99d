"""A gang is as many pods as train, whatever schedules it; the others join when there is room."""

from typing import Any

import pytest

from holdfast.drivers.kubernetes.manifests import gang, native
from holdfast.drivers.kubernetes.manifests.engines import ENGINES
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.spec.cluster import Engine
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.schemas import problems

SPARES: dict[str, Any] = {
    "nodes": {"count": 8, "spares": 2},
    "resources": {"gpus": 8, "cpu": "1.5", "memory": "6Gi"},
}
OWN: tuple[Engine, ...] = ("pods", "job", "jobset")


def made(
    kind: str, engine: Engine = "job", version: tuple[int, int] = (1, 37), **scheduling: Any
) -> list[Body]:
    """Everything that this engine makes for a job with such a gang."""
    said = {"gang": kind, **scheduling}
    return ENGINES[engine](asked(engine, version=version, scheduling=said, **SPARES))


def groups(bodies: list[Body]) -> list[Body]:
    """The gang's own objects."""
    return [body for body in bodies if body["kind"] in {"Workload", "PodGroup"}]


def specs(value: object) -> list[Body]:
    """Specs of all pods and pod templates."""
    match value:
        case {"spec": {"containers": _} as found}:
            return [found]
        case dict():
            return [found for inner in value.values() for found in specs(inner)]
        case list():
            return [found for inner in value for found in specs(inner)]
        case _:
            return []


@pytest.mark.parametrize(
    ("engine", "version"),
    [(e, v) for e in OWN for v in native.SHAPES if v >= gang.NATIVE_SINCE[e]],
)
def test_native_gangs_are_accepted_by_their_version(
    engine: Engine, version: tuple[int, int]
) -> None:
    minor = f"{version[0]}.{version[1]}"
    for body in made("native", engine, version, topology="rack", priority_class="train"):
        assert problems(body, minor) == []


@pytest.mark.parametrize("version", list(native.SHAPES))
def test_objects_come_before_the_pods_that_name_them(version: tuple[int, int]) -> None:
    kinds = [body["kind"] for body in made("native", version=version)]
    assert kinds[0] == "Workload"
    assert kinds[-1] == "Job"


def test_each_version_has_its_own_shape() -> None:
    old, middle, new = (made("native", version=version) for version in native.SHAPES)
    [workload] = groups(old)
    [in_workload] = workload["spec"]["podGroups"]
    assert specs(old)[0]["workloadRef"] == {"name": "run", "podGroup": in_workload["name"]}
    for bodies in (middle, new):
        workload, group = groups(bodies)
        assert specs(bodies)[0]["schedulingGroup"]["podGroupName"] == group["metadata"]["name"]
        [template] = workload["spec"]["podGroupTemplates"]
        named = {
            k: v
            for k, v in group["spec"].items()
            if k not in {"podGroupTemplateRef", "workloadRef"}
        }
        assert {"name": template["name"], **named} == template
    assert groups(middle)[1]["spec"]["podGroupTemplateRef"]["workload"]["workloadName"] == "run"
    assert groups(new)[1]["spec"]["workloadRef"]["workloadName"] == "run"


def test_a_newer_kubernetes_than_any_known_shape_gets_the_newest() -> None:
    newer = native.objects(asked(version=(1, 40), scheduling={"gang": "native"}))
    assert newer == native.objects(asked(version=max(native.SHAPES), scheduling={"gang": "native"}))


@pytest.mark.parametrize("kind", ["native", "volcano", "coscheduling"])
@pytest.mark.parametrize("engine", OWN)
def test_a_gang_never_waits_for_its_spares(kind: str, engine: Engine) -> None:
    found = groups(made(kind, engine))[-1]["spec"]
    least = (
        found["schedulingPolicy"]["gang"]["minCount"] if kind == "native" else found["minMember"]
    )
    assert least == 8


def test_a_gang_that_may_shrink_starts_with_the_fewest() -> None:
    request = asked(nodes=8, elasticity={"min_nodes": 5}, scheduling={"gang": "volcano"})
    assert groups(ENGINES["job"](request))[0]["spec"]["minMember"] == 5


@pytest.mark.parametrize("kind", ["volcano", "coscheduling"])
@pytest.mark.parametrize("engine", OWN)
def test_other_schedulers_find_the_pods_of_their_group(kind: str, engine: Engine) -> None:
    bodies = made(kind, engine)
    [group] = groups(bodies)
    assert problems(group) == []
    assert group["metadata"]["name"] == "run"
    assert {spec["schedulerName"] for spec in specs(bodies)} == {gang.SCHEDULERS[kind]}
    mark = gang.VOLCANO_GROUP if kind == "volcano" else gang.COSCHEDULING_GROUP
    assert f"'{mark}': 'run'" in str(bodies[1:])


def test_a_scheduler_that_is_named_is_used() -> None:
    found = specs(made("volcano", scheduler="volcano-two"))
    assert [spec["schedulerName"] for spec in found] == ["volcano-two"]


def test_a_group_asks_for_what_its_fewest_need_and_no_more() -> None:
    for kind in ("volcano", "coscheduling"):
        [group] = groups(made(kind))
        assert group["spec"]["minResources"] == {
            "cpu": "12",
            "memory": "48Gi",
            "nvidia.com/gpu": "64",
        }


def test_sidecars_count_and_init_containers_that_end_do_not() -> None:
    small = {"resources": {"requests": {"cpu": "250m"}}}
    sidecar, before = (
        {"restartPolicy": "Always", **small},
        {"resources": {"requests": {"cpu": "9"}}},
    )
    template = {"spec": {"initContainers": [sidecar, before], "containers": [small]}}
    assert gang.minimum_resources(asked(nodes=3), template) == {"cpu": "1500m"}


def test_volcano_takes_its_queue_its_priority_and_a_tier() -> None:
    [group] = groups(made("volcano", queue="q", priority_class="train", topology="rack"))
    assert problems(group) == []
    assert (group["spec"]["queue"], group["spec"]["priorityClassName"]) == ("q", "train")
    assert group["spec"]["networkTopology"] == {"mode": "hard", "highestTierName": "rack"}


def test_coscheduling_waits_as_long_as_it_is_told() -> None:
    [group] = groups(made("coscheduling", gang_timeout_s=77))
    assert group["spec"]["scheduleTimeoutSeconds"] == 77


@pytest.mark.parametrize(
    ("keys", "mode"),
    [
        ({"nodes": 4}, {"all": {}}),
        ({"nodes": {"count": 4, "spares": 1}}, {"single": {}}),
        ({"nodes": 4, "elasticity": {"min_nodes": 3}}, {"single": {}}),
    ],
)
def test_preemption_takes_all_only_where_one_is_as_bad(
    keys: dict[str, Any], mode: dict[str, Any]
) -> None:
    _, group = native.objects(asked(scheduling={"gang": "native"}, **keys))
    assert group["spec"]["disruptionMode"] == mode


@pytest.mark.parametrize("kind", ["native", "volcano", "coscheduling"])
def test_spares_with_a_priority_of_their_own_stay_outside(kind: str) -> None:
    bodies = made(kind, "pods", spare_priority_class="low")
    pods = [body for body in bodies if body["kind"] == "Pod"]
    marks = ("podGroupName", gang.VOLCANO_GROUP, gang.COSCHEDULING_GROUP)
    inside = [any(mark in str(pod) for mark in marks) for pod in pods]
    assert inside == [True] * 8 + [False] * 2
    assert len({pod["spec"].get("schedulerName") for pod in pods}) == 1


def test_without_a_gang_nothing_is_added() -> None:
    assert [body["kind"] for body in made("none")] == ["Job"]


def test_what_works_depends_on_engine_mode_and_version() -> None:
    everything = ("native", "volcano", "coscheduling")
    assert gang.possible("job", "managed", (1, 35)) == everything
    assert gang.possible("job", "managed", (1, 34)) == everything[1:]
    assert gang.possible("jobset", "managed", (1, 35)) == everything[1:]
    assert gang.possible("jobset", "managed", (1, 36)) == everything
    assert gang.possible("cronjob", "managed", (1, 36)) == everything
    assert gang.possible("cronjob", "plain", (1, 36)) == ()
