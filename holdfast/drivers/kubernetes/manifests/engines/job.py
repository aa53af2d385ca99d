"""Indexed Job: the most compatible engine.

One Job with a pod for every node and spare; what it is told stands in `indexed`. Spares with a
priority of their own are a Job of their own, so that they can be the first to go.
"""

from holdfast.drivers.kubernetes.manifests import gang, indexed, kueue
from holdfast.drivers.kubernetes.manifests.groups import groups
from holdfast.drivers.kubernetes.manifests.names import metadata
from holdfast.drivers.kubernetes.manifests.request import Body, Request


def bodies(request: Request) -> list[Body]:
    """The gang's objects and the Job, or two."""
    part = indexed.node(request, f"{request.name}-0.{request.name}")
    made = {role: indexed.template(request, part, role) for role in groups(request)}
    jobs = [_job(request, role, made[role]) for role in made]
    return [*gang.objects(request, made["node"]), *jobs]


def _job(request: Request, role: str, template: Body) -> Body:
    name = request.name if role == "node" else f"{request.name}-{role}"
    found: Body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(request, name),
        "spec": {**indexed.lifetime(request), **indexed.spec(request, role, template)},
    }
    return kueue.apply(request, found, role)
