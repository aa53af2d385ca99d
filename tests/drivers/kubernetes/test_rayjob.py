"""A RayJob submits the user's program to a RayCluster of its own, or runs agents beside Ray."""

import shlex
from typing import Any

import pytest

from holdfast.drivers.kubernetes.manifests.checks import problems as refused
from holdfast.drivers.kubernetes.manifests.engines import rayjob
from holdfast.drivers.kubernetes.manifests.render import render
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.errors import Error
from holdfast.spec.cluster import Mode
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.schemas import problems

ANNOTATION = "ray.io/overwrite-container-cmd"


def spec(mode: Mode = "plain", **keys: Any) -> Body:
    """The spec of the RayJob of such a job, which is accepted strictly."""
    found = rayjob.bodies(asked("rayjob", mode, **keys))[-1]
    assert problems(found) == []
    assert (found["apiVersion"], found["kind"]) == ("ray.io/v1", "RayJob")
    return dict(found["spec"])


def templates(mode: Mode = "plain", **keys: Any) -> tuple[Body, Body, Body]:
    """Those of the head, the workers and the submitter."""
    found = spec(mode, **keys)
    cluster = found["rayClusterSpec"]
    [workers] = cluster["workerGroupSpecs"]
    return cluster["headGroupSpec"]["template"], workers["template"], found["submitterPodTemplate"]


def main(template: Body) -> Body:
    """The container that is Ray's."""
    return dict(template["spec"]["containers"][0])


def told(mode: Mode = "managed", **keys: Any) -> list[Error]:
    return list(refused(asked("rayjob", mode, **keys)))


# ── plain ──


def test_the_entrypoint_is_the_program_and_every_pod_runs_what_kuberay_puts_in() -> None:
    found = spec(args=["--lr", "3e-4", "it's $HOME"], nodes=4)
    assert shlex.split(found["entrypoint"]) == ["python", "train.py", "--lr", "3e-4", "it's $HOME"]
    assert all("command" not in main(template) for template in templates())
    assert all(ANNOTATION not in t["metadata"].get("annotations", {}) for t in templates())


def test_all_workers_are_one_group_which_nobody_resizes() -> None:
    [group] = spec(nodes=4)["rayClusterSpec"]["workerGroupSpecs"]
    assert {group[key] for key in ("replicas", "minReplicas", "maxReplicas")} == {4}


def test_the_head_writes_results_but_has_no_gpus_and_takes_no_tasks() -> None:
    keys: dict[str, Any] = {
        "resources": {"gpus": 8}, "checkpoints": {"shared": {"pvc": "ckpt"}},
        "ray": {"head_cpu": "4", "head_memory": "16Gi"},
    }  # fmt: skip
    head, worker, submitter = templates(**keys)
    assert main(head)["resources"]["requests"] == {"cpu": "4", "memory": "16Gi"}
    assert main(worker)["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    mounted = [{m["name"] for m in main(t).get("volumeMounts", [])} for t in (head, submitter)]
    assert ["checkpoints-shared" in names for names in mounted] == [True, False]
    cluster = spec(**keys)["rayClusterSpec"]
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}


def test_restarts_are_new_clusters_and_the_time_limit_is_that_of_the_rayjob() -> None:
    found = spec(recovery={"max_restarts": 3}, lifetime={"time_limit_s": 3600})
    assert (found["backoffLimit"], found["activeDeadlineSeconds"]) == (3, 3600)
    assert "submitterConfig" not in found


# ── managed ──


def test_workers_run_agents_beside_ray_and_the_entrypoint_waits_for_the_end() -> None:
    found = spec("managed", nodes=2)
    assert found["entrypoint"] == "holdfast agent --wait"
    assert found["backoffLimit"] == 0, "a retry would be a new start of everything"
    assert found["submitterConfig"] == {"backoffLimit": 2**31 - 1}
    head, worker, submitter = templates("managed")
    assert main(worker)["command"] == ["holdfast", "agent"]
    assert worker["metadata"]["annotations"][ANNOTATION] == "true"
    assert worker["spec"]["restartPolicy"] == "OnFailure"
    assert {"readinessProbe", "livenessProbe"} <= main(worker).keys(), "not those of the raylet"
    assert all("command" not in main(template) for template in (head, submitter))
    assert submitter["spec"]["restartPolicy"] == "OnFailure", "the next head comes, however often"


