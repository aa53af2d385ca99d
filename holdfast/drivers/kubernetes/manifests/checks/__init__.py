"""What is wrong with a request, found before anything is rendered: each problem is an `Error`.

A setting that an engine cannot honour, that has no effect, that contradicts another, that cannot be
true in size, a name that will not fit, a secret that everybody could read: all of them are refused,
because a manifest that silently lacks what was asked for is found out when it is too late. Each
module looks for one kind of problem; a request is fine when none of them finds any.
"""

from holdfast.drivers.kubernetes.manifests.checks import (
    conflicts,
    effects,
    frameworks,
    limits,
    naming,
    paths,
    secrecy,
    sizes,
    together,
    versions,
)
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.errors import Error

FAMILIES = (
    limits, frameworks, versions, effects, conflicts, together, paths, sizes, naming, secrecy
)  # fmt: skip


def problems(request: Request) -> list[Error]:
    """Everything that is wrong, in the order in which one would correct it."""
    if request.job.image is None:
        return [_no_image()]
    return [error for family in FAMILIES for error in family.problems(request)]


def require(request: Request) -> None:
    """Raise the first problem if there is one."""
    found = problems(request)
    if found:
        raise found[0]


def _no_image() -> Error:
    return Error(
        "image-missing",
        "image: a job on Kubernetes needs a container image",
        why="the script and its imports must be available on the machines",
        help="add `image: registry.example/train:1` to the job file; deploy/images shows how one "
        "is built",
    )
