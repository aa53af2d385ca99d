"""Pods of our own: as many as nodes and spares, alike but for their names."""

from typing import Any

import pytest

from holdfast.drivers.kubernetes.manifests.engines import pods
from holdfast.drivers.kubernetes.manifests.names import ROLE
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.spec.cluster import Mode
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.schemas import problems


def made(mode: Mode = "managed", **keys: Any) -> list[Body]:
    """The pods of such a job; the first and the last are accepted strictly."""
    found = [b for b in pods.bodies(asked("pods", mode, **keys)) if b["kind"] == "Pod"]
    assert problems(found[0]) == problems(found[-1]) == []
    return found


def names(found: list[Body]) -> list[str]:
    """Their names."""
    return [pod["metadata"]["name"] for pod in found]


SPARES: dict[str, Any] = {"nodes": {"count": 2, "spares": 1}}


def test_there_is_a_pod_for_every_node_and_spare() -> None:
    assert names(made(**SPARES)) == ["run-0", "run-1", "run-2"]
    assert names(made("plain", nodes=2)) == ["run-0", "run-1"]


def test_a_pod_is_reached_by_its_name() -> None:
    for pod in made(**SPARES):
        assert pod["spec"]["hostname"] == pod["metadata"]["name"]
        assert pod["spec"]["subdomain"] == "run"


def test_pods_differ_in_nothing_but_their_names() -> None:
    first, *others = made(**SPARES)
    for other in others:
        same = pods.named(other, "run-0")
        assert {**same, "spec": {**same["spec"], "hostname": "run-0"}} == first


def test_spares_are_told_apart_only_by_a_priority_of_their_own() -> None:
    roles = [pod["metadata"]["labels"][ROLE] for pod in made(**SPARES)]
    assert roles == ["node", "node", "node"]
    apart = made(**SPARES, scheduling={"spare_priority_class": "low"})
    assert [pod["metadata"]["labels"][ROLE] for pod in apart] == ["node", "node", "spare"]
    assert [pod["spec"].get("priorityClassName") for pod in apart] == [None, None, "low"]


def test_namespace_labels_and_annotations_are_on_every_pod() -> None:
    said = {"labels": {"team": "a"}, "annotations": {"note": "b"}}
    request = asked("pods", namespace="space", nodes=2, metadata=said)
    for pod in pods.bodies(request):
        metadata = pod["metadata"]
        assert metadata["namespace"] == "space"
        assert metadata["labels"]["team"] == "a"
        assert metadata["annotations"]["note"] == "b"


def test_a_suspended_pod_waits_at_a_gate() -> None:
    [pod] = made(lifetime={"suspend": True, "time_limit_s": 60})
    assert pod["spec"]["schedulingGates"] == [{"name": "holdfast.dev/suspended"}]
    assert pod["spec"]["activeDeadlineSeconds"] == 60
    assert not {"schedulingGates", "activeDeadlineSeconds"} & made()[0]["spec"].keys()


@pytest.mark.parametrize(
    ("mode", "keys", "restart"),
    [
        ("managed", {"command": ["prog"]}, "Never"),
        ("plain", {}, "Never"),
        ("plain", {"command": ["prog"]}, "OnFailure"),
        ("plain", {"command": ["prog"], "recovery": {"max_restarts": 0}}, "Never"),
    ],
)
def test_only_a_command_that_nobody_else_restarts_is_restarted_by_the_machine(
    mode: Mode, keys: dict[str, Any], restart: str
) -> None:
    [pod] = made(mode, **keys)
    assert pod["spec"]["restartPolicy"] == restart


def test_plain_processes_meet_at_the_first_pod() -> None:
    [pod, _] = made("plain", nodes=2)
    assert "--rdzv-endpoint=run-0.run:29400" in pod["spec"]["containers"][0]["command"]


def test_all_pods_of_a_large_job_share_one_spec() -> None:
    found = made(nodes={"count": 512, "spares": 8})
    assert len(set(names(found))) == 520
    assert len({id(pod["spec"]["containers"]) for pod in found}) == 1
