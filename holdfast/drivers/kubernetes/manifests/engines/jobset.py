"""JobSet, in the shape that needs none of its alpha features: one Indexed Job inside.

Managed: the Job of the engine `job`, so that a JobSet replaces pods just as a Job does; the set
itself never restarts anything. Spares with a priority of their own are a second replicated job.

Plain: the Job gives up at its first failure and the set restarts all of it, which is what a
training whose processes wait for each other needs, and much faster than a Job's own retries. The
set has no time limit, and that of the Job begins anew with it: there is one without restarts only.
"""

from holdfast.drivers.kubernetes.manifests import gang, indexed, kueue
from holdfast.drivers.kubernetes.manifests.groups import groups
from holdfast.drivers.kubernetes.manifests.names import metadata
from holdfast.drivers.kubernetes.manifests.request import Body, Request


def bodies(request: Request) -> list[Body]:
    """The gang's objects and the JobSet."""
    part = indexed.node(request, first(request), whole=True)
    made = {role: indexed.template(request, part, role) for role in groups(request)}
    found: Body = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(request, request.name),
        "spec": _spec(request, [_replicated(request, role, made[role]) for role in made]),
    }
    return [*gang.objects(request, made["node"]), kueue.apply(request, found)]


def first(request: Request) -> str:
    """Host name of the first node: set, replicated job, number of the Job, index in it."""
    return f"{request.name}-node-0-0.{request.name}"


def _spec(request: Request, jobs: list[Body]) -> Body:
    said = request.job.lifetime
    restarts = 0 if request.managed else request.job.recovery.restarts
    found: Body = {
        "suspend": said.suspend or None,
        "ttlSecondsAfterFinished": said.keep_s,
        "network": {
            "enableDNSHostnames": True,
            "subdomain": request.name,
            "publishNotReadyAddresses": True,
        },
        "successPolicy": {"operator": "All"},
        "failurePolicy": {"maxRestarts": restarts},
        "replicatedJobs": jobs,
    }
    return {key: value for key, value in found.items() if value is not None}


def _replicated(request: Request, role: str, template: Body) -> Body:
    return {"name": role, "replicas": 1, "template": {"spec": _job(request, role, template)}}


def _job(request: Request, role: str, template: Body) -> Body:
    limit = request.job.lifetime.time_limit_s
    deadline = {} if limit is None else {"activeDeadlineSeconds": limit}
    if request.managed:
        return {**deadline, **indexed.spec(request, role, template)}
    size = indexed.size(groups(request)[role])
    return {**deadline, **size, "backoffLimit": 0, "template": template}
