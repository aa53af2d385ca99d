"""Will a job run in this cluster, and if not, what to do about it: every check, in order.

With a job file the checks are about that job: the rights that submitting it takes, the kinds it
needs, the storage and names it mentions, room for its nodes. Without one they are about a smallest
job, and about which engines can be used at all. What may not be seen is said to be unknown and is
no failure: many people may submit jobs but not list machines.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.drivers.kubernetes.cluster import (
    NAMESPACES,
    ApiError,
    Cluster,
    DeniedError,
    Kind,
    NotFoundError,
    kind_of,
)
from holdfast.drivers.kubernetes.ending import main_object
from holdfast.drivers.kubernetes.granted import AT_ONCE, Right, lacking
from holdfast.drivers.kubernetes.manifests.kueue import DOMAIN, queue_of
from holdfast.drivers.kubernetes.manifests.request import NEWEST, OLDEST, Request
from holdfast.drivers.kubernetes.submit import wanted
from holdfast.drivers.kubernetes.submit_refusals import INSTALL
from holdfast.spec.cluster import ENGINES

QUEUES = Kind("scheduling.volcano.sh/v1beta1", "Queue", "queues", namespaced=False)
VOLCANO_IDLE = "only the CRDs of Volcano are installed: no controller has created its queue"
PEOPLE = (  # what people do with a job that runs: group, resource, verbs
    ("", "pods", ("get", "list", "watch", "delete")),
    ("", "pods/log", ("get",)),
    ("", "configmaps", ("get", "list", "patch")),
    ("", "events", ("list",)),
    ("apps", "deployments", ("get",)),
    ("apps", "deployments/scale", ("patch",)),
)
QUEUED = ((DOMAIN, "workloads", ("list",)),)  # to see why a queue does not admit it


class ClusterCheck(NamedTuple):
    """One thing that was looked at."""

    name: str
    ok: bool
    found: str
    remedy: str


@dataclass(frozen=True)
class Patient:
    """What is examined."""

    cluster: Cluster
    request: Request  # with the version of the cluster's server
    given: bool  # whether it is a job of the user's
    server: str
    words: str  # to be added to commands


Examination = Callable[[Patient], Awaitable[list[ClusterCheck]]]


async def server(patient: Patient) -> list[ClusterCheck]:
    """The version of the API server."""
    parts = patient.server.removeprefix("v").split(".")
    minor = int("".join(c for c in parts[1] if c.isdigit()) or 0) if len(parts) > 1 else 0
    known = (int(parts[0]), minor) >= OLDEST if parts[0].isdigit() else False
    newest = f"1.{OLDEST[1]} to 1.{NEWEST[1]} are supported"
    return [ClusterCheck("server", known, f"Kubernetes {patient.server}", newest)]


async def namespace(patient: Patient) -> list[ClusterCheck]:
    """The namespace."""
    name = patient.cluster.namespace
    remedy = f"kubectl create namespace {name}"
    try:
        found = await patient.cluster.get(NAMESPACES, name)
    except DeniedError:
        return [
            ClusterCheck(
                "namespace", True, f"{name} (no permission to check whether it exists)", remedy
            )
        ]
    except NotFoundError:
        return [ClusterCheck("namespace", False, f"{name} does not exist", remedy)]
    leaving = "deletionTimestamp" in found["metadata"]
    return [
        ClusterCheck("namespace", not leaving, f"{name}{' is being deleted' * leaving}", remedy)
    ]


# ── rights ────────────────────────────────────────────────────────────────────────────────────


async def rights(patient: Patient) -> list[ClusterCheck]:
    """What submitting the job and working with it takes."""
    asked = needed(patient.request)
    missing = await lacking(patient.cluster, asked)
    if not missing:
        return [ClusterCheck("rights", True, f"all {len(asked)} required permissions", "")]
    found = "; ".join(f"{of}: {', '.join(verbs)}" for of, verbs in _by_resource(missing).items())
    return [
        ClusterCheck("rights", False, f"you lack permissions: {found}", _grant(patient, missing))
    ]


def needed(request: Request) -> set[Right]:
    """Rights on each object, for looking after the job, and those that its roles hand on.

    Nobody may hand on a right without having it.
    """
    found: set[Right] = set()
    for body in wanted(request):
        kind = kind_of(body)
        group, name = _group(kind), body["metadata"]["name"]
        for verb in ("get", "patch", "delete"):
            found.add(Right(group, kind.plural, verb, name, kind.namespaced))
        found.add(Right(group, kind.plural, "create", "", kind.namespaced))
        for rule in body.get("rules", ()):
            found |= _handed_on(rule, namespaced=kind.namespaced)
    people = [*PEOPLE, *(QUEUED if queue_of(request.job) else ())]
    return found | {Right(group, what, verb) for group, what, verbs in people for verb in verbs}


def _group(kind: Kind) -> str:
    return kind.api.rpartition("/")[0]


def _handed_on(rule: dict[str, Any], *, namespaced: bool) -> set[Right]:
    return {
        Right(group, resource, verb, name, namespaced)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames") or [""]
    }


def _by_resource(rights: Iterable[Right]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for right in rights:
        verbs = found.setdefault(right.of, [])
        if right.verb not in verbs:
            verbs.append(right.verb)
    return found


def _grant(patient: Patient, missing: list[Right]) -> str:
    """Commands for an administrator."""
    of, verbs = next(iter(_by_resource(missing).items()))
    inside = next(right for right in missing if right.of == of).namespaced
    kind, where = ("role", f" -n {patient.cluster.namespace}") if inside else ("clusterrole", "")
    more = "" if len(_by_resource(missing)) == 1 else ", similarly for the others,"
    return (
        f"an administrator can: kubectl create {kind} holdfast-user{where} "
        f"--verb={','.join(verbs)} --resource={of}{more} and bind it to you "
        f"(kubectl create {kind}binding)"
    )


async def conditions(patient: Patient) -> list[ClusterCheck]:
    """Whether the controller will know what machines say of themselves: their conditions, taints.
    It does without where it may not look, so this is no failure."""
    request = patient.request
    if not request.managed:
        return []
    if request.job.access.cordon:
        found = "the controller watches conditions and taints of machines"
        return [ClusterCheck("machine conditions", True, found, "")]
    account = f"{patient.cluster.namespace}:{request.name}-controller"
    found = (
        "conditions and taints of machines are watched only with the right to: access.cordon: "
        "true, or an administrator binds a ClusterRole (get, list, watch of nodes) to "
        f"ServiceAccount {account}"
    )
    return [ClusterCheck("machine conditions", True, found, "")]


# ── kinds ─────────────────────────────────────────────────────────────────────────────────────


async def engines(patient: Patient) -> list[ClusterCheck]:
    """Which engines can be used, and whether the job's kinds are all served."""
    served = await _served(patient.cluster)
    usable = [e for e in ENGINES if _usable(patient.request, e, served)]
    idle = "volcano" in usable and not await _volcano_runs(patient.cluster)
    usable = [e for e in usable if not (idle and e == "volcano")]
    engine = patient.request.engine
    others = ", ".join(e for e in ENGINES if e not in usable)
    found = f"usable: {', '.join(usable)}" + (f"; not usable: {others}" if others else "")
    found += f" ({VOLCANO_IDLE})" if idle else ""
    checks = [ClusterCheck("engines", engine in usable, found, _install(patient.request))]
    lacking = {
        (str(body["apiVersion"]), str(body["kind"]))
        for body in wanted(patient.request)
        if (kind := kind_of(body)) and (kind.api, kind.kind) not in served
    }
    return [*checks, *(_no_kind(api, kind) for api, kind in sorted(lacking))]


