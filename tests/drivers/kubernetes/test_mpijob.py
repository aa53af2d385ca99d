"""An MPIJob, of either version, runs agents in place of sshd, or mpirun as people know it."""

from typing import Any

import pytest

from holdfast.drivers.kubernetes.manifests.engines import mpijob
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.spec.cluster import Mode
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.schemas import problems

VERSIONS = ("v2beta1", "v1")
HOME = "/root"  # of the user that most images run as
SPARES: dict[str, Any] = {"nodes": {"count": 8, "spares": 2}}


def spec(mode: Mode = "plain", version: str = "v2beta1", **keys: Any) -> Body:
    """The spec of the MPIJob of such a job, which is accepted strictly."""
    if mode == "plain" and "command" not in keys:
        keys = {"framework": "mpi", **keys}
    [found] = mpijob.bodies(asked("mpijob", mode, kubernetes={"mpi_version": version}, **keys))
    assert problems(found) == []
    assert found["apiVersion"] == f"kubeflow.org/{version}"
    return dict(found["spec"])


def roles(mode: Mode = "plain", version: str = "v2beta1", **keys: Any) -> tuple[Body, Body]:
    """Launcher and worker."""
    found = spec(mode, version, **keys)["mpiReplicaSpecs"]
    assert list(found) == ["Launcher", "Worker"]
    return found["Launcher"], found["Worker"]


def main(role: Body) -> Body:
    """The main container of a role's pods."""
    return dict(role["template"]["spec"]["containers"][0])


def plain_env(container: Body) -> dict[str, str]:
    """Its plain variables."""
    return {each["name"]: each["value"] for each in container.get("env", []) if "value" in each}


# ── managed ──


@pytest.mark.parametrize("version", VERSIONS)
def test_workers_run_agents_and_the_launcher_waits_for_the_end(version: str) -> None:
    launcher, worker = roles("managed", version, **SPARES)
    assert (launcher["replicas"], worker["replicas"]) == (1, 10)
    assert main(worker)["command"] == ["holdfast", "agent"]
    assert main(launcher)["command"] == ["holdfast", "agent", "--wait"]
    assert (launcher["restartPolicy"], worker["restartPolicy"]) == ("Never", "OnFailure")


def test_the_launcher_of_a_managed_job_is_retried_for_ever_and_waits_for_nobody() -> None:
    found = spec("managed")
    assert found["runPolicy"]["backoffLimit"] == 2**31 - 1
    assert found["launcherCreationPolicy"] == "AtStartup"


def test_the_gang_is_the_nodes_and_the_launcher_without_the_spares() -> None:
    assert spec("managed", **SPARES)["runPolicy"]["schedulingPolicy"] == {"minAvailable": 9}


# ── plain ──


def test_mpirun_starts_a_rank_for_each_slot() -> None:
    keys: dict[str, Any] = {"nodes": 8, "resources": {"gpus": 8}, "args": ["--lr", "1"]}
    keys["mpi"] = {"options": ["--bind-to", "none"]}
    launcher, _ = roles(**keys)
    command = main(launcher)["command"]
    assert command[:3] == ["mpirun", "-np", "64"]
    assert command[-6:] == ["--bind-to", "none", "python", "train.py", "--lr", "1"]
    assert spec(**keys)["slotsPerWorker"] == 8
    assert spec(nodes=8, mpi={"slots_per_node": 3})["slotsPerWorker"] == 3


def test_a_command_starts_its_ranks_itself() -> None:
    launcher, _ = roles(command=["horovodrun", "-np", "4"])
    assert main(launcher)["command"] == ["horovodrun", "-np", "4"]


def test_workers_run_what_the_operator_lets_them_run() -> None:
    for version in VERSIONS:
        _, worker = roles("plain", version)
        assert "command" not in main(worker)


