"""The code that a TrainingJob names: a ConfigMap with a packed folder, made by people.

Pods mount it themselves. It is read here only when a job that runs is to change over to it, because
a controller may read no ConfigMap but those that its role names.
"""

from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, Cluster, NotFoundError
from holdfast.drivers.kubernetes.config_map import binary_of
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.drivers.kubernetes.manifests.storage import code_maps
from holdfast.drivers.kubernetes.shipped_code import ALWAYS_BYTES
from holdfast.operator.updating import SpecUpdate


async def with_code(cluster: Cluster, request: Request, update: SpecUpdate) -> SpecUpdate:
    """The update with the code that it brings, or why that cannot be had. Raises `ApiError`."""
    if not update.code:
        return update
    try:
        return update.with_bundle(await _bundle(cluster, request))
    except NotFoundError:
        why = f"ConfigMap {update.code}, which spec.code names, does not exist"
    except ValueError as error:
        why = f"spec.code: {error}"
    return SpecUpdate(missing=f"{why}; the job continues with the code that it has")


async def _bundle(cluster: Cluster, request: Request) -> bytes:
    """Its files one after the other. Raises `ValueError`, `ApiError`."""
    data = b""
    for name, file in code_maps(request).items():
        found = binary_of(await cluster.get(CONFIG_MAPS, name, namespace=request.namespace))
        if file not in found:
            raise ValueError(f"ConfigMap {name} has no file {file} in its binaryData")
        data += found[file]
    if len(data) > ALWAYS_BYTES:
        raise ValueError(
            f"the code in ConfigMap {request.job.code} has {len(data) / 1e6:.1f} MB, and an update "
            f"may bring {ALWAYS_BYTES / 1e6:.1f} MB: suspend and resume the job to use it"
        )
    return data
