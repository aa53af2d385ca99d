"""Priorities below 0, which JobSet cannot give its pods: it copies them into a label.

`-10` is no value of a label, so the pods would never be made, and only the log of the Job
controller would say why. What a PriorityClass is worth is known to the cluster alone.
"""

from holdfast.drivers.kubernetes.cluster import PRIORITIES, ApiError, Cluster
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.errors import Error
from holdfast.spec.cluster import Engine

OF_JOBSET: tuple[Engine, ...] = ("jobset", "trainjob")  # whose pods JobSet makes
SETTINGS = ("priority_class", "spare_priority_class")


async def impossible(cluster: Cluster, request: Request) -> list[Error]:
    """One for each setting. Without the right to see the class, or the class, nothing is known."""
    if request.engine not in OF_JOBSET:
        return []
    named = {key: getattr(request.job.scheduling, key) for key in SETTINGS}
    found = []
    for key, name in named.items():
        value = await _value(cluster, name) if name else 0
        if value < 0:
            found.append(_below_zero(request.engine, key, name, value))
    return found


async def _value(cluster: Cluster, name: str) -> int:
    try:
        return int((await cluster.get(PRIORITIES, name)).get("value", 0))
    except ApiError:
        return 0


def _below_zero(engine: Engine, key: str, name: str, value: int) -> Error:
    return Error(
        "settings-conflict",
        f"scheduling.{key}: {name} has value {value}, and pods of engine {engine} need 0 or more",
        why="JobSet copies the priority of its pods into a label, and a negative number is not a "
        "valid label value: the API server would reject every pod",
        help="kubectl get priorityclass   (choose one with value 0 or more, or another engine)",
    )
