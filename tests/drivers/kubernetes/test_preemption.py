"""A pod that replaces a lost node may preempt other work, and only such a pod."""

from typing import Any

from holdfast.controller import Limits
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, PODS, PRIORITIES, SERVICE_ACCOUNTS
from holdfast.drivers.kubernetes.left_machines import Machines
from holdfast.drivers.kubernetes.roster import Roster
from holdfast.drivers.kubernetes.supply import Supply
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.playing import playing
from tests.drivers.kubernetes.test_checks import told
from tests.drivers.kubernetes.test_roster import state

Body = dict[str, Any]
SLEEP = {"name": "main", "image": "img:1", "command": ["sleep", "1000"]}
WHOLE = {"resources": {"requests": {"cpu": "4"}}}  # of a machine


def other(name: str, priority_class: str) -> Body:
    spec = {
        "containers": [SLEEP | WHOLE],
        "priorityClassName": priority_class,
        "terminationGracePeriodSeconds": 1,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def ready(it: FakeCluster, api: Api, *pods: Body) -> None:
    """Machines that others fill, and a job without nodes."""
    for name, value in (("low", -10), ("high", 5000), ("urgent", 1000)):
        body = {"metadata": {"name": name}, "value": value}
        it.store.create(PRIORITIES, "", body)
    it.store.create(SERVICE_ACCOUNTS, "default", {"metadata": {"name": "run"}})
    it.store.create(CONFIG_MAPS, "default", {"metadata": {"name": "run-job"}, "data": {}})
    for number, body in enumerate(pods):
        it.machine(f"m-{number}", cpu="4")
        await api.create(body)


def supply(api: Api, attempt: int, **scheduling: str) -> Supply:
    keys = {"replacement_priority_class": "urgent", **scheduling}
    request = asked("pods", nodes={"count": 1}, resources={"cpu": 4}, scheduling=keys)
    known = state(asked=1)
    known.limits, known.attempt = Limits(node_count=1), attempt
    return Supply(api, request, known, Roster(known), Machines(api, request))


def pod(it: FakeCluster, name: str) -> Body:
    return it.store.find(PODS, "default", name) or {}


async def others_run(it: FakeCluster, *names: str) -> None:
    await it.until(lambda: all(pod(it, name)["spec"].get("nodeName") for name in names))


def test_a_replacement_takes_the_place_of_lower_priority_and_never_of_higher() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await ready(it, api, other("low", "low"), other("high", "high"))
        await others_run(it, "low", "high")
        at = pod(it, "low")["spec"]["nodeName"]
        await supply(api, attempt=1).make_missing()
        assert pod(it, "run-0")["spec"]["priorityClassName"] == "urgent"
        await it.until(lambda: pod(it, "run-0")["spec"].get("nodeName") == at)
        low = pod(it, "low")
        assert not low or "deletionTimestamp" in low["metadata"]
        assert "deletionTimestamp" not in pod(it, "high")["metadata"]

    playing(story)


def test_the_first_pods_of_a_job_preempt_nobody() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await ready(it, api, other("low", "low"))
        await others_run(it, "low")
        await supply(api, attempt=0, priority_class="low").make_missing()
        assert pod(it, "run-0")["spec"]["priorityClassName"] == "low"
        await it.until(lambda: pod(it, "run-0").get("status", {}).get("conditions"))
        assert "deletionTimestamp" not in pod(it, "low")["metadata"]

    playing(story)


def test_where_it_cannot_be_it_is_refused() -> None:
    keys = {"replacement_priority_class": "urgent"}
    assert told("pods", scheduling=keys) == []
    refused = [("engine-unsupported", "scheduling.replacement_priority_class")]
    assert told("job", scheduling=keys) == refused
    assert told("pods", mode="plain", scheduling=keys) == refused
    clash = told("pods", scheduling={**keys, "gang": "volcano"})
    assert clash == [("settings-conflict", "scheduling.replacement_priority_class")]
