"""Why a pod waits and how it ended, in words that help."""

from typing import Any

import pytest

from holdfast.drivers.kubernetes.pods import (
    Pod,
    ending,
    main_container,
    summary,
    taken,
    waits_for,
)
from holdfast.drivers.kubernetes.roster import life
from tests.drivers.kubernetes.seen import RUNS, condition, ended, pod

CREATING: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    """A container that waits."""
    return {"waiting": {"reason": reason, "message": message}}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {
                "machine": "", "state": {},
                "conditions": [condition("PodScheduled", "False", "Unschedulable",
                                         "0/3 nodes are available: 3 Insufficient gpu.")],
            },
            "a machine: 0/3 nodes are available: 3 Insufficient gpu",
        ),
        (
            {
                "machine": "", "state": {},
                "conditions": [condition("PodScheduled", "False", "Unschedulable",
                                         "pod has unbound immediate PersistentVolumeClaims")],
            },
            "a volume: pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            {
                "machine": "", "state": {},
                "conditions": [condition("PodScheduled", "False", "SchedulingGated")],
            },
            "its scheduling gates to be lifted (a queue has not admitted it yet)",
        ),
        ({"machine": "", "state": {}}, "the scheduler"),
        (
            {"state": waiting("ImagePullBackOff", "no such tag")},
            "its image (ImagePullBackOff): no such tag",
        ),
        (
            {"state": waiting("CreateContainerConfigError", 'secret "x" not found')},
            'its configuration (CreateContainerConfigError): secret "x" not found',
        ),
        ({"state": CREATING}, "its containers to be created"),
        (
            {
                "state": waiting("PodInitializing"),
                "initContainerStatuses": [
                    {"name": "fetch-c4", "state": {"running": {}}, "ready": False}
                ],
            },
            "fetch-c4 to finish",
        ),
        ({}, None),
    ],
)  # fmt: skip
def test_a_pod_says_what_it_waits_for(keys: dict[str, Any], told: str | None) -> None:
    scheduled = [condition("PodScheduled", "True")] if keys.get("machine", "m0") else []
    keys = {"conditions": scheduled, "phase": "Pending", **keys}
    assert waits_for(pod(**keys)) == told


def proxied(**main: Any) -> Pod:
    """A pod to which a mesh has added a proxy that runs, was started again twice, and is not ready;
    kubelets list containers by their names."""
    proxy = {"name": "istio-proxy", "state": RUNS, "ready": False, "restartCount": 2}
    return pod(phase="Pending", containerStatuses=[proxy, {"name": "main", **main}])


def test_a_proxy_that_runs_is_no_agent_that_does() -> None:
    """For the minutes that an image takes to come, its node would be given up as silent."""
    pulled = proxied(state=waiting("ImagePullBackOff", "no such tag"))
    assert not pulled.running and not pulled.begun
    assert waits_for(pulled) == "its image (ImagePullBackOff): no such tag"


def test_what_starts_a_proxy_again_starts_no_agent_again() -> None:
    runs = proxied(state=RUNS)
    assert runs.running and runs.begun
    assert (life(runs), main_container(runs)) == ("uid-run-0", "main")


def test_an_agent_that_has_ended_beside_a_proxy_that_runs_on_was_there() -> None:
    """Its pod is never said to have ended: somebody has to notice that nobody registers."""
    gone = proxied(state={"terminated": {"exitCode": 1}})
    assert gone.begun and not gone.running and not gone.ended


def test_a_proxy_that_is_no_container_of_the_pod_hides_nothing_either() -> None:
    """Native sidecars are init containers that run on."""
    beside = [{"name": "istio-proxy", "state": RUNS, "ready": False, "restartCount": 2}]
    pulled = pod(state=waiting("ErrImagePull", "busy"), initContainerStatuses=beside)
    assert waits_for(pulled) == "its image (ErrImagePull): busy"