def test_without_root_sshd_and_its_keys_are_those_of_a_user() -> None:
    keys: dict[str, Any] = {"image": {"name": "img:1", "root": False}}
    _, worker = roles(**keys)
    assert main(worker)["command"] == ["/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config"]
    assert spec(**keys)["sshAuthMountPath"] == "/home/mpiuser/.ssh"
    assert spec()["sshAuthMountPath"] == f"{HOME}/.ssh"
    assert spec(mpi={"ssh_folder": "/home/me/.ssh"})["sshAuthMountPath"] == "/home/me/.ssh"


def test_ranks_get_the_variables_of_a_worker_from_the_launcher() -> None:
    """A session of sshd has none of the container's variables."""
    keys: dict[str, Any] = {
        "env": {"LR": "1"},
        "resources": {"gpus": 8},
        "network": {"profile": "infiniband"},
        "secrets": [{"name": "hub", "env": {"TOKEN": "token"}}],
    }
    launcher, worker = roles(**keys)
    command = main(launcher)["command"]
    names = [command[place + 1] for place, word in enumerate(command) if word == "-x"]
    assert {"PATH", "LR", "TOKEN", "NCCL_IB_HCA"} <= set(names)
    assert len(names) == len(set(names))
    assert plain_env(main(worker)).items() <= plain_env(main(launcher)).items()


@pytest.mark.parametrize("implementation", ["Intel", "MPICH"])
def test_other_implementations_hand_on_what_they_have(implementation: str) -> None:
    launcher, _ = roles(mpi={"implementation": implementation}, env={"LR": "1"})
    assert main(launcher)["command"] == ["mpirun", "-np", "1", "python", "train.py"]
    assert spec(mpi={"implementation": implementation})["mpiImplementation"] == implementation


def test_open_mpi_may_run_as_root_where_the_image_does() -> None:
    launcher, _ = roles()
    assert plain_env(main(launcher))["OMPI_ALLOW_RUN_AS_ROOT"] == "1"
    launcher, _ = roles(image={"name": "img:1", "root": False})
    assert "OMPI_ALLOW_RUN_AS_ROOT" not in plain_env(main(launcher))


def test_the_launcher_is_small() -> None:
    launcher, worker = roles(
        resources={"gpus": 8}, mpi={"launcher_cpu": "2", "launcher_memory": "4Gi"}
    )
    assert main(launcher)["resources"] == {
        "requests": {"cpu": "2", "memory": "4Gi"},
        "limits": {"memory": "4Gi"},
    }
    assert main(worker)["resources"]["limits"] == {"nvidia.com/gpu": "8"}


def test_a_failed_run_starts_again_as_often_as_the_job_allows() -> None:
    assert spec(recovery={"max_restarts": 4})["runPolicy"]["backoffLimit"] == 4
    assert spec(recovery={"max_restarts": 0})["runPolicy"]["backoffLimit"] == 0
    launcher, _ = roles("plain", "v1", recovery={"max_restarts": 0})
    assert launcher["restartPolicy"] == "Never"
    launcher, _ = roles("plain", "v1", recovery={"max_restarts": 4})
    assert launcher["restartPolicy"] == "OnFailure"


# ── v1 ──


def test_the_launcher_of_v1_acts_in_the_name_that_the_operator_makes_for_it() -> None:
    launcher, worker = roles("plain", "v1")
    for key in ("serviceAccountName", "automountServiceAccountToken"):
        assert key not in launcher["template"]["spec"]
        assert key in worker["template"]["spec"]
    launcher, _ = roles("plain", "v1", access={"service_account": "mine"})
    assert launcher["template"]["spec"]["serviceAccountName"] == "mine"
    assert "automountServiceAccountToken" not in launcher["template"]["spec"]


def test_the_init_container_that_v1_adds_may_be_root_though_ours_is_not() -> None:
    launcher, worker = roles("managed", "v1")
    assert "runAsNonRoot" not in launcher["template"]["spec"]["securityContext"]
    assert main(launcher)["securityContext"]["runAsNonRoot"] is True
    assert worker["template"]["spec"]["securityContext"]["runAsNonRoot"] is True


def test_v1_is_told_which_container_to_enter() -> None:
    found = spec("plain", "v1")
    names = {main(role)["name"] for role in found["mpiReplicaSpecs"].values()}
    assert names == {found["mainContainer"]}
