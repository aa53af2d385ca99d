"""Kueue finds its queue, its priority, its topology and the least it may admit."""

from typing import Any

import pytest

from holdfast.controller import Controller, Limits
from holdfast.drivers.kubernetes.admitted_size import AdmittedSize
from holdfast.drivers.kubernetes.engine_size import EngineSize
from holdfast.drivers.kubernetes.manifests import kueue
from holdfast.drivers.kubernetes.manifests.engines import ENGINES
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.roster import Roster
from holdfast.events import ScaleRequested
from holdfast.spec.cluster import Engine, Mode
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.schemas import problems

SPARES: dict[str, Any] = {"nodes": {"count": 8, "spares": 2}}


def made(engine: Engine = "job", mode: Mode = "managed", **said: Any) -> list[Body]:
    """What this engine makes for a job in the queue `q`, accepted strictly."""
    keys: dict[str, Any] = dict(SPARES) if mode == "managed" else {"nodes": 8}
    if elastic := said.pop("_elasticity", None):
        keys["elasticity"] = elastic
    scheduling = {"kueue": {"queue": "q", **said}}
    found = ENGINES[engine](asked(engine, mode, scheduling=scheduling, **keys))
    assert problems(found[0]) == problems(found[-1]) == []
    return found


def marks(body: Body, kind: str) -> dict[str, str]:
    """Kueue's labels or annotations of a body, without their domain."""
    found = body["metadata"].get(kind, {}).items()
    domain = f"{kueue.DOMAIN}/"
    return {key.removeprefix(domain): text for key, text in found if key.startswith(domain)}


@pytest.mark.parametrize("engine", ["job", "jobset"])
@pytest.mark.parametrize("mode", ["managed", "plain"])
def test_the_top_object_waits_in_its_queue(engine: Engine, mode: Mode) -> None:
    [body] = made(engine, mode, priority="hi", max_time_s=60)
    assert body["spec"]["suspend"] is True
    assert marks(body, "labels") == {
        "queue-name": "q",
        "priority-class": "hi",
        "max-exec-time-seconds": "60",
    }


@pytest.mark.parametrize("engine", ["job", "jobset"])
def test_several_clusters_are_kueues_business(engine: Engine) -> None:
    [body] = made(engine, multi=True)
    assert body["spec"]["managedBy"] == "kueue.x-k8s.io/multikueue"
    assert "managedBy" not in made(engine)[0]["spec"]


@pytest.mark.parametrize(("required", "word"), [(False, "preferred"), (True, "required")])
def test_the_topology_is_on_the_pod_template(required: bool, word: str) -> None:
    [job] = made(topology="rack", topology_required=required)
    assert marks(job["spec"]["template"], "annotations") == {f"podset-{word}-topology": "rack"}
    [jobset] = made("jobset", topology="rack", topology_required=required)
    [node] = jobset["spec"]["replicatedJobs"]
    found = marks(node["template"]["spec"]["template"], "annotations")
    assert found == {f"podset-{word}-topology": "rack"}


def test_spares_are_what_a_partial_admission_leaves_out() -> None:
    [job] = made(partial=True)
    assert marks(job, "annotations") == {
        "job-min-parallelism": "8",
        "job-completions-equal-parallelism": "true",
    }
    assert marks(made()[0], "annotations") == {}


def test_a_job_that_may_shrink_may_be_admitted_with_its_fewest() -> None:
    scheduling = {"kueue": {"queue": "q", "partial": True}}
    request = asked("job", "plain", nodes=8, elasticity={"min_nodes": 5}, scheduling=scheduling)
    [job] = ENGINES["job"](request)
    assert marks(job, "annotations")["job-min-parallelism"] == "5"


def test_partial_admission_says_nothing_where_nothing_can_be_left_out() -> None:
    """Kueue refuses a least that is not less."""
    [job] = made(mode="plain", partial=True)
    assert marks(job, "annotations") == {}


def test_pods_are_a_group_of_exactly_their_number() -> None:
    pods = made("pods", priority="hi", topology="rack")
    assert len(pods) == 10
    for pod in pods:
        assert marks(pod, "labels") == {
            "queue-name": "q",
            "priority-class": "hi",
            "pod-group-name": "run",
        }
        assert marks(pod, "annotations") == {
            "pod-group-total-count": "10",
            "podset-preferred-topology": "rack",
        }


def test_spares_with_a_priority_of_their_own_are_a_workload_of_their_own() -> None:
    nodes, spares = made(priority="hi", spare_priority="low")
    assert [marks(job, "labels")["priority-class"] for job in (nodes, spares)] == ["hi", "low"]
    assert (nodes["spec"]["completions"], spares["spec"]["completions"]) == (8, 2)
    pods = made("pods", spare_priority="low")
    assert marks(pods[7], "labels") == {"queue-name": "q", "pod-group-name": "run"}
    assert marks(pods[8], "labels") == {
        "queue-name": "q",
        "priority-class": "low",
        "pod-group-name": "run-spare",
    }
    counts = [marks(pod, "annotations")["pod-group-total-count"] for pod in pods]
    assert counts == ["8"] * 8 + ["2"] * 2


def test_without_a_queue_nothing_is_added() -> None:
    body = {"metadata": {"name": "run"}, "spec": {"template": {}}}
    assert kueue.apply(asked(), body) is body
    assert kueue.pod(asked(), body) is body
    assert kueue.topology(asked(), body) is body
    assert kueue.labels(asked()) == {}


def test_keys_that_an_engine_keeps_deeper_are_put_there() -> None:
    request = asked("pytorchjob", scheduling={"kueue": {"queue": "q", "multi": True}})
    body: Body = {"metadata": {"name": "run"}, "spec": {"runPolicy": {"cleanPodPolicy": "Running"}}}
    assert kueue.apply(request, body)["spec"]["runPolicy"] == {
        "suspend": True,
        "managedBy": kueue.MULTI,
        "cleanPodPolicy": "Running",
    }
    assert kueue.apply(request, {"metadata": {}, "spec": {}})["spec"]["runPolicy"]["suspend"]


def test_an_elastic_job_may_be_admitted_with_as_few_nodes_as_it_trains_on() -> None:
    [body] = made(partial=True, _elasticity={"min_nodes": 3})
    assert marks(body, "annotations")["job-min-parallelism"] == "3"


def test_it_trains_on_what_was_admitted_and_on_more_once_more_was() -> None:
    scheduling = {"kueue": {"queue": "q", "partial": True}}
    request = asked("job", scheduling=scheduling, elasticity={"min_nodes": 3}, **SPARES)
    controller = Controller(Limits.of(request.job))
    told: list[int] = []

    def put(event: ScaleRequested) -> None:
        told.append(event.nodes)
        controller.handle(event, 0.0)

    api: Any = None
    admitted = AdmittedSize(api, request, controller.state, put)
    assert admitted.may_differ
    for suspended, pods in ((True, 10), (False, 9), (False, 5), (False, 5), (True, 10), (False, 7)):
        admitted.look({"spec": {"suspend": suspended, "completions": pods}})
    assert told == [5, 7], "nine are all nodes and a spare"
    controller.handle(ScaleRequested(by="holdfast scale", nodes=4), 1.0)
    admitted.look({"spec": {"completions": 7}})
    assert told == [5, 7], "fewer were asked for since"
    assert not EngineSize(api, request, controller.state, Roster(controller.state)).can_change
