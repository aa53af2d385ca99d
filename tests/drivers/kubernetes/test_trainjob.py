"""A TrainJob says how many; all else stands in the runtime that is made for it."""

from typing import Any

import pytest

from holdfast.drivers.kubernetes.manifests.engines import trainjob
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.spec.cluster import Mode
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.schemas import problems

SPARES: dict[str, Any] = {"nodes": {"count": 8, "spares": 2}}


def made(mode: Mode = "managed", **keys: Any) -> tuple[Body, Body]:
    """TrainingRuntime and TrainJob of such a job, both accepted strictly."""
    *_, runtime, train = trainjob.bodies(asked("trainjob", mode, **keys))
    assert problems(runtime) == problems(train) == []
    assert train["spec"]["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org",
        "kind": runtime["kind"],
        "name": runtime["metadata"]["name"],
    }
    return runtime["spec"], train["spec"]


def jobs(mode: Mode = "managed", **keys: Any) -> dict[str, Body]:
    """The Jobs in the runtime."""
    runtime, _ = made(mode, **keys)
    return {each["name"]: each for each in runtime["template"]["spec"]["replicatedJobs"]}


def main(replicated: Body) -> Body:
    """The main container of a Job's pods."""
    return dict(replicated["template"]["spec"]["template"]["spec"]["containers"][0])


# ── managed ──


def test_agents_get_no_second_source_of_ranks() -> None:
    runtime, train = made(**SPARES)
    assert runtime["mlPolicy"] == {"numNodes": 10}
    assert train["trainer"] == {"numNodes": 10}
    assert main(jobs(**SPARES)["node"])["command"] == ["holdfast", "agent"]


def test_the_job_inside_replaces_pods_and_ends_without_the_spares() -> None:
    job = jobs(**SPARES)["node"]["template"]["spec"]
    assert job["backoffLimit"] == 2**31 - 1
    assert job["podReplacementPolicy"] == "TerminatingOrFailed"
    assert job["successPolicy"] == {"rules": [{"succeededCount": 8}]}
    assert made(**SPARES)[0]["template"]["spec"]["failurePolicy"] == {"maxRestarts": 0}


def test_the_gang_is_our_own_and_does_not_count_spares() -> None:
    scheduling = {"gang": "volcano", "topology": "rack"}
    group, runtime, _ = trainjob.bodies(asked("trainjob", **SPARES, scheduling=scheduling))
    assert group["spec"]["minMember"] == 8
    assert group["spec"]["networkTopology"] == {"mode": "hard", "highestTierName": "rack"}
    assert "podGroupPolicy" not in runtime["spec"]
    [node] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert node["template"]["spec"]["template"]["spec"]["schedulerName"] == "volcano"


def test_the_runtime_comes_before_the_job_that_names_it() -> None:
    kinds = [body["kind"] for body in trainjob.bodies(asked("trainjob"))]
    assert kinds == ["TrainingRuntime", "TrainJob"]


def test_queue_and_suspension_are_the_trainjobs_and_the_topology_is_the_pods() -> None:
    kueue = {"queue": "lq", "topology": "rack", "multi": True}
    request = asked("trainjob", scheduling={"kueue": kueue})
    runtime, train = trainjob.bodies(request)
    assert train["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "lq"
    assert "kueue.x-k8s.io/queue-name" not in runtime["metadata"]["labels"]
    assert (train["spec"]["suspend"], train["spec"]["managedBy"]) == (
        True,
        "kueue.x-k8s.io/multikueue",
    )
    [node] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    annotations = node["template"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/podset-preferred-topology"] == "rack"


def test_the_time_limit_is_that_of_the_trainjob() -> None:
    _, train = made(lifetime={"time_limit_s": 60, "suspend": True})
    assert (train["activeDeadlineSeconds"], train["suspend"]) == (60, True)


# ── plain ──


@pytest.mark.parametrize("framework", ["jax", "xgboost"])
def test_the_policy_of_the_framework_gives_the_variables(framework: str) -> None:
    runtime, train = made("plain", nodes=4, framework=framework)
    assert runtime["mlPolicy"] == {"numNodes": 4, framework: {}}
    assert train["trainer"] == {"numNodes": 4}
    assert main(jobs("plain", framework=framework)["node"])["command"] == ["python", "train.py"]


def test_torchrun_reads_what_the_torch_policy_sets() -> None:
    runtime, train = made("plain", nodes=4, workers_per_node=8)
    assert runtime["mlPolicy"] == {"numNodes": 4, "torch": {}}
    assert train["trainer"] == {"numNodes": 4, "numProcPerNode": 8}
    command = main(jobs("plain", workers_per_node=8)["node"])["command"]
    assert command == ["torchrun", "--nproc-per-node=8", "train.py"]


def test_a_command_has_no_policy() -> None:
    assert made("plain", command=["./train"])[0]["mlPolicy"] == {"numNodes": 1}


def test_any_failure_starts_the_set_again_as_often_as_the_job_allows() -> None:
    keys: dict[str, Any] = {"recovery": {"max_restarts": 4}}
    runtime, _ = made("plain", **keys)
    assert runtime["template"]["spec"]["failurePolicy"] == {"maxRestarts": 4}
    assert jobs("plain", **keys)["node"]["template"]["spec"]["backoffLimit"] == 0


def test_with_mpi_one_launcher_starts_when_the_nodes_are_ready() -> None:
    """Trainer gives the launcher the runtime's count and the nodes the TrainJob's."""
    keys: dict[str, Any] = {"nodes": 4, "framework": "mpi", "resources": {"gpus": 8}}
    runtime, train = made("plain", **keys)
    assert (runtime["mlPolicy"]["numNodes"], train["trainer"]["numNodes"]) == (1, 4)
    assert train["trainer"]["numProcPerNode"] == 8
    assert runtime["template"]["spec"]["successPolicy"]["targetReplicatedJobs"] == ["launcher"]
    found = jobs("plain", **keys)
    assert found["launcher"]["dependsOn"] == [{"name": "node", "status": "Ready"}]
    assert main(found["launcher"])["command"][:3] == ["mpirun", "-np", "32"]
    assert main(found["node"])["command"] == ["/usr/sbin/sshd", "-De"]
    assert found["node"]["template"]["spec"]["completions"] == 4
    labelled = [name for name, each in found.items() if "metadata" in each["template"]]
    assert labelled == ["launcher"]
