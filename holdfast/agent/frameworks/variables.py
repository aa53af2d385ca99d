"""What each framework finds in the environment of a worker. Pure functions.

What does not need the other workers comes with the rank (`from_rank`). TensorFlow and Paddle want
the addresses of all, XGBoost that of a tracker: that comes from a meeting of the workers
(`from_meeting`).
"""

import json
from collections.abc import Mapping, Sequence

from holdfast.messages import Start
from holdfast.spec import Job

FRAMEWORK = "HOLDFAST_FRAMEWORK"
ROLES = "HOLDFAST_ROLES"
MEETING = frozenset(("tensorflow", "paddle", "xgboost"))
"""Frameworks whose workers tell each other something before their scripts go on."""
WITH_KEY = MEETING | {"mpi"}
PRELOAD: dict[str, tuple[str, ...]] = {
    "jax": ("numpy", "jax", "jax.numpy", "holdfast.agent.frameworks.jax_cluster"),
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


def from_rank(job: Job, start: Start, local_rank: int) -> dict[str, str]:
    """What a worker is told with its rank.

    `JAX_COORDINATOR_ADDRESS` is what JAX itself reads, the others what Kubeflow's JAXJob sets.
    """
    rank = start.node_rank * start.workers_per_node + local_rank
    size = start.node_count * start.workers_per_node
    host, port = start.store.host, str(start.store.port)
    if job.trains_with != "jax":
        return {}
    return {
        "JAX_COORDINATOR_ADDRESS": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "COORDINATOR_ADDRESS": host,
        "COORDINATOR_PORT": port,
        "NUM_PROCESSES": str(size),
        "PROCESS_ID": str(rank),
    }


def from_meeting(
    framework: str, environ: Mapping[str, str], endpoints: Sequence[str]
) -> dict[str, str]:
    """What a worker with a rank is told once all have said where they listen."""
    rank = int(environ["RANK"])
    if framework == "tensorflow":
        return {"TF_CONFIG": json.dumps(tf_config(rank, endpoints, json.loads(environ[ROLES])))}
    if framework == "xgboost":
        host, _, port = endpoints[0].rpartition(":")
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
