"""Traps in what a pod asks for: devices, memory, shared memory, volumes, variables."""

import re
from collections.abc import Iterable, Iterator
from fractions import Fraction

from holdfast.drivers.kubernetes.lint.check import Hit, check
from holdfast.drivers.kubernetes.lint.look import part, parts, quantity, text, value
from holdfast.drivers.kubernetes.lint.spots import Spot, containers, env, gpus, program
from holdfast.drivers.kubernetes.manifests.request import Body

SECRET_NAMES = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_?KEY|ACCESS_KEY(_ID)?"
    r"|SECRET_KEY|PRIVATE_KEY)$"
)
SECRET_VALUES = re.compile(
    r"\b(AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,}|hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|glpat-[A-Za-z0-9_-]{16,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----|[a-z][a-z0-9+]*://[^/\s:@$]+:[^/\s:@$]+@"
)
HARMLESS = re.compile(r"^(|\d+(\.\d+)?|true|false|none|null|yes|no|.*\$\(.*|/.*)$", re.IGNORECASE)


def _exact(resource: str) -> bool:
    return "/" in resource or resource.startswith("hugepages-")


@check(
    "gpu-limit-differs",
    "error",
    "pod",
    why="devices and huge pages cannot be overcommitted: Kubernetes refuses a request without an "
    "equal limit",
    help="write the number under limits only; the request follows it",
)
def _gpu_limit_differs(spot: Spot) -> Iterator[Hit]:
    for container in containers(spot.body, init=True):
        limits = part(container, "resources", "limits")
        for resource, asked in part(container, "resources", "requests").items():
            wanted = limits.get(resource)
            if _exact(str(resource)) and quantity(asked) != quantity(wanted):
                there = "no limit" if wanted is None else f"a limit of {wanted}"
                yield _resources(container), f"asks for {asked} {resource} with {there}"


def _resources(container: Body) -> str:
    return f"spec.containers[{text(container, 'name')}].resources"


@check(
    "gpu-fraction",
    "error",
    "pod",
    why="devices are counted in whole numbers; a part of a GPU is a resource of another name",
    help="ask for 1, or for a MIG or time-sliced resource as in nvidia.com/mig-3g.40gb",
)
def _gpu_fraction(spot: Spot) -> Iterator[Hit]:
    for container in containers(spot.body, init=True):
        for resource, asked in part(container, "resources", "limits").items():
            found = quantity(asked)
            if "/" in str(resource) and found is not None and found.denominator != 1:
                yield _resources(container), f"asks for {asked} {resource}"


@check(
    "hugepages-alone",
    "error",
    "pod",
    why="Kubernetes refuses huge pages in a container that asks for neither cpu nor memory",
    help="add cpu and memory to the limits",
)
def _hugepages_alone(spot: Spot) -> Iterator[Hit]:
    for container in containers(spot.body, init=True):
        asked = {**part(container, "resources", "requests")}
        asked |= part(container, "resources", "limits")
        if any(str(r).startswith("hugepages-") for r in asked) and not {"cpu", "memory"} & {*asked}:
            yield _resources(container), "asks for huge pages alone"


# ── shared memory ─────────────────────────────────────────────────────────────────────────────


def _in_memory(template: Body) -> dict[str, object]:
    """Volumes in memory and their limits."""
    volumes = parts(template, "spec", "volumes")
    return {
        text(volume, "name"): value(volume, "emptyDir", "sizeLimit")
        for volume in volumes
        if value(volume, "emptyDir", "medium") == "Memory"
    }


@check(
    "shm-missing",
    "warning",
    "pod",
    why="without it /dev/shm has 64 MiB, too little for NCCL and for data loaders with workers, "
    "which die with a bus error",
    help="mount an emptyDir with medium Memory and a sizeLimit at /dev/shm",
)
def _shm_missing(spot: Spot) -> Iterator[Hit]:
    if not (spot.ends and gpus(spot.body)) or part(spot.body, "spec").get("hostIPC") is True:
        return
    memory = _in_memory(spot.body)
    mounts = [m for c in containers(spot.body) for m in parts(c, "volumeMounts")]
    if not any(m.get("mountPath") == "/dev/shm" and text(m, "name") in memory for m in mounts):
        yield "spec.volumes", f"{gpus(spot.body)} GPUs and nothing at /dev/shm"


@check(
    "shm-over-memory",
    "error",
    "pod",
    why="the content of a memory-backed volume counts against the memory limit of the container "
    "that writes it: the kernel OOM-kills it before the volume is full",
    help="raise the memory limit by the size of the volume, or make the volume smaller",
)
def _shm_over_memory(spot: Spot) -> Iterator[Hit]:
    limits = [quantity(value(c, "resources", "limits", "memory")) for c in containers(spot.body)]
    sizes = [quantity(size) for size in _in_memory(spot.body).values()]
    allowed = sum((limit for limit in limits if limit is not None), Fraction(0))
    wanted = sum((size for size in sizes if size is not None), Fraction(0))
    if limits and None not in limits and wanted >= allowed > 0:
        yield "spec.volumes", f"{_gib(wanted)} in memory, and a limit of {_gib(allowed)} for all"


def _gib(count: Fraction) -> str:
    return f"{float(count / 1024**3):.3g} GiB"


