"""deploy/spares: machines that are kept for whichever job of a cluster loses a node first."""

from typing import Any

from holdfast.controller import Limits
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    PODS,
    PRIORITIES,
    SERVICE_ACCOUNTS,
)
from holdfast.drivers.kubernetes.left_machines import Machines
from holdfast.drivers.kubernetes.roster import Roster
from holdfast.drivers.kubernetes.supply import Supply
from tests import quick_yaml
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.playing import playing
from tests.drivers.kubernetes.test_roster import state
from tests.tidy.source import ROOT

Body = dict[str, Any]
POOL = ROOT / "deploy" / "spares"
LABEL = {"app.kubernetes.io/name": "holdfast-spares"}
JOBS = 5


def bodies(name: str) -> list[Body]:
    return quick_yaml.load_all((POOL / name).read_text())


async def cluster_with_a_pool(it: FakeCluster) -> None:
    """A machine for each of the jobs, and one that is kept."""
    for body in bodies("classes.yaml"):
        it.store.create(PRIORITIES, "", body)
    (pool,) = bodies("pool.yaml")
    pod = pool["spec"]["template"]["spec"]
    pod["initContainers"][0]["command"] = ["true"]
    for container in (*pod["initContainers"], *pod["containers"]):
        container["image"] = "img:1"
    pool["metadata"]["namespace"] = "default"
    it.store.create(DEPLOYMENTS, "default", pool)
    it.machine("spare-0", cpu="4")
    await it.until(lambda: kept(it) == "spare-0")


def kept(it: FakeCluster) -> str:
    """The machine of the pool's pod, once there is one."""
    pods = [
        p for p in it.store.all(PODS) if LABEL.items() <= p["metadata"].get("labels", {}).items()
    ]
    there = [p for p in pods if "deletionTimestamp" not in p["metadata"]]
    return next((p["spec"]["nodeName"] for p in there if p["spec"].get("nodeName")), "")


def supply(it: FakeCluster, api: Api, name: str, priority_class: str) -> Supply:
    """Of a job that trains on one node, and has no spare of its own."""
    keys = {"replacement_priority_class": priority_class}
    request = asked("pods", name=name, nodes={"count": 1}, resources={"cpu": 4}, scheduling=keys)
    known = state(asked=1)
    known.limits, known.attempt = Limits(node_count=1), 1
    if it.store.find(CONFIG_MAPS, "default", f"{name}-job") is None:
        it.store.create(SERVICE_ACCOUNTS, "default", {"metadata": {"name": name}})
        made = {"metadata": {"name": f"{name}-job"}, "data": {}}
        it.store.create(CONFIG_MAPS, "default", made)
    return Supply(api, request, known, Roster(known), Machines(api, request))


def place(it: FakeCluster, name: str) -> str:
    found: str = (it.store.find(PODS, "default", name) or {"spec": {}})["spec"].get("nodeName", "")
    return found


def test_one_spare_serves_five_jobs_one_after_the_other() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await cluster_with_a_pool(it)
        for number in range(JOBS):
            machine, name = kept(it), f"job-{number}"
            await supply(it, api, name, "holdfast-replacement").make_missing()
            await it.until(lambda: place(it, f"{name}-0") == machine)  # noqa: B023
            assert kept(it) == "", "and no other machine is taken from anybody"
            it.machine(f"repaired-{number}", cpu="4")
            await it.until(lambda: kept(it) == f"repaired-{number}")  # noqa: B023

    playing(story)


def test_where_more_is_lost_than_is_kept_jobs_come_before_the_pool_and_important_ones_first() -> (
    None
):
    async def story(it: FakeCluster, api: Api) -> None:
        await cluster_with_a_pool(it)
        await supply(it, api, "first", "holdfast-replacement-urgent").make_missing()
        await it.until(lambda: place(it, "first-0") == "spare-0")
        await supply(it, api, "second", "holdfast-replacement").make_missing()
        it.machine("repaired-1", cpu="4")
        await it.until(lambda: place(it, "second-0") == "repaired-1")
        assert kept(it) == "" and place(it, "first-0") == "spare-0"
        await supply(it, api, "third", "holdfast-replacement-urgent").make_missing()
        await it.until(lambda: place(it, "third-0") == "repaired-1")

    playing(story)


def test_ordinary_work_does_not_take_it() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await cluster_with_a_pool(it)
        container = {"name": "main", "image": "img:1", "resources": {"requests": {"cpu": "4"}}}
        pod = {"metadata": {"name": "new"}, "spec": {"containers": [container]}}
        await api.create({"apiVersion": "v1", "kind": "Pod", **pod})
        await it.until(lambda: (it.store.find(PODS, "default", "new") or {}).get("status"))
        assert kept(it) == "spare-0" and not place(it, "new")

    playing(story)