def _usable(request: Request, engine: Any, served: set[tuple[str, str]]) -> bool:
    kind = main_object(Request(request.job, engine, "managed"))
    return kind is None or (kind.api, kind.kind) in served


async def _volcano_runs(cluster: Cluster) -> bool:
    """Definitions alone make no pods. Volcano's own controllers make the queue `default` when they
    first run, and look after its status."""
    try:
        return bool((await cluster.get(QUEUES, "default")).get("status"))
    except NotFoundError:
        return False
    except ApiError:
        return True  # it may not be seen


def _install(request: Request) -> str:
    kind = main_object(request)
    group = _group(kind) if kind is not None else ""
    return f"install {INSTALL.get(group, group)}, or choose another with --engine"


def _no_kind(api: str, kind: str) -> ClusterCheck:
    group = api.rpartition("/")[0]
    return ClusterCheck(
        "api", False, f"{kind} ({api}) is not served", f"install {INSTALL.get(group, api)}"
    )


async def _served(cluster: Cluster) -> set[tuple[str, str]]:
    """Group version and kind of everything that the cluster serves."""
    groups = await cluster.ask("/apis")
    versions = [v["groupVersion"] for g in groups.get("groups", ()) for v in g["versions"]]
    paths = {"v1": "/api/v1", **{version: f"/apis/{version}" for version in versions}}
    turns = asyncio.Semaphore(AT_ONCE)

    async def kinds(version: str, path: str) -> set[tuple[str, str]]:
        async with turns:
            try:
                said = await cluster.ask(path)
            except ApiError:
                return set()  # an aggregated API whose server is away
        return {(version, resource["kind"]) for resource in said.get("resources", ())}

    return set().union(*await asyncio.gather(*(kinds(v, p) for v, p in paths.items())))
