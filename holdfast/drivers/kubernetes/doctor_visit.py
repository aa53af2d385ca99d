"""All examinations of a cluster, one after the other; one that fails does not end the visit."""

from holdfast.drivers.kubernetes import doctor
from holdfast.drivers.kubernetes.cluster import ApiError, Cluster
from holdfast.drivers.kubernetes.doctor import ClusterCheck, Examination, Patient
from holdfast.drivers.kubernetes.doctor_image import image
from holdfast.drivers.kubernetes.doctor_names import names
from holdfast.drivers.kubernetes.doctor_room import machines, quotas
from holdfast.drivers.kubernetes.manifests.request import NEWEST, OLDEST

ALWAYS: tuple[Examination, ...] = (
    doctor.server,
    doctor.namespace,
    doctor.rights,
    doctor.engines,
    machines,
)
FOR_A_JOB: tuple[Examination, ...] = (quotas, names, doctor.conditions)


async def visit(patient: Patient, *, look_at_image: bool = False) -> list[ClusterCheck]:
    """Every check that can be made."""
    planned = [*ALWAYS, *(FOR_A_JOB if patient.given else ())]
    planned += [image] if look_at_image and patient.given else []
    return [check for examine in planned for check in await _one(examine, patient)]


async def _one(examine: Examination, patient: Patient) -> list[ClusterCheck]:
    try:
        return await examine(patient)
    except ApiError as error:
        name = examine.__name__
        return [
            ClusterCheck(name, False, f"the cluster denies access: {error}", "see the line above")
        ]


async def server_version(cluster: Cluster) -> str:
    """As in `v1.36.2`."""
    return str((await cluster.ask("/version")).get("gitVersion", ""))


def nearest(version: str) -> tuple[int, int]:
    """The version that manifests are made for: that of the server, if it is known."""
    parts = version.removeprefix("v").split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].rstrip("+").isdigit()):
        return NEWEST
    return min(NEWEST, max(OLDEST, (int(parts[0]), int(parts[1].rstrip("+")))))
