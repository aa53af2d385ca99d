"""What a TrainingJob asks for: the objects of its job, owned by it.

The spec is the job file, read by the model that reads files, so that both say the same of the same
mistake. Suspending and clearing up are the operator's own business for every engine alike; the
engines hear nothing of them. Claims for data are left without an owner: deleting a job must not
delete its checkpoints.
"""

import hashlib
from dataclasses import dataclass

from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, Kind, kind_of
from holdfast.drivers.kubernetes.manifests import storage
from holdfast.drivers.kubernetes.manifests.engines import ENGINES
from holdfast.drivers.kubernetes.manifests.names import DOMAIN, SPEC_CODE
from holdfast.drivers.kubernetes.manifests.render import render, requested
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.manifests.support import controller
from holdfast.drivers.kubernetes.submit import HOLDS_DATA
from holdfast.operator.definition import TRAINING_JOBS
from holdfast.spec import Job, job_from_dict
from holdfast.spec.cluster import Lifetime
from holdfast.spec.load import to_yaml

HOME = f"{DOMAIN}/namespace"  # label of what belongs to no namespace: that of its job


@dataclass(frozen=True)
class Wanted:
    """All there is to make, in order; `moving` is what goes while the job is suspended."""

    request: Request
    digest: str  # of everything that a running job cannot change
    suspend: bool
    keep_s: int | None
    objects: tuple[Body, ...]
    moving: tuple[Body, ...]

    @property
    def grace_s(self) -> float:
        """How long a stop may take."""
        return self.request.job.recovery.stop_grace_s


def wanted(body: Body, version: tuple[int, int]) -> Wanted:
    """What this TrainingJob asks for. Raises `Error` if its spec cannot be."""
    meta = body["metadata"]
    job = _job(body)
    lifetime = Lifetime(time_limit_s=job.lifetime.time_limit_s)
    whole = job.model_copy(update={"lifetime": lifetime})
    request = requested(
        whole, namespace=meta["namespace"], version=version, code_name=job.code or ""
    )
    owner = owner_of(body)
    objects = [
        _noted(body, request)
        for body in render(request)
        if not (_left_to_controller(body, request) or is_code(body, request))
    ]
    moving = [*ENGINES[request.engine](request), *controller.configuration(request)]
    return Wanted(
        request=request,
        digest=hashlib.sha256(to_yaml(whole).encode()).hexdigest()[:16],
        suspend=job.lifetime.suspend,
        keep_s=job.lifetime.keep_s,
        objects=tuple(owned(made, owner, meta["namespace"]) for made in objects),
        moving=tuple(
            body
            for body in (*moving, *controller.deployment(request))
            if not _left_to_controller(body, request)
        ),
    )


def _left_to_controller(body: Body, request: Request) -> bool:
    """Pods of our own: only the controller knows how many there have to be at any time."""
    return request.managed and body["kind"] == "Pod"


def is_code(body: Body, request: Request) -> bool:
    """Whether it is a ConfigMap with the code, which people make."""
    named = storage.code_maps(request) if request.job.code else {}
    return body["kind"] == CONFIG_MAPS.kind and body["metadata"]["name"] in named


def _noted(body: Body, request: Request) -> Body:
    """The job file with the name of the code that it was made with."""
    code, meta = request.job.code, body["metadata"]
    if not code or (body["kind"], meta["name"]) != (CONFIG_MAPS.kind, f"{request.name}-job"):
        return body
    notes = {**meta.get("annotations", {}), SPEC_CODE: code}
    return {**body, "metadata": {**meta, "annotations": notes}}


def _job(body: Body) -> Job:
    meta = body["metadata"]
    where = f"TrainingJob {meta['namespace']}/{meta['name']}"
    return job_from_dict({**body.get("spec", {}), "name": meta["name"]}, where=where)


def owner_of(body: Body) -> Body:
    """The reference by which everything goes when this TrainingJob does."""
    return {
        "apiVersion": TRAINING_JOBS.api,
        "kind": TRAINING_JOBS.kind,
        "name": body["metadata"]["name"],
        "uid": body["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def owned(body: Body, owner: Body, namespace: str) -> Body:
    """The object with its owner; what belongs to the cluster cannot have one, and gets a label."""
    meta = body["metadata"]
    if "namespace" not in meta:
        labels = {**meta.get("labels", {}), HOME: namespace}
        return {**body, "metadata": {**meta, "labels": labels}}
    if body["kind"] in HOLDS_DATA:
        return body
    return {**body, "metadata": {**meta, "ownerReferences": [owner]}}


def is_owned(body: Body, uid: str) -> bool:
    """Whether this TrainingJob owns the object."""
    return any(ref.get("uid") == uid for ref in body["metadata"].get("ownerReferences") or [])


def place(body: Body) -> tuple[Kind, str, str | None]:
    """Kind, name and namespace of an object."""
    meta = body["metadata"]
    return kind_of(body), meta["name"], meta.get("namespace")
