"""What Kueue reads on an object: its queue, its priority, its topology, how little is enough.

Every engine makes its top object as if there were no queue and hands it to `apply`; pods of our own
are a pod group and go through `pod`. Kueue holds an object back by `suspend`, so it is written with
it; Kueue would set it anyway, and without it a cluster whose Kueue is down would start the job
around the queue.
"""

from typing import Any

from holdfast.drivers.kubernetes.manifests.groups import fewest, groups
from holdfast.drivers.kubernetes.manifests.marks import marked
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.spec import Job
from holdfast.spec.cluster import Engine
from holdfast.spec.placement import Kueue

DOMAIN = "kueue.x-k8s.io"
MULTI = f"{DOMAIN}/multikueue"  # manages the objects that run in another cluster
RUN: dict[Engine, tuple[str, ...]] = {
    "job": ("spec",),
    "cronjob": ("spec",),
    "jobset": ("spec",),
    "rayjob": ("spec",),
    "trainjob": ("spec",),
    **dict.fromkeys(
        ("pytorchjob", "tfjob", "jaxjob", "xgboostjob", "paddlejob", "mpijob"),
        ("spec", "runPolicy"),
    ),
}
"""Where an engine that Kueue knows keeps `suspend` and `managedBy`; `pods` are known without."""
PARTIAL: tuple[Engine, ...] = ("job",)
"""Engines that Kueue admits in part."""
APART: tuple[Engine, ...] = ("pods", "job")
"""Engines whose spares can be a workload of their own."""


def queue_of(job: Job) -> str:
    """The queue that has to admit the job; "" if it goes through none."""
    return job.scheduling.kueue.queue if job.scheduling.kueue is not None else ""


def apply(request: Request, body: Body, role: str = "node") -> Body:
    """The top object of an engine as Kueue wants it, topology in all its pod templates."""
    kueue = request.job.scheduling.kueue
    if kueue is None:
        return body
    found = marked(body, labels=labels(request, role), annotations=_partial(request))
    held: Body = {"suspend": True, **({"managedBy": MULTI} if kueue.multi else {})}
    return topology(request, _first(found, RUN[request.engine], held))


def pod(request: Request, template: Body, role: str = "node") -> Body:
    """A pod of our own, or a template for some, as a member of a pod group."""
    kueue = request.job.scheduling.kueue
    if kueue is None:
        return template
    name = request.name if role == "node" else f"{request.name}-{role}"
    group = {f"{DOMAIN}/pod-group-name": name}
    count = {f"{DOMAIN}/pod-group-total-count": str(groups(request)[role])}
    found = marked(template, labels={**labels(request, role), **group}, annotations=count)
    return topology(request, found)


def labels(request: Request, role: str = "node") -> dict[str, str]:
    """Labels of an object that a queue admits."""
    kueue = request.job.scheduling.kueue
    if kueue is None:
        return {}
    priority = kueue.spare_priority if role == "spare" else kueue.priority
    found = {"queue-name": kueue.queue, "priority-class": priority or kueue.priority}
    if kueue.max_time_s is not None:
        found["max-exec-time-seconds"] = str(kueue.max_time_s)
    return {f"{DOMAIN}/{key}": value for key, value in found.items() if value}


def topology(request: Request, body: Body) -> Body:
    """`body` with the wanted level of the topology in every pod template inside it."""
    kueue = request.job.scheduling.kueue
    if kueue is None or kueue.topology is None:
        return body
    found: Body = _annotated(body, _level(kueue))
    return found


def _level(kueue: Kueue) -> dict[str, str]:
    strength = "required" if kueue.topology_required else "preferred"
    return {f"{DOMAIN}/podset-{strength}-topology": str(kueue.topology)}


def _annotated(value: Any, annotations: dict[str, str]) -> Any:
    match value:
        case {"spec": {"containers": _}}:
            return marked(value, annotations=annotations)
        case dict():
            return {key: _annotated(inner, annotations) for key, inner in value.items()}
        case list():
            return [_annotated(inner, annotations) for inner in value]
        case _:
            return value


def _partial(request: Request) -> dict[str, str]:
    """Annotations for a start without all of the spares: Kueue then shrinks the Job for good."""
    kueue = request.job.scheduling.kueue
    least, count = fewest(request), groups(request)["node"]
    if kueue is None or not kueue.partial or request.engine not in PARTIAL or least == count:
        return {}
    return {
        f"{DOMAIN}/job-min-parallelism": str(least),
        f"{DOMAIN}/job-completions-equal-parallelism": "true",
    }


def _first(body: Body, path: tuple[str, ...], keys: Body) -> Body:
    """`body` with `keys` at the head of the mapping at `path`."""
    if not path:
        return {**keys, **{key: value for key, value in body.items() if key not in keys}}
    head, *tail = path
    return {**body, head: _first(body.get(head, {}), tuple(tail), keys)}
