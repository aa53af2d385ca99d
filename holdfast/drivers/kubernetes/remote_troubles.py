"""Why a job's pods do not run, as errors with a way out. Pure, but for the fetching of evidence.

What pods say of themselves is not always enough: an engine that may not make pods says so only in
an event, and why a claim has no volume stands in an event of the claim. Old events outlive their
cause, so they count only while what they explain is still missing.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.drivers.kubernetes.cluster import CLAIMS, EVENTS, ApiError, Cluster
from holdfast.drivers.kubernetes.pods import CONFIG, PULL, Container, Pod
from holdfast.drivers.kubernetes.queued import held_back
from holdfast.drivers.kubernetes.remote import Look
from holdfast.drivers.kubernetes.submit_refusals import About, spoken
from holdfast.errors import Error
from holdfast.spec import Job

REFUSED = "the cluster to accept its pods: "  # how the driver's status says it
FAILED = ("FailedCreate", "FailedCreatePod", "FailedCreatePodReason")
UNSTARTABLE = {
    **dict.fromkeys(("FailedMount", "FailedAttachVolume", "FailedMapVolume"), "mount a volume"),
    **dict.fromkeys(("FailedCreatePodSandBox", "NetworkNotReady"), "get a network and a sandbox"),
    "FailedPrepareDynamicResources": "get the devices of its resource claims",
}
"""What a pod cannot do on its machine, by the reason of the kubelet's event."""