def test_a_pod_that_a_queue_holds_back_names_it_also_where_nobody_knows_the_job() -> None:
    """As in `list`, which reads no job files."""
    gated = [condition("PodScheduled", "False", "SchedulingGated")]
    held = pod("f", machine="", state={}, conditions=gated)
    held.metadata.labels["kueue.x-k8s.io/queue-name"] = "team-a"
    assert waits_for(held) == "queue team-a of Kueue to admit it"


def test_a_job_says_it_in_one_line() -> None:
    conditions = [condition("PodScheduled", "True")]
    pods = [
        pod("a", conditions=conditions),
        pod("b", phase="Pending", state=CREATING, conditions=conditions),
        pod("c", phase="Pending", state=CREATING, conditions=conditions),
        ended("d"),
    ]
    assert summary(pods, 4) == (
        "2 of 4 nodes wait for its containers to be created; "
        "1 of 4 nodes wait for the engine to create it"
    )
    assert summary([pod("a")], 1) is None
    spare = pod("e", phase="Pending", state=CREATING, conditions=conditions)
    assert summary([*pods[1:3], spare], 2) == "3 of 3 nodes wait for its containers to be created"
    gated = [condition("PodScheduled", "False", "SchedulingGated")]
    held = [pod("f", machine="", state={}, conditions=gated)]
    assert summary(held, 1, "team-a") == "1 of 1 node waits for queue team-a of Kueue to admit it"
    assert summary([], 2, "team-a") == (
        "2 of 2 nodes wait for queue team-a of Kueue to admit them, or the engine to create them"
    )


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"status": 143}, "its container exited with status 143"),
        (
            {"reason": "Evicted", "message": "low on memory"},
            "its pod was terminated (Evicted: low on memory)",
        ),
        (
            {"conditions": [condition("DisruptionTarget", "True", "EvictionByEvictionAPI", "api")]},
            "its pod was evicted, as `kubectl drain` does (EvictionByEvictionAPI: api)",
        ),
        ({"leaving": True}, "its pod was deleted"),
        ({"leaving": True, "reason": "Evicted"}, "its pod was terminated (Evicted)"),
    ],
)
def test_an_end_has_its_reason(keys: dict[str, Any], told: str) -> None:
    assert ending(ended(**keys)) == told


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("EvictionByEvictionAPI", "evicted"),
        ("PreemptionByScheduler", "preempted by a pod of higher priority"),
        ("DeletionByTaintManager", "removed from its machine"),
        ("DeletionByPodGC", "removed with its machine"),
        ("TerminationByKubelet", "terminated by its machine"),
        ("SomethingNew", "removed"),
    ],
)
def test_who_takes_a_pod_is_told_in_words_and_verbatim(reason: str, words: str) -> None:
    told = taken(pod(leaving=True, conditions=[condition("DisruptionTarget", "True", reason, "x")]))
    assert told.startswith(f"its pod was {words}") and told.endswith(f"({reason}: x)")


def test_a_pod_that_nobody_takes_has_nobody_named() -> None:
    assert taken(pod(conditions=[condition("DisruptionTarget", "False", "PodGC")])) == ""
    assert taken(pod(leaving=True)) == "its pod was deleted"


def test_the_container_that_failed_is_the_one_that_is_told() -> None:
    fetched = {"name": "fetch-c4", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}
    unpacked = {"name": "code", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    never = pod(
        phase="Failed", state=waiting("PodInitializing"), initContainerStatuses=[unpacked, fetched]
    )
    assert ending(never) == "its init container fetch-c4 exited with status 3"
    proxy = {"name": "istio-proxy", "state": {"terminated": {"exitCode": 0}}}
    main = {"name": "main", "state": {"terminated": {"exitCode": 1}}}
    assert ending(pod(phase="Failed", containerStatuses=[proxy, main])).endswith("status 1")


def test_out_of_memory_is_named() -> None:
    killed = pod(phase="Failed", state={"terminated": {"exitCode": 137, "reason": "OOMKilled"}})
    assert ending(killed) == "its container exited with status 137 (OOMKilled)"