@check(
    "shm-unlimited",
    "warning",
    "pod",
    why="a memory-backed volume without sizeLimit can grow until the pod is OOM-killed",
    help="set sizeLimit; 2 GiB for each worker is a good start",
)
def _shm_unlimited(spot: Spot) -> Iterator[Hit]:
    for name, size in _in_memory(spot.body).items():
        if size is None:
            yield f"spec.volumes[{name}]", "has no sizeLimit"


# ── volumes, claims, variables ────────────────────────────────────────────────────────────────


@check(
    "mount-without-volume",
    "error",
    "pod",
    why="Kubernetes refuses a pod that mounts a volume it does not have",
    help="add the volume under spec.volumes, or correct the name",
)
def _mount_without_volume(spot: Spot) -> Iterator[Hit]:
    if spot.engine == "StatefulSet":
        return  # its claims are volumes too
    known = {text(volume, "name") for volume in parts(spot.body, "spec", "volumes")}
    for container in containers(spot.body, init=True):
        for mount in parts(container, "volumeMounts"):
            if text(mount, "name") not in known:
                yield _mounts(container), f"no volume is called {text(mount, 'name')!r}"


def _mounts(container: Body) -> str:
    return f"spec.containers[{text(container, 'name')}].volumeMounts"


@check(
    "mount-path-twice",
    "error",
    "pod",
    why="Kubernetes refuses two mounts at one path",
    help="keep one of them",
)
def _mount_path_twice(spot: Spot) -> Iterator[Hit]:
    for container in containers(spot.body, init=True):
        paths = [text(m, "mountPath").rstrip("/") for m in parts(container, "volumeMounts")]
        for path in _twice(paths):
            yield _mounts(container), f"{path} is mounted twice"


def _twice(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]


@check(
    "claim-unknown",
    "error",
    "pod",
    why="a container can use only the device claims that its pod declares",
    help="add the claim to spec.resourceClaims of the pod",
)
def _claim_unknown(spot: Spot) -> Iterator[Hit]:
    known = {text(claim, "name") for claim in parts(spot.body, "spec", "resourceClaims")}
    for container in containers(spot.body, init=True):
        for claim in parts(container, "resources", "claims"):
            if text(claim, "name") not in known:
                yield _resources(container), f"the pod has no claim {text(claim, 'name')!r}"


@check(
    "claim-unused",
    "warning",
    "pod",
    why="devices of a claim that no container names are reserved, and no process can see them",
    help="add it under resources.claims of the container",
)
def _claim_unused(spot: Spot) -> Iterator[Hit]:
    inner = containers(spot.body, init=True)
    used = {text(claim, "name") for c in inner for claim in parts(c, "resources", "claims")}
    for claim in parts(spot.body, "spec", "resourceClaims"):
        if text(claim, "name") not in used:
            yield "spec.resourceClaims", f"no container uses {text(claim, 'name')!r}"


@check(
    "env-twice",
    "warning",
    "pod",
    why="of two variables with one name the last one wins, silently",
    help="keep one of them",
)
def _env_twice(spot: Spot) -> Iterator[Hit]:
    for container in containers(spot.body, init=True):
        for name in _twice(text(item, "name") for item in parts(container, "env")):
            yield f"spec.containers[{text(container, 'name')}].env", f"{name} is set twice"


@check(
    "secret-in-plain-sight",
    "error",
    "pod",
    "ConfigMap",
    why="everyone with read access to the object, its history or its repository has the secret",
    help="put it into a Secret and refer to it with valueFrom.secretKeyRef",
)
def _secret_in_plain_sight(spot: Spot) -> Iterator[Hit]:
    if spot.kind == "ConfigMap":
        yield from (
            (f"data.{key}", "holds a secret")
            for key, found in part(spot.body, "data").items()
            if _is_secret(str(key), found, by_name=_variable(str(key)))
        )
        return
    for container in containers(spot.body, init=True):
        place = f"spec.containers[{text(container, 'name')}]"
        for name, found in env(container).items():
            if _is_secret(name, found, by_name=True):
                yield f"{place}.env", f"{name} is in plain text"
        if any(SECRET_VALUES.search(word) for word in program(container)):
            yield f"{place}.command", "holds what looks like a secret"


def _variable(key: str) -> bool:
    return key == key.upper()


def _is_secret(name: str, found: object, *, by_name: bool) -> bool:
    if not isinstance(found, str) or HARMLESS.fullmatch(found):
        return False
    named = by_name and SECRET_NAMES.search(name.upper()) is not None
    return named or SECRET_VALUES.search(found) is not None


@check(
    "restart-rules-without-policy",
    "error",
    "pod",
    why="Kubernetes refuses restartPolicyRules in a container without a restartPolicy of its own",
    help="set restartPolicy: Never in that container",
)
def _restart_rules_without_policy(spot: Spot) -> Iterator[Hit]:
    for container in containers(spot.body, init=True):
        if container.get("restartPolicyRules") and not container.get("restartPolicy"):
            yield f"spec.containers[{text(container, 'name')}]", "has rules and no policy"


@check(
    "image-moves",
    "warning",
    "pod",
    why="a pod that replaces another pulls whatever the tag means by then, so that ranks of one "
    "job may run different code",
    help="name a version or, best, a digest",
)
def _image_moves(spot: Spot) -> Iterator[Hit]:
    for container in containers(spot.body):
        image = text(container, "image")
        if spot.pods > 1 and image.endswith(":latest"):
            yield f"spec.containers[{text(container, 'name')}].image", f"{image} is a moving tag"
