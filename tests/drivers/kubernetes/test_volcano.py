"""A Volcano Job starts as a gang and restarts by policies that do not fight the controller."""

from typing import Any

from holdfast.drivers.kubernetes.manifests.engines import volcano
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.spec.cluster import Mode
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.schemas import problems

HOME = "/root"  # of the user that most images run as
SPARES: dict[str, Any] = {"nodes": {"count": 8, "spares": 2}}


def spec(mode: Mode = "managed", **keys: Any) -> Body:
    """The spec of the Job of such a job, which is accepted strictly."""
    [found] = volcano.bodies(asked("volcano", mode, **keys))
    assert problems(found) == []
    return dict(found["spec"])


def sizes(mode: Mode = "managed", **keys: Any) -> dict[str, tuple[int, int]]:
    """Replicas and `minAvailable` of each task."""
    tasks = spec(mode, **keys)["tasks"]
    return {each["name"]: (each["replicas"], each["minAvailable"]) for each in tasks}


def command(mode: Mode, task: int, **keys: Any) -> list[str]:
    """What the pods of a task run."""
    found = spec(mode, **keys)["tasks"][task]["template"]["spec"]["containers"][0]["command"]
    return list(found)


# ── managed ──


def test_the_gang_is_the_nodes_and_as_many_have_to_end_well() -> None:
    found = spec(**SPARES)
    assert (found["minAvailable"], found["minSuccess"]) == (8, 8)
    assert sizes(**SPARES) == {"node": (10, 8)}
    assert command("managed", 0) == ["holdfast", "agent"]


def test_a_lost_pod_is_made_again_alone_and_never_uses_up_the_job() -> None:
    found = spec()
    assert found["maxRetry"] == 2**31 - 1
    actions = {each["event"]: each["action"] for each in found["policies"] if "event" in each}
    assert actions == {"PodFailed": "RestartPod", "PodEvicted": "RestartPod"}


def test_the_fatal_status_is_asked_for_before_the_failure_that_it_also_is() -> None:
    """Volcano takes the first policy that fits."""
    assert spec()["policies"][0] == {"exitCode": 113, "action": "TerminateJob"}


def test_spares_with_a_priority_of_their_own_are_a_task_outside_the_gang() -> None:
    scheduling = {"priority_class": "train", "spare_priority_class": "idle"}
    found = spec(**SPARES, scheduling=scheduling)
    assert sizes(**SPARES, scheduling=scheduling) == {"node": (8, 8), "spare": (2, 0)}
    assert found["minAvailable"] == 8
    classes = [each["template"]["spec"]["priorityClassName"] for each in found["tasks"]]
    assert classes == ["train", "idle"]


def test_queue_priority_topology_and_remains() -> None:
    scheduling = {"queue": "research", "priority_class": "train", "topology": "rack"}
    found = spec(scheduling=scheduling, lifetime={"keep_s": 60})
    assert (found["queue"], found["priorityClassName"]) == ("research", "train")
    assert found["networkTopology"] == {"mode": "hard", "highestTierName": "rack"}
    assert found["ttlSecondsAfterFinished"] == 60
    assert found["schedulerName"] == "volcano"


def test_agents_need_no_plugins() -> None:
    assert "plugins" not in spec()


# ── plain ──


def test_torch_has_a_master_and_workers_that_the_plugin_counts() -> None:
    assert sizes("plain", nodes=4) == {"master": (1, 1), "worker": (3, 3)}
    assert sizes("plain", nodes=1) == {"master": (1, 1)}
    plugin = spec("plain", network={"ports": {"rendezvous": 31000}})["plugins"]["pytorch"]
    assert plugin == ["--master=master", "--worker=worker", "--port=31000"]
    options = ["--nnodes=$(WORLD_SIZE)", "--node-rank=$(RANK)"]
    told = command("plain", 1, nodes=4)
    assert told[3:7] == ["$(MASTER_ADDR)", "torchrun", *options], "once the master has its name"


def test_any_failure_starts_the_job_again_as_often_as_it_allows() -> None:
    """Volcano fails a job at `maxRetry` restarts."""
    found = spec("plain", recovery={"max_restarts": 4})
    assert found["maxRetry"] == 5
    assert {each["action"] for each in found["policies"]} == {"RestartJob"}
    never = spec("plain", recovery={"max_restarts": 0})["policies"]
    assert {each["action"] for each in never} == {"TerminateJob"}, "which keeps what has failed"


def test_the_networkpolicy_is_the_jobs_not_that_of_the_plugin() -> None:
    assert "--disable-network-policy=true" in spec("plain")["plugins"]["svc"]


def test_a_command_runs_in_every_pod() -> None:
    keys: dict[str, Any] = {"nodes": 4, "command": ["./train"]}
    assert sizes("plain", **keys) == {"node": (4, 4)}
    assert command("plain", 0, **keys) == ["./train"]
    assert set(spec("plain", **keys)["plugins"]) == {"svc", "env"}


def test_with_mpi_the_job_ends_with_its_launcher() -> None:
    keys: dict[str, Any] = {"nodes": 4, "framework": "mpi", "workers_per_node": 8}
    found = spec("plain", **keys)
    assert sizes("plain", **keys) == {"launcher": (1, 1), "worker": (4, 4)}
    done = {"event": "TaskCompleted", "action": "CompleteJob"}
    assert [each.get("policies") for each in found["tasks"]] == [[done], None]
    assert found["plugins"]["ssh"] == [f"--ssh-key-file-path={HOME}/.ssh"]
    launch = command("plain", 0, **keys)
    assert launch[:5] == ["mpirun", "-np", "32", "--hostfile", "/etc/volcano/worker.host"]
    assert "ppr:8:node" in launch


def test_mpi_of_the_hydra_kind_takes_its_hosts_from_the_same_file() -> None:
    keys: dict[str, Any] = {"framework": "mpi", "mpi": {"implementation": "MPICH"}}
    launch = command("plain", 0, **keys)
    assert launch[3:7] == ["-f", "/etc/volcano/worker.host", "-ppn", "1"]


def test_without_root_sshd_listens_where_a_user_may() -> None:
    keys: dict[str, Any] = {"framework": "mpi", "image": {"name": "img:1", "root": False}}
    plugin = spec("plain", **keys)["plugins"]["ssh"]
    assert plugin == ["--ssh-key-file-path=/home/mpiuser/.ssh", "--ssh-port=2222"]
    assert command("plain", 1, **keys)[0] == "/usr/sbin/sshd"
