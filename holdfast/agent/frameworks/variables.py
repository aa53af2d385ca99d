"""What each framework finds in the environment of a worker. Pure functions.

JAX needs to know where rank 0 will listen, XGBoost where its tracker does, TensorFlow and Paddle
where every worker will: the workers tell each other when they have their ranks (`meeting`).
"""

import json
import sys
from collections.abc import Mapping, Sequence

from holdfast.spec import Job

FRAMEWORK = "HOLDFAST_FRAMEWORK"
ROLES = "HOLDFAST_ROLES"
MEETING = frozenset(("jax", "tensorflow", "paddle", "xgboost"))
"""Frameworks whose workers tell each other something before their scripts go on."""
PRELOAD: dict[str, tuple[str, ...]] = {
    "jax": ("numpy", "jax", "jax.numpy", "holdfast.pytrees.jax_cluster"),
    "tensorflow": ("numpy", "tensorflow"),
    "xgboost": ("numpy", "xgboost"),
    "paddle": ("numpy", "paddle"),
}
"""What is imported before workers are forked. An MPI program is started by `mpirun` instead."""


def of_node(job: Job) -> dict[str, str]:
    """What all workers of a node are told."""
    if job.trains_with in ("pytorch", "command"):
        return {}
    roles = {"chief": job.roles.chief, "ps": job.roles.ps, "evaluator": job.roles.evaluator}
    return {FRAMEWORK: job.trains_with, ROLES: json.dumps(roles)}


def by_mpirun(job: Job, script: str | None, args: tuple[str, ...]) -> tuple[str, ...]:
    """The command of a worker that holds the place of an MPI rank."""
    program = job.command or (
        (sys.executable, script) if script is not None else (sys.executable, "-m", job.module or "")
    )
    options = (job.mpi.implementation, *job.mpi.options)
    start = (sys.executable, "-P", "-m", "holdfast.agent.frameworks.mpi")
    return (*start, *options, "--", *program, *args)


def from_meeting(
    framework: str, environ: Mapping[str, str], endpoints: Sequence[str]
) -> dict[str, str]:
    """What a worker with a rank is told once all have said where they listen.

    `JAX_COORDINATOR_ADDRESS` is what JAX itself reads, the others what Kubeflow's JAXJob sets.
    """
    rank = int(environ["RANK"])
    if framework == "tensorflow":
        return {"TF_CONFIG": json.dumps(tf_config(rank, endpoints, json.loads(environ[ROLES])))}
    host, _, port = endpoints[0].rpartition(":")
    if framework == "jax":
        return {
            "JAX_COORDINATOR_ADDRESS": endpoints[0],
            "COORDINATOR_ADDRESS": host.strip("[]"),
            "COORDINATOR_PORT": port,
            "NUM_PROCESSES": str(len(endpoints)),
            "PROCESS_ID": str(rank),
        }
    if framework == "xgboost":
        return {
            "DMLC_TRACKER_URI": host.strip("[]"),
            "DMLC_TRACKER_PORT": port,
            "DMLC_TASK_ID": str(rank),
            "DMLC_NUM_WORKER": str(len(endpoints)),
        }
    return {
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": str(len(endpoints)),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
        "PADDLE_RANK_IN_NODE": environ["LOCAL_RANK"],
        "PADDLE_LOCAL_DEVICE_IDS": environ["LOCAL_RANK"],
        "FLAGS_selected_gpus": environ["LOCAL_RANK"],
    }


def tf_config(rank: int, endpoints: Sequence[str], roles: Mapping[str, int]) -> dict[str, object]:
    """TF_CONFIG: the first ranks train, then come parameter servers, the last one evaluates. The
    evaluator is not part of the cluster, as TensorFlow wants it."""
    chief, servers, evaluator = (int(roles[name]) for name in ("chief", "ps", "evaluator"))
    trainers = len(endpoints) - servers - evaluator
    members = {
        "chief": list(endpoints[:chief]),
        "worker": list(endpoints[chief:trainers]),
        "ps": list(endpoints[trainers : trainers + servers]),
    }
    kind, index = role_of(rank, len(endpoints), roles)
    cluster = {name: addresses for name, addresses in members.items() if addresses}
    return {"cluster": cluster, "task": {"type": kind, "index": index}}


def role_of(rank: int, size: int, roles: Mapping[str, int]) -> tuple[str, int]:
    """What TensorFlow calls this rank, and its number among those of its kind."""
    chief, servers, evaluator = (int(roles[name]) for name in ("chief", "ps", "evaluator"))
    trainers = size - servers - evaluator
    if rank < chief:
        return "chief", rank
    if rank < trainers:
        return "worker", rank - chief
    if rank < trainers + servers:
        return "ps", rank - trainers
    return "evaluator", 0
