"""Claims that are part of a job's manifests: for checkpoints and the journal, devices, a snapshot.

A claim is made only where the job says of which class. All other storage exists already and is
only named, because what a class can do differs from cluster to cluster.
"""

from holdfast.drivers.kubernetes.manifests.names import metadata
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.spec.cluster import JournalClaim
from holdfast.spec.resources import Claim
from holdfast.spec.storage import SharedTier


def objects(request: Request) -> list[Body]:
    """PersistentVolumeClaim, VolumeSnapshot and ResourceClaimTemplates."""
    return [*_storage(request), *_snapshot(request), *_devices(request)]


def _storage(request: Request) -> list[Body]:
    shared = request.job.checkpoints.shared
    journal = request.job.kubernetes.journal
    found = []
    if shared is not None and shared.storage_class is not None and shared.pvc is not None:
        found.append(_claim(request, shared, "ReadWriteMany"))
    if request.managed and journal is not None and journal.storage_class is not None:
        found.append(_claim(request, journal, journal.access_mode))
    return found


def _claim(request: Request, said: SharedTier | JournalClaim, mode: str) -> Body:
    assert said.pvc is not None, "checked before anything is rendered"
    spec = {
        "accessModes": [mode],
        "storageClassName": said.storage_class,
        "resources": {"requests": {"storage": said.size}},
    }
    return _object(request, "v1", "PersistentVolumeClaim", said.pvc, spec)


def _snapshot(request: Request) -> list[Body]:
    shared = request.job.checkpoints.shared
    if shared is None or shared.volume_snapshot_class is None:
        return []
    spec = {
        "volumeSnapshotClassName": shared.volume_snapshot_class,
        "source": {"persistentVolumeClaimName": shared.pvc},
    }
    kind = ("snapshot.storage.k8s.io/v1", "VolumeSnapshot")
    return [_object(request, *kind, f"{request.name}-ondemand", spec)]


def _devices(request: Request) -> list[Body]:
    made = (claim for claim in request.job.resources.claims if claim.device_class is not None)
    return [_template(request, claim) for claim in made]


def _template(request: Request, claim: Claim) -> Body:
    """One request for `count` devices of the class; each pod gets a claim of its own from it."""
    exactly = {
        "deviceClassName": claim.device_class,
        "allocationMode": "ExactCount",
        "count": claim.count,
    }
    spec = {"spec": {"devices": {"requests": [{"name": claim.name, "exactly": exactly}]}}}
    kind = ("resource.k8s.io/v1", "ResourceClaimTemplate")
    return _object(request, *kind, f"{request.name}-{claim.name}", spec)


def _object(request: Request, version: str, kind: str, name: str, spec: Body) -> Body:
    made = metadata(request, name)
    return {"apiVersion": version, "kind": kind, "metadata": made, "spec": spec}