class _Object(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""


class EventObject(msgspec.Struct, rename="camel", frozen=True):
    """What happened to an object."""

    involved_object: _Object = _Object()
    reason: str = ""
    message: str = ""
    type: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None

    @property
    def at(self) -> str:
        """When, so that it can be compared."""
        return self.last_timestamp or self.event_time or ""


class _ClaimStatus(msgspec.Struct, frozen=True):
    phase: str = ""


class _ClaimMeta(msgspec.Struct, frozen=True):
    name: str


class ClaimObject(msgspec.Struct, frozen=True):
    """A PersistentVolumeClaim."""

    metadata: _ClaimMeta
    status: _ClaimStatus = _ClaimStatus()


class Evidence(NamedTuple):
    """What else the namespace says."""

    events: Sequence[EventObject] = ()
    claims: Sequence[ClaimObject] | None = None  # None: not known
    queued: str = ""  # why Kueue holds the job back


async def evidence(cluster: Cluster, seen: Look) -> Evidence:
    """Events, claims and Kueue's words, if anything waits. What may not be read is left out."""
    if seen.outcome is not None or not waiting(seen):
        return Evidence()
    pods = [pod.uid for pod in seen.nodes]
    queued = await held_back(cluster, seen.name, pods) if seen.queue else ""
    events: list[EventObject] = []
    claims: list[ClaimObject] | None = None
    try:
        events = (await cluster.listed(EVENTS, EventObject)).items
        claims = (await cluster.listed(CLAIMS, ClaimObject)).items
    except ApiError:
        pass  # the rest of the answer does not depend on it
    return Evidence([event for event in events if event.type == "Warning"], claims, queued)


def waiting(seen: Look) -> bool:
    """Whether some pod is missing or does not run."""
    up = [pod for pod in seen.nodes if pod.running and not pod.leaving]
    return bool(_controllers(seen)) or not seen.controllers or len(up) < seen.wanted


def _controllers(seen: Look) -> list[Pod]:
    """Controllers as long as none of them runs: one that cannot stand by holds up nobody."""
    return [] if any(pod.running for pod in seen.controllers) else seen.controllers


def troubles(seen: Look, found: Evidence, about: About) -> list[Error]:
    """Everything that keeps the job's pods from running and that somebody can do something about.

    `about` names the job and the words to be added to commands.
    """
    if seen.outcome is not None:
        return []
    groups = ((f"nodes of {seen.name}", seen.nodes), (f"controller of {seen.name}",
              _controllers(seen)))  # fmt: skip
    per_group = [e for who, pods in groups for e in _of_pods(who, pods, seen.name, about)]
    unstarted = [e for who, pods in groups for e in _creating(who, pods, seen.name, found, about)]
    return [*_refused(seen, found, about), *_claims(seen, found, about), *unstarted, *per_group]


# ── pods that are not even made ───────────────────────────────────────────────────────────────


def _refused(seen: Look, found: Evidence, about: About) -> list[Error]:
    waits = seen.record.status.waiting_for if seen.record is not None else None
    if waits is not None and waits.startswith(REFUSED):
        return [_not_made(waits.removeprefix(REFUSED), about)]
    missing = len([p for p in seen.nodes if not p.ended]) < seen.wanted
    names = [f"{seen.name}-controller"] if not seen.controllers else []
    names += [seen.name] if missing else []
    said = [e for e in found.events if e.reason in FAILED and _concerns(e, names)]
    newest = max(said, key=lambda event: event.at, default=None)
    return [_not_made(newest.message, about)] if newest is not None else []


def _concerns(event: EventObject, names: Iterable[str]) -> bool:
    """Engines make objects in between, whose names begin with that of the job."""
    who = event.involved_object.name
    return any(who == name or who.startswith(f"{name}-") for name in names)


def _not_made(message: str, about: About) -> Error:
    known = spoken(message, about)
    if known is not None:
        return known
    return Error(
        "cluster-refused",
        f"the pods of {about.what} cannot be created",
        why=message,
        help=f"holdfast doctor --on kubernetes{about.words} job.yaml",
    )


# ── volumes ───────────────────────────────────────────────────────────────────────────────────


def _claims(seen: Look, found: Evidence, about: About) -> list[Error]:
    pods = (*seen.nodes, *_controllers(seen))
    if seen.job is None or found.claims is None or not any(map(_mounts_none_yet, pods)):
        return []
    there = {claim.metadata.name: claim.status.phase for claim in found.claims}
    named = claims_of(seen.job)
    missing = [name for name in named if name not in there]
    prefixes = tuple(f"{pod.metadata.name}-" for pod in seen.nodes)
    own = [name for name in there if prefixes and name.startswith(prefixes)]
    pending = [n for n in dict.fromkeys([*named, *own]) if there.get(n) == "Pending"]
    return [
        *(_claim(name, "it does not exist", about) for name in missing),
        *(_claim(name, _why_unbound(name, found.events), about) for name in pending),
    ]


def _mounts_none_yet(pod: Pod) -> bool:
    """Claims are looked at before a pod has a machine, or while its containers are made."""
    return not pod.running and not pod.ended


def claims_of(job: Job) -> list[str]:
    """Claims that the job names."""
    names = [dataset.pvc for dataset in job.datasets if dataset.pvc is not None]
    named = (job.checkpoints.shared, job.kubernetes.journal)
    own = (claim.pvc for claim in named if claim is not None)
    return list(dict.fromkeys([*names, *(pvc for pvc in own if pvc is not None)]))


def _why_unbound(name: str, events: Iterable[EventObject]) -> str:
    said = [
        e for e in events if (e.involved_object.kind, e.involved_object.name) == (CLAIMS.kind, name)
    ]
    newest = max(said, key=lambda event: event.at, default=None)
    return newest.message if newest is not None else "it is not bound to a volume yet (Pending)"


def _claim(name: str, why: str, about: About) -> Error:
    return Error(
        "claim-pending",
        f"{about.what} is waiting for PersistentVolumeClaim {name}",
        why=why,
        help=f"kubectl describe pvc {name} -n {about.namespace}   (kubectl get storageclass "
        "shows what a claim can ask for)",
    )


# ── pods that do not start ────────────────────────────────────────────────────────────────────


def _of_pods(who: str, pods: Sequence[Pod], job: str, about: About) -> list[Error]:
    alive = [pod for pod in pods if not pod.ended and not pod.leaving]
    found = []
    for reason, ours in (("pull", PULL), ("config", CONFIG)):
        said = [text for pod in alive if (text := _waits(pod, ours, job)) is not None]
        if said:
            found.append(_unstarted(reason, who, said, len(alive), about))
    said = [text for pod in alive if (text := _unscheduled(pod)) is not None]
    return [*found, _no_machine(who, said, len(alive), about)] if said else found


def _creating(
    who: str, pods: Sequence[Pod], job: str, found: Evidence, about: About
) -> list[Error]:
    """What keeps a kubelet from starting them: the pod itself says only that its containers are
    being created, for as long as it takes."""
    alive = [pod for pod in pods if not pod.ended and not pod.leaving]
    waiting = {pod.metadata.name for pod in alive if pod.spec.node_name and not pod.running}
    newest: dict[str, EventObject] = {}
    for event in found.events:
        name = event.involved_object.name
        soon = f'secret "{job}-token" not found' in event.message
        if event.reason in UNSTARTABLE and name in waiting and not soon:
            newest[name] = max(newest.get(name, event), event, key=lambda e: e.at)
    if not newest:
        return []
    most = Counter((e.reason, e.message) for e in newest.values()).most_common(1)[0][0]
    what = UNSTARTABLE[most[0]]
    return [
        Error(
            "pod-unstartable",
            f"{_some(len(newest), len(alive), who)} cannot {what}",
            why=": ".join(most),
            help=f"kubectl describe pod {min(newest)} -n {about.namespace}   (the pods start "
            "automatically once that is possible)",
        )
    ]


def _waits(pod: Pod, reasons: frozenset[str], job: str) -> str | None:
    """What a container says that waits for one of these reasons."""
    for container in [*pod.status.init_container_statuses, *pod.status.container_statuses]:
        waiting = container.state.waiting
        if waiting is not None and waiting.reason in reasons and not _soon(container, job):
            return f"{waiting.reason}: {waiting.message or 'no message'}"
    return None


def _soon(container: Container, job: str) -> bool:
    """The token of a job is made by its controller: it is not there at first."""
    waiting = container.state.waiting
    return waiting is not None and f'secret "{job}-token" not found' in waiting.message


def _unstarted(reason: str, who: str, said: Sequence[str], of: int, about: About) -> Error:
    why = Counter(said).most_common(1)[0][0]
    told = _some(len(said), of, who)
    if reason == "pull":
        return Error(
            "image-unavailable",
            f"{told} cannot pull the image",
            why=why,
            help=f"holdfast delete {about.what.rpartition(' ')[2]} --force --on kubernetes"
            f"{about.words}   (correct image: in the job file, then submit it again)",
        )
    return Error(
        "pod-unstartable",
        f"{told} cannot be started",
        why=why,
        help=f"create what is missing (kubectl get secrets,configmaps -n {about.namespace}); the "
        "pods then start automatically",
    )


def _some(count: int, of: int, who: str) -> str:
    return f"the {who}" if who.startswith("controller") else f"{count} of {of} {who}"


def _unscheduled(pod: Pod) -> str | None:
    for condition in pod.status.conditions:
        if (condition.type, condition.status) == ("PodScheduled", "False"):
            volume = "persistentvolumeclaim" in condition.message.lower()
            gated = condition.reason == "SchedulingGated"
            return None if volume or gated else condition.message
    return None


def _no_machine(who: str, said: Sequence[str], of: int, about: About) -> Error:
    why = Counter(said).most_common(1)[0][0]
    short = lacking(why)
    lack = f": {', '.join(f'Insufficient {one}' for one in short)}" if short else ""
    return Error(
        "unschedulable",
        f"{_some(len(said), of, who)} cannot be scheduled{lack}",
        why=why or "no message from the scheduler",
        help=f"holdfast doctor --on kubernetes{about.words} job.yaml   (counts matching machines); "
        "request less, or wait: the pods start when capacity is available",
    )


def lacking(message: str) -> list[str]:
    """Resources of which machines have too little, the most frequent first."""
    counts = {
        resource.rstrip(".,"): int(count)
        for count, resource in re.findall(r"(\d+) Insufficient ([^\s,]+)", message)
    }
    return sorted(counts, key=lambda resource: -counts[resource])
