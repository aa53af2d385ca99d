"""The training-operator's jobs: made for agents that exit by a verdict, or as people know them."""

from typing import Any

import pytest

from holdfast.drivers.kubernetes.manifests.engines import ENGINES
from holdfast.drivers.kubernetes.manifests.engines.kubeflow import KINDS
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.spec.cluster import Engine, Mode
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.schemas import problems

FRAMEWORKS: dict[Engine, str] = {
    "pytorchjob": "pytorch",
    "tfjob": "tensorflow",
    "jaxjob": "jax",
    "xgboostjob": "xgboost",
    "paddlejob": "paddle",
}
SPARES: dict[str, Any] = {"nodes": {"count": 8, "spares": 2}}


def spec(engine: Engine, mode: Mode = "managed", **keys: Any) -> Body:
    """The spec of the operator's object for such a job, which is accepted strictly."""
    framework = {"framework": FRAMEWORKS[engine]} if mode == "plain" else {}
    bodies = ENGINES[engine](asked(engine, mode, **{**framework, **keys}))
    assert not [problem for body in bodies for problem in problems(body)]
    return dict(bodies[-1]["spec"])


def roles(engine: Engine, mode: Mode = "managed", **keys: Any) -> dict[str, Body]:
    """Its roles."""
    return dict(spec(engine, mode, **keys)[KINDS[engine].replicas])


def counts(engine: Engine, mode: Mode = "managed", **keys: Any) -> dict[str, int]:
    """Pods of each role."""
    return {name: role["replicas"] for name, role in roles(engine, mode, **keys).items()}


def main(role: Body) -> Body:
    """The main container of a role's pods."""
    return dict(role["template"]["spec"]["containers"][0])


# ── managed ──


@pytest.mark.parametrize("engine", FRAMEWORKS)
def test_every_pod_runs_an_agent_and_is_made_again_when_it_says_so(engine: Engine) -> None:
    found = roles(engine, **SPARES)
    assert sum(role["replicas"] for role in found.values()) == 10
    for role in found.values():
        assert role["restartPolicy"] == "ExitCode"
        assert "restartPolicy" not in role["template"]["spec"]
        assert main(role)["command"] == ["holdfast", "agent"]


@pytest.mark.parametrize("engine", FRAMEWORKS)
def test_the_container_and_its_port_are_called_as_the_operator_wants_them(engine: Engine) -> None:
    kind = KINDS[engine]
    for mode in ("managed", "plain"):
        for role in roles(engine, mode, nodes=2).values():
            assert main(role)["name"] == kind.container
            assert main(role)["ports"][0]["name"] == kind.port


@pytest.mark.parametrize("engine", FRAMEWORKS)
def test_the_operator_counts_nothing_and_ends_nothing_of_a_managed_job(engine: Engine) -> None:
    found = spec(engine, **SPARES, elasticity={"min_nodes": 4})
    assert found["runPolicy"]["cleanPodPolicy"] == "Running"
    assert "backoffLimit" not in found["runPolicy"]
    assert "elasticPolicy" not in found  # the first pod that exits 0 would end the job


def test_pods_of_a_managed_job_are_all_workers_but_for_the_master_that_xgboost_must_have() -> None:
    assert counts("pytorchjob", **SPARES) == {"Worker": 10}
    assert counts("xgboostjob", **SPARES) == {"Master": 1, "Worker": 9}
    assert counts("xgboostjob", nodes=1) == {"Master": 1}


def test_a_tfjob_waits_for_all_of_its_workers_not_for_the_first() -> None:
    assert spec("tfjob")["successPolicy"] == "AllWorkers"


def test_the_operators_gang_does_not_wait_for_spares() -> None:
    assert spec("jaxjob", **SPARES)["runPolicy"]["schedulingPolicy"] == {"minAvailable": 8}
    assert "schedulingPolicy" not in spec("jaxjob", nodes=8)["runPolicy"]


def test_a_gang_has_a_group_of_its_own_and_tells_the_operator_the_same() -> None:
    scheduling = {"gang": "volcano", "queue": "research", "priority_class": "train"}
    request = asked("pytorchjob", **SPARES, scheduling=scheduling)
    group, job = ENGINES["pytorchjob"](request)
    policy = job["spec"]["runPolicy"]["schedulingPolicy"]
    assert group["metadata"]["name"] == job["metadata"]["name"]
    assert group["spec"]["minMember"] == policy["minAvailable"] == 8
    assert group["spec"]["queue"] == policy["queue"] == "research"
    assert (policy["priorityClass"], policy["scheduleTimeoutSeconds"]) == ("train", 600)
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert pod["schedulerName"] == "volcano"


def test_lifetime_and_queue_stand_in_the_run_policy() -> None:
    lifetime = {"time_limit_s": 3600, "keep_s": 60}
    found = spec(
        "paddlejob", lifetime=lifetime, scheduling={"kueue": {"queue": "lq", "multi": True}}
    )
    policy = found["runPolicy"]
    assert (policy["activeDeadlineSeconds"], policy["ttlSecondsAfterFinished"]) == (3600, 60)
    assert (policy["suspend"], policy["managedBy"]) == (True, "kueue.x-k8s.io/multikueue")


def test_a_suspended_job_is_made_suspended() -> None:
    assert spec("tfjob", lifetime={"suspend": True})["runPolicy"]["suspend"] is True
    assert "suspend" not in spec("tfjob")["runPolicy"]


# ── plain ──


