"""What each framework finds in the environment."""

import json

import pytest

from holdfast.agent import environment
from holdfast.agent.fork_protocol import ChildKind
from holdfast.agent.frameworks.variables import from_meeting, of_node, role_of, tf_config
from holdfast.errors import Error
from holdfast.spec import Job
from holdfast.spec.local import require_local, with_roles

ALL = [f"10.0.0.{number}:4000" for number in range(5)]
NO_ROLES = {"chief": 0, "ps": 0, "evaluator": 0}
ROLES = {"chief": 1, "ps": 1, "evaluator": 1}


def environ(rank: int, roles: dict[str, int] = NO_ROLES) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": "1", "HOLDFAST_ROLES": json.dumps(roles)}


def test_jax_is_told_its_coordinator_number_and_count() -> None:
    told = from_meeting("jax", environ(3), ALL)
    assert told["JAX_COORDINATOR_ADDRESS"] == "10.0.0.0:4000"
    assert (told["PROCESS_ID"], told["NUM_PROCESSES"]) == ("3", "5")


def test_workers_of_tensorflow_are_one_cluster() -> None:
    assert tf_config(2, ALL, NO_ROLES) == {
        "cluster": {"worker": ALL},
        "task": {"type": "worker", "index": 2},
    }


def test_roles_of_tensorflow_come_in_order_and_the_evaluator_is_outside() -> None:
    found = [role_of(rank, 5, ROLES) for rank in range(5)]
    assert found == [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0), ("evaluator", 0)]
    told = json.loads(from_meeting("tensorflow", environ(4, ROLES), ALL)["TF_CONFIG"])
    assert told["cluster"] == {"chief": ALL[:1], "worker": ALL[1:3], "ps": ALL[3:4]}
    assert told["task"] == {"type": "evaluator", "index": 0}


def test_paddle_finds_what_its_launcher_sets() -> None:
    told = from_meeting("paddle", environ(1), ALL[:2])
    assert told["PADDLE_TRAINER_ENDPOINTS"] == "10.0.0.0:4000,10.0.0.1:4000"
    assert told["PADDLE_CURRENT_ENDPOINT"] == "10.0.0.1:4000"
    assert (told["PADDLE_TRAINER_ID"], told["PADDLE_TRAINERS_NUM"]) == ("1", "2")
    assert told["FLAGS_selected_gpus"] == "1"


def test_xgboost_finds_the_tracker_of_rank_0_also_by_ipv6() -> None:
    told = from_meeting("xgboost", environ(1), ["[fd00::1]:999", ""])
    assert told["DMLC_TRACKER_URI"] == "fd00::1" and told["DMLC_TRACKER_PORT"] == "999"
    assert (told["DMLC_TASK_ID"], told["DMLC_NUM_WORKER"]) == ("1", "2")


def test_a_job_with_torch_is_told_nothing_of_this() -> None:
    assert of_node(Job(name="a", script="a.py")) == {}


def test_an_mpi_program_is_started_by_mpirun() -> None:
    job = Job.model_validate(
        {"name": "a", "script": "a.py", "args": ["-x"], "framework": "mpi",
         "mpi": {"implementation": "MPICH", "options": ["-verbose"]}}
    )  # fmt: skip
    command = environment.program_of(job).command
    assert command[3:7] == ("holdfast.agent.frameworks.mpi", "MPICH", "-verbose", "--")
    assert command[8:] == ("a.py", "-x")
    assert environment.kinds_of(job, instrumented=True) == (ChildKind.EXEC, None)


def test_parameter_servers_and_an_evaluator_are_nodes_of_their_own() -> None:
    roles = {"ps": 2, "evaluator": True}
    told = {"name": "a", "script": "a.py", "framework": "tensorflow", "roles": roles, "nodes": 2}
    job = with_roles(Job.model_validate({**told, "workers_per_node": 1}))
    assert job.nodes.count == 5
    with pytest.raises(Error, match="size-impossible"):
        with_roles(Job.model_validate({**told, "workers_per_node": 2}))


def test_intel_mpi_is_left_to_a_cluster() -> None:
    told = {"name": "a", "script": "a.py", "framework": "mpi", "mpi": {"implementation": "Intel"}}
    with pytest.raises(Error, match="cluster-only"):
        require_local(Job.model_validate(told))
