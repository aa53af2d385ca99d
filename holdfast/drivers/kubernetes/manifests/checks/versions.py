"""What a version of Kubernetes cannot do yet."""

from collections.abc import Iterator

from holdfast.drivers.kubernetes.manifests import gang, native
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.errors import Error

CLAIMS_SINCE = (1, 34)  # resource.k8s.io/v1


def problems(request: Request) -> Iterator[Error]:
    """One problem for each setting that needs a newer Kubernetes."""
    job = request.job
    if job.resources.claims and request.version < CLAIMS_SINCE:
        yield _too_old(request, "resources.claims", CLAIMS_SINCE)
    if job.scheduling.gang != "native":
        return
    by = "pods" if request.engine == "cronjob" else request.engine
    since = gang.NATIVE_SINCE[by]
    if request.version < since:
        yield _too_old(request, "scheduling.gang: native", since)
    elif job.scheduling.topology and request.version < native.TOPOLOGY_SINCE:
        yield _too_old(request, "scheduling.topology", native.TOPOLOGY_SINCE)


def _too_old(request: Request, path: str, since: tuple[int, int]) -> Error:
    return Error(
        "kubernetes-too-old",
        f"{path} needs Kubernetes {_dotted(since)} on engine {request.engine}",
        why=f"the target version is Kubernetes {_dotted(request.version)}",
        help=f"holdfast render --kubernetes-version {_dotted(since)}, if the cluster has that "
        "version",
    )


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
