"""Whether what a job file names exists in the cluster: claims, classes, secrets, queues.

A pod that names something which is not there is accepted, and then waits without end.
"""

from holdfast.drivers.kubernetes import queued
from holdfast.drivers.kubernetes.cluster import (
    CLAIMS,
    PRIORITIES,
    SECRETS,
    SERVICE_ACCOUNTS,
    STORAGE_CLASSES,
    ApiError,
    DeniedError,
    Kind,
    NotFoundError,
)
from holdfast.drivers.kubernetes.doctor import ClusterCheck, Patient
from holdfast.drivers.kubernetes.jobset_priorities import impossible
from holdfast.drivers.kubernetes.manifests.kueue import DOMAIN
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.spec import Job

DEVICES = Kind("resource.k8s.io/v1", "DeviceClass", "deviceclasses", namespaced=False)
MANY = frozenset(("ReadWriteMany", "ReadOnlyMany"))
HELP = {
    "PersistentVolumeClaim": (
        "create a PersistentVolumeClaim of that name, or correct the name in the job file"
    ),
    "StorageClass": "kubectl get storageclass   (lists the existing ones)",
    "PriorityClass": "kubectl get priorityclass   (lists the existing ones)",
    "DeviceClass": "kubectl get deviceclass   (lists the existing ones)",
    "Secret": "kubectl create secret generic {name} -n {namespace} --from-literal=KEY=VALUE",
    "ServiceAccount": "kubectl create serviceaccount {name} -n {namespace}",
    "LocalQueue": "kubectl get localqueue -n {namespace}   (lists the existing ones)",
}


async def names(patient: Patient) -> list[ClusterCheck]:
    """Everything that the job file says exists."""
    job = patient.request.job
    named = [*_secrets(job), *_classes(job)]
    checks = [await _exists(patient, kind, name) for kind, name in dict.fromkeys(named)]
    checks += [await _claim(patient, name, many) for name, many in _claims(job).items()]
    checks += [
        ClusterCheck(PRIORITIES.kind, False, error.what, error.help)
        for error in await impossible(patient.cluster, patient.request)
    ]
    return [*checks, *await _queue(patient)]


def _secrets(job: Job) -> list[tuple[Kind, str]]:
    archive = job.checkpoints.archive
    found = [(SECRETS, secret.name) for secret in job.secrets]
    found += [(SECRETS, name) for name in (job.image.pull_secrets if job.image else ())]
    found += [(SECRETS, archive.secret)] if archive is not None and archive.secret else []
    account = job.access.service_account
    return [*found, *([(SERVICE_ACCOUNTS, account)] if account else [])]


def _classes(job: Job) -> list[tuple[Kind, str]]:
    local, shared = job.checkpoints.local, job.checkpoints.shared
    priorities = (job.scheduling.priority_class, job.scheduling.spare_priority_class)
    journal = job.kubernetes.journal
    made = (shared, journal)
    stores = (local and local.pvc_class, *(claim and claim.storage_class for claim in made))
    return [
        *((PRIORITIES, name) for name in priorities if name),
        *((STORAGE_CLASSES, name) for name in stores if name),
        *((DEVICES, c.device_class) for c in job.resources.claims if c.device_class),
    ]


def _claims(job: Job) -> dict[str, bool]:
    """Claims that have to exist, and whether several nodes mount them."""
    many = job.nodes.count + job.nodes.spare_count > 1
    found = {dataset.pvc: many for dataset in job.datasets if dataset.pvc is not None}
    shared = job.checkpoints.shared
    if shared is not None and shared.pvc is not None and shared.storage_class is None:
        found[shared.pvc] = many
    journal = job.kubernetes.journal
    if journal is not None and journal.storage_class is None:
        found.setdefault(journal.pvc, False)  # the controller alone
    return found


async def _exists(patient: Patient, kind: Kind, name: str) -> ClusterCheck:
    found = await _seen(patient, kind, name)
    return found if isinstance(found, ClusterCheck) else ClusterCheck(kind.kind, True, name, "")


async def _seen(patient: Patient, kind: Kind, name: str) -> Body | ClusterCheck:
    """The object, or what is to be said about not seeing it."""
    remedy = HELP[kind.kind].format(name=name, namespace=patient.cluster.namespace)
    try:
        return await patient.cluster.get(kind, name)
    except NotFoundError:
        return ClusterCheck(kind.kind, False, f"{name} does not exist", remedy)
    except DeniedError:
        return ClusterCheck(
            kind.kind, True, f"{name} (no permission to check whether it exists)", remedy
        )


async def _claim(patient: Patient, name: str, many: bool) -> ClusterCheck:
    found = await _seen(patient, CLAIMS, name)
    if isinstance(found, ClusterCheck):
        return found
    phase = found.get("status", {}).get("phase", "Pending")
    modes = found["spec"].get("accessModes") or []
    describe = f"kubectl describe pvc {name} -n {patient.cluster.namespace}"
    if phase == "Lost" or (phase == "Pending" and not await _bound_later(patient, found)):
        return ClusterCheck(
            CLAIMS.kind, False, f"{name} is {phase}: it is not bound to a volume", describe
        )
    if many and not MANY & set(modes):
        told = f"{name} can be mounted on one machine only ({', '.join(modes)})"
        remedy = (
            "create a claim with accessModes: [ReadWriteMany] and a StorageClass that supports it"
        )
        return ClusterCheck(CLAIMS.kind, False, told, remedy)
    return ClusterCheck(CLAIMS.kind, True, f"{name} is {phase}", "")


async def _bound_later(patient: Patient, claim: Body) -> bool:
    """Some classes wait for the first pod; such a claim is Pending for good reason."""
    name = claim["spec"].get("storageClassName")
    if not name:
        return False
    try:
        found = await patient.cluster.get(STORAGE_CLASSES, name)
    except NotFoundError:
        return False
    except ApiError:
        return True  # not known
    return bool(found.get("volumeBindingMode") == "WaitForFirstConsumer")


async def _queue(patient: Patient) -> list[ClusterCheck]:
    kueue = patient.request.job.scheduling.kueue
    if kueue is None:
        return []
    last: ClusterCheck | None = None
    for version in queued.VERSIONS:
        kind = Kind(f"{DOMAIN}/{version}", "LocalQueue", "localqueues")
        last = await _exists(patient, kind, kueue.queue)
        if last.ok:
            return [last]
    return [last] if last is not None else []
