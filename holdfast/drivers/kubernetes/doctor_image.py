"""Whether the image of a job has the Python, torch and Holdfast that it needs: a pod that looks.

Only made when asked for, because it pulls the image, which may take minutes. The pod asks for no
GPU and next to no memory, has the job's own security settings, and is deleted again in any case.
"""

import asyncio
import json
import secrets
import time
from typing import Any

import msgspec

from holdfast.drivers.kubernetes.cluster import PODS, ApiError, Cluster
from holdfast.drivers.kubernetes.doctor import ClusterCheck, Patient
from holdfast.drivers.kubernetes.manifests.engines import pods as own_pods
from holdfast.drivers.kubernetes.manifests.names import MANAGED_BY
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.pods import PULL, Pod, ending, waits_for

WITHIN_S = 300.0
GONE_S = 60  # after which a pod that nobody deletes any more ends by itself
POLL_S = 1.0
KEPT = ("securityContext", "imagePullSecrets", "nodeSelector", "tolerations")
LOOK = """
import importlib.metadata as m, json, sys
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
print(json.dumps({"python": sys.version.split()[0], "torch": version("torch"),
                  "holdfast": version("holdfast")}))
"""


async def image(patient: Patient) -> list[ClusterCheck]:
    """What the image says of itself."""
    body = pod(patient.request, f"{patient.request.name}-image-check-{secrets.token_hex(2)}")
    return [await looked(patient.cluster, patient.request, body)]


async def looked(cluster: Cluster, request: Request, body: Body) -> ClusterCheck:
    """What came of it; `body` is the pod that looks. Raises `ApiError`."""
    name = body["metadata"]["name"]
    remedy = "correct `image` in the job file; deploy/images shows how one is built"
    await cluster.create(body)
    try:
        said = await _said(cluster, name)
    finally:
        await cluster.delete(PODS, name, grace_s=0)
    if isinstance(said, str):
        return ClusterCheck("image", False, said, remedy)
    return _judged(request, said)


def pod(request: Request, name: str) -> Body:
    """The pod that looks."""
    spec = own_pods.template(request)["spec"]
    main = spec["containers"][0]
    container = {
        "name": "look",
        "image": main["image"],
        "command": [request.job.image.python if request.job.image else "python", "-c", LOOK],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        **{k: main[k] for k in ("imagePullPolicy", "securityContext") if k in main},
    }
    made: Body = {"name": name, "labels": {MANAGED_BY: "holdfast"}}
    if request.namespace is not None:
        made["namespace"] = request.namespace
    kept = {key: spec[key] for key in KEPT if key in spec}
    account = request.job.access.service_account  # that of the job does not exist yet
    whole = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "activeDeadlineSeconds": int(WITHIN_S) + GONE_S,
        **({"serviceAccountName": account} if account else {}),
        **kept,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": made,
        "spec": {**whole, "containers": [container]},
    }


async def _said(cluster: Cluster, name: str) -> dict[str, Any] | str:
    """The versions, or why there are none. An API server that is busy or away is asked again."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        seen = msgspec.convert(await cluster.get(PODS, name), Pod)
        late = time.monotonic() > deadline
        if seen.ended:
            try:
                return await _versions(cluster, seen)
            except ApiError as error:
                if late or not error.transient:
                    return f"its output cannot be read: {error}"
        elif _hopeless(seen) or late:
            return f"the checking pod is waiting for {waits_for(seen) or 'its end'}"
        await asyncio.sleep(POLL_S)


def _hopeless(seen: Pod) -> bool:
    """A pull that has failed twice is backed off from; it will not succeed by waiting."""
    waiting = [status.state.waiting for status in seen.status.container_statuses]
    return any(w is not None and w.reason in PULL - {"ErrImagePull"} for w in waiting)


async def _versions(cluster: Cluster, seen: Pod) -> dict[str, Any] | str:
    lines = [line async for line in cluster.log(seen.metadata.name, container="look")]
    try:
        found: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        return f"its Python cannot be run: {ending(seen)}; {' '.join(lines[-3:])}"
    return found


def _judged(request: Request, said: dict[str, Any]) -> ClusterCheck:
    python = tuple(int(part) for part in str(said["python"]).split(".")[:2])
    missing = [
        *(["holdfast"] if request.managed and not said["holdfast"] else []),
        *(["torch"] if request.job.uses_torch and not said["torch"] else []),
        *(["Python 3.11"] if request.managed and python < (3, 11) else []),
    ]
    told = ", ".join(f"{name} {version or 'is missing'}" for name, version in said.items())
    remedy = f"install {', '.join(missing)} in the image: pip install 'holdfast[train]'"
    return ClusterCheck("image", not missing, told, remedy)
