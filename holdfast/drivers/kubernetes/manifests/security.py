"""Security contexts: the `restricted` pod security standard, unless the job asks for the host.

Managed pods are built from an image of ours that needs no root. In plain mode the image is
anybody's and many run as root, so nothing is imposed there unless the job says so. Who may run as
root need not: whatever user an image has, the group makes mounted secrets readable for it.
"""

from holdfast.drivers.kubernetes.manifests.request import Body, Request

GROUP = 1000  # owner of mounted files; the images in deploy/images run as this user and group
LOCKING = frozenset(("infiniband", "roce"))  # profiles that pin memory for the network card


def rootless(request: Request) -> bool:
    """Whether containers must not run as root."""
    image = request.job.image
    root = image.root if image is not None else "auto"
    return request.managed if root == "auto" else not root


def pod(request: Request) -> Body:
    """`securityContext` of a pod."""
    group: Body = {"fsGroup": GROUP, "fsGroupChangePolicy": "OnRootMismatch"}
    if not rootless(request):
        return group if request.managed or _mounts_secrets(request) else {}
    return {"runAsNonRoot": True, **group, "seccompProfile": {"type": "RuntimeDefault"}}


def _mounts_secrets(request: Request) -> bool:
    return any(secret.path is not None for secret in request.job.secrets)


def container(request: Request, *, frozen: bool = False) -> Body:
    """`securityContext` of a container; `frozen`: it writes nothing outside its volumes."""
    locks = request.job.network.profile in LOCKING
    capabilities: Body = {"add": ["IPC_LOCK"]} if locks else {}
    if not rootless(request):
        return {"capabilities": capabilities} if locks else {}
    return {
        "allowPrivilegeEscalation": False,
        **({"readOnlyRootFilesystem": True} if frozen else {}),
        "capabilities": {"drop": ["ALL"], **capabilities},
    }