def test_the_head_can_ask_the_controller_how_the_job_has_ended() -> None:
    head, _, _ = templates("managed")
    assert {"job", "token"} <= {mount["name"] for mount in main(head)["volumeMounts"]}
    assert {"HOLDFAST_CONTROLLER", "HOLDFAST_TOKEN_FILE"} <= {v["name"] for v in main(head)["env"]}


# ── both ──


@pytest.mark.parametrize("mode", ["plain", "managed"])
def test_what_is_suspended_or_queued_takes_its_cluster_down(mode: Mode) -> None:
    assert spec(mode)["shutdownAfterJobFinishes"] is True
    assert spec(mode, lifetime={"suspend": True})["suspend"] is True
    queued = spec(mode, scheduling={"kueue": {"queue": "team", "multi": True}})
    assert (queued["suspend"], queued["managedBy"]) == (True, "kueue.x-k8s.io/multikueue")


@pytest.mark.parametrize("mode", ["plain", "managed"])
def test_only_pods_of_the_job_and_the_operator_reach_the_dashboard(mode: Mode) -> None:
    [policy] = [b for b in render(asked("rayjob", mode)) if b["kind"] == "NetworkPolicy"]
    by_port = {
        port["port"]: rule.get("from")
        for rule in policy["spec"]["ingress"]
        for port in rule.get("ports", [])
    }
    labels = {"app.kubernetes.io/component": "kuberay-operator"}
    sender = {"namespaceSelector": {}, "podSelector": {"matchLabels": labels}}
    assert by_port[8265] == [sender]


def test_the_budget_counts_the_head_and_not_the_submitter() -> None:
    bodies = render(asked("rayjob", nodes=4))
    [budget] = [b for b in bodies if b["kind"] == "PodDisruptionBudget"]
    assert budget["spec"]["minAvailable"] == 4, "one of four nodes and a head"
    head, worker, submitter = templates("managed")
    roles = [t["metadata"]["labels"]["holdfast.dev/role"] for t in (head, worker, submitter)]
    assert roles == ["launcher", "node", "submitter"]


def test_a_gang_is_the_workers_without_the_head() -> None:
    request = asked("rayjob", nodes=4, scheduling={"gang": "volcano"})
    group, job = rayjob.bodies(request)
    assert (group["kind"], group["spec"]["minMember"]) == ("PodGroup", 4)
    cluster = job["spec"]["rayClusterSpec"]
    [workers] = cluster["workerGroupSpecs"]
    mark = {"scheduling.k8s.io/group-name": "run"}
    assert mark.items() <= workers["template"]["metadata"]["annotations"].items()
    assert workers["template"]["spec"]["schedulerName"] == "volcano"
    assert "schedulerName" not in cluster["headGroupSpec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("mode", "keys", "path", "why"),
    [
        ("managed", {"nodes": {"count": 2, "spares": 1}}, "nodes.spares", "would hold it back"),
        ("managed", {"elasticity": {"min_nodes": 1}, "nodes": 2}, "elasticity", "disregards"),
        ("plain", {"elasticity": {"min_nodes": 1}, "nodes": 2}, "elasticity", "disregards"),
        ("managed", {"lifetime": {"keep_s": 60}}, "lifetime.keep_s", "RayCluster only"),
        ("plain", {"workers_per_node": 8}, "workers_per_node", "tells Ray"),
        ("plain", {"env": {"RAY_ADDRESS": "a:1"}}, "env.RAY_ADDRESS", ""),
        ("plain", {"env": {"RAY_CLUSTER_NAMESPACE": "a"}}, "env.RAY_CLUSTER_NAMESPACE", ""),
        ("managed", {"scheduling": {"gang": "native"}}, "scheduling.gang", "volcano"),
        ("managed", {"name": "r" * 48}, "name", "DNS label"),
    ],
)
def test_what_a_rayjob_cannot_do_is_refused(
    mode: Mode, keys: dict[str, Any], path: str, why: str
) -> None:
    [error] = told(mode, **keys)
    assert error.what.startswith(path)
    assert why in error.why


def test_a_name_as_long_as_kuberay_takes_it_is_fine() -> None:
    assert told(name="r" * 47) == []


def test_the_head_is_only_a_rayjobs() -> None:
    [error] = refused(asked("pods", ray={"head_cpu": "4"}))
    assert "rayjob" in error.help