def test_torchrun_takes_its_address_from_a_master() -> None:
    found = roles("pytorchjob", "plain", nodes=4, workers_per_node=8)
    assert {name: role["replicas"] for name, role in found.items()} == {"Master": 1, "Worker": 3}
    for role in found.values():
        assert main(role)["command"] == ["torchrun", "--nproc-per-node=8", "train.py"]
    assert spec("pytorchjob", "plain", workers_per_node=8)["nprocPerNode"] == "8"
    assert counts("pytorchjob", "plain", nodes=1) == {"Master": 1}


def test_the_port_of_the_rendezvous_can_be_chosen() -> None:
    keys: dict[str, Any] = {"network": {"ports": {"rendezvous": 31000}}}
    port = main(roles("pytorchjob", "plain", **keys)["Master"])["ports"][0]["containerPort"]
    assert port == 31000


def test_an_elastic_pytorchjob_has_workers_only_and_meets_by_c10d() -> None:
    keys: dict[str, Any] = {
        "nodes": 4,
        "elasticity": {"min_nodes": 2, "max_nodes": 6},
        "recovery": {"max_restarts": 7},
        "scheduling": {"gang": "coscheduling"},
    }
    found = spec("pytorchjob", "plain", **keys)
    assert found["elasticPolicy"] == {
        "rdzvBackend": "c10d",
        "rdzvId": "run",
        "minReplicas": 2,
        "maxReplicas": 6,
        "maxRestarts": 7,
    }
    assert list(found["pytorchReplicaSpecs"]) == ["Worker"]
    assert found["runPolicy"]["schedulingPolicy"]["minAvailable"] == 2


def test_an_elastic_paddlejob_may_have_fewer_nodes_but_no_more_than_said() -> None:
    found = spec("paddlejob", "plain", nodes=4, elasticity={"min_nodes": 2})["elasticPolicy"]
    assert (found["minReplicas"], found["maxReplicas"]) == (2, 4)


def test_tensorflow_has_chief_parameter_servers_and_evaluator() -> None:
    asked_for = {"chief": True, "ps": 2, "evaluator": True, "cpu": "4", "memory": "8Gi"}
    keys: dict[str, Any] = {
        "nodes": 4,
        "roles": asked_for,
        "resources": {"gpus": 8},
        "checkpoints": {"shared": {"pvc": "ckpt"}},
        "scheduling": {"gang": "volcano"},
    }
    found = roles("tfjob", "plain", **keys)
    assert counts("tfjob", "plain", **keys) == {"Chief": 1, "Worker": 3, "PS": 2, "Evaluator": 1}
    assert main(found["Chief"])["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert main(found["PS"])["resources"]["requests"] == {"cpu": "4", "memory": "8Gi"}
    mounted = {
        name: [m["name"] for m in main(role).get("volumeMounts", [])]
        for name, role in found.items()
    }
    assert "checkpoints-shared" in mounted["Evaluator"] and not mounted["PS"]
    policy = spec("tfjob", "plain", **keys)["runPolicy"]["schedulingPolicy"]
    assert policy["minAvailable"] == 7


def test_programs_start_as_their_framework_wants_it() -> None:
    def command(engine: Engine, **keys: Any) -> list[str]:
        return list(main(next(iter(roles(engine, "plain", **keys).values())))["command"])

    for engine in ("tfjob", "jaxjob", "xgboostjob"):
        assert command(engine) == ["python", "train.py"]
    launch = ["python", "-m", "paddle.distributed.launch", "--nproc_per_node=4"]
    assert command("paddlejob", workers_per_node=4) == [*launch, "python", "train.py"]
    assert command("paddlejob", command=["./train"]) == ["./train"]


def test_containers_restart_in_place_up_to_the_limit_of_the_job() -> None:
    """The operator fails the job when the containers' restarts, added up, reach the limit."""
    keys: dict[str, Any] = {"nodes": 4, "recovery": {"max_restarts": 3}}
    assert {role["restartPolicy"] for role in roles("jaxjob", "plain", **keys).values()} == {
        "OnFailure"
    }
    assert spec("jaxjob", "plain", **keys)["runPolicy"]["backoffLimit"] == 13


def test_without_restarts_the_first_failure_ends_the_job() -> None:
    keys: dict[str, Any] = {"recovery": {"max_restarts": 0}}
    assert roles("jaxjob", "plain", **keys)["Worker"]["restartPolicy"] == "Never"
    assert "backoffLimit" not in spec("jaxjob", "plain", **keys)["runPolicy"]


def test_the_limit_stays_a_number_that_kubernetes_can_hold() -> None:
    keys: dict[str, Any] = {"nodes": 100_000, "recovery": {"max_restarts": 1_000_000}}
    assert spec("jaxjob", "plain", **keys)["runPolicy"]["backoffLimit"] == 2**31 - 1


def test_the_init_container_that_the_operator_adds_may_be_root_though_ours_is_not() -> None:
    download = [{"url": "https://data.example/a.tar"}]
    datasets = [{"name": "a", "path": "/a", "download": download}]
    keys: dict[str, Any] = {"image": {"name": "img:1", "root": False}, "datasets": datasets}
    pod = roles("pytorchjob", "plain", nodes=2, **keys)["Worker"]["template"]["spec"]
    assert "runAsNonRoot" not in pod["securityContext"]
    assert len(pod["initContainers"]) == 1
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"]["runAsNonRoot"] is True
    pod = roles("pytorchjob", nodes=2)["Worker"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
