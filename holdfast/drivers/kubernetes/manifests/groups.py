"""How many pods of which role a job has, and how few of them are enough to train.

Nodes and spares are the same pods, so that any of them can take any place. Only where the spares
have a priority of their own are they made apart from the nodes, outside the nodes' gang and in a
workload of their own: the members of a gang share one priority, and the spares would not be the
first to go (KUBERNETES, spares with gang scheduling).
"""

from holdfast.drivers.kubernetes.manifests.request import Request


def groups(request: Request) -> dict[str, int]:
    """Pods by role."""
    if not spares_apart(request):
        return {"node": request.pods}
    return {"node": request.nodes, "spare": request.spares}


def spares_apart(request: Request) -> bool:
    """Whether the spares have a priority of their own."""
    scheduling = request.job.scheduling
    queue = scheduling.kueue.spare_priority if scheduling.kueue is not None else None
    own = scheduling.spare_priority_class or queue
    return bool(own and request.spares)


def fewest(request: Request) -> int:
    """Nodes without which the job does not train: all that train, or as few as it may shrink to."""
    elastic = request.job.elasticity
    return request.nodes if elastic is None else elastic.min_nodes
