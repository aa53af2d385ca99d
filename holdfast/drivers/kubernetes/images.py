"""Another image for a job that trains: it is tried first, then our own pods are replaced.

The trial is a pod that asks for next to nothing: it pulls the image and says what Python, torch and
Holdfast it has. Until it has, nothing is replaced. Then one pod after the other gives way, at most
one at a time: first a spare, and the new pod that comes in its place takes over the rank of a
member, at the end of a step that other nodes have in memory, as for a machine that is about to go.
Without spares a member is evicted, and saves what it alone has while it leaves. Where pods with the
new image are scheduled, but none becomes ready, the job returns to the previous version. A label
says which image a pod was made with, because webhooks may rewrite what its containers say.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from holdfast.controller import NodeState, Phase, State
from holdfast.controller.nodes import PROBE_AFTER
from holdfast.controller.state import Stage
from holdfast.drivers.kubernetes.cluster import PODS, ApiError, Cluster
from holdfast.drivers.kubernetes.manifests.names import IMAGE
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.origin import origin, owned
from holdfast.drivers.kubernetes.pods import Pod
from holdfast.drivers.kubernetes.roster import Roster, uid_of
from holdfast.events import AnyEvent, HealthChanged, Severity, UpdateRequested
from holdfast.versions import FIRST

if TYPE_CHECKING:
    from holdfast.drivers.kubernetes.doctor import ClusterCheck

CONDITION = "image-replaced"
STALLED = "stalled-"  # begins the id of a wish to go back
MARK_CHARS = 16
FIXED = {
    "job": "the pod template of a Job cannot be changed",
    "jobset": "the pod templates of a JobSet that runs cannot be changed",
    "rayjob": "KubeRay disregards changes of a RayJob's cluster",
    "trainjob": "spec.trainer of a TrainJob cannot be changed",
}


def mark(image: str) -> str:
    """What the label says; empty for the image of the job as it was started."""
    return sha256(image.encode()).hexdigest()[:MARK_CHARS] if image else ""


def with_image(request: Request, image: str) -> Request:
    """The job, with this image; empty: its own."""
    if not image or request.job.image is None:
        return request
    other = request.job.image.model_copy(update={"name": image})
    return replace(request, job=request.job.model_copy(update={"image": other}))


def marked(pod: Body, image: str) -> Body:
    """The pod, with the label that says so."""
    if not image:
        return pod
    meta = pod["metadata"]
    return {**pod, "metadata": {**meta, "labels": {**meta["labels"], IMAGE: mark(image)}}}


# ── the trial ─────────────────────────────────────────────────────────────────────────────────


def refusal(request: Request) -> str:
    """Why pods of this job cannot be replaced one by one; empty if they can."""
    if request.engine != "pods":
        why = FIXED.get(request.engine, f"pods of a {request.engine} are made by its own operator")
        return (
            f"{why}, so only a new one has another image: change the job file, then "
            "`holdfast submit job.yaml --replace` (it continues from its newest checkpoint)"
        )
    distant = request.job.checkpoints.shared or request.job.checkpoints.archive
    if request.nodes == 1 and distant is None:
        return (
            "replacing the pod of its only node would lose the state of the training: it has no "
            "checkpoints elsewhere (checkpoints.shared)"
        )
    return ""


async def why_not(cluster: Cluster, request: Request, image: str) -> str:
    """Why this image cannot be used, after a pod has been started with it; empty if it can."""
    from holdfast.drivers.kubernetes import doctor_image

    if why := refusal(request):
        return why
    named = with_image(request, image)
    assert named.job.image is not None, "checked before the job was made"
    deadline = time.monotonic() + doctor_image.WITHIN_S
    while True:
        try:
            check = await _tried(cluster, named)
        except ApiError as error:  # the lease may be in doubt, too
            if not error.transient or time.monotonic() > deadline:
                return f"image {named.job.image.name} cannot be tried: {error}"
            await asyncio.sleep(doctor_image.POLL_S)
        else:
            return "" if check.ok else f"image {named.job.image.name}: {check.found}"


async def _tried(cluster: Cluster, named: Request) -> "ClusterCheck":
    from holdfast.drivers.kubernetes import doctor_image

    body = doctor_image.pod(named, f"{named.name}-image-{secrets.token_hex(3)}")
    owner = (await origin(cluster, named.name)).of_pods
    return await doctor_image.looked(cluster, named, owned(body, owner))


# ── the replacement ───────────────────────────────────────────────────────────────────────────


class RolloutStep(NamedTuple):
    """What is done next: facts for the controller, or a pod that has to go."""

    facts: tuple[AnyEvent, ...] = ()
    evict: Pod | None = None


class ImageRollout:
    """Which pod gives way next. `put` takes facts."""

    def __init__(
        self, state: State, roster: Roster, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._state, self._roster, self._clock = state, roster, clock
        self._evicted: set[str] = set()  # UIDs
        self._so_far = (0, 0)  # version, and how many nodes with its image have become ready
        self._rolls = 0  # the version whose roll-out was seen, until all have its image
        self._since: float | None = None  # when a pod was first seen that should become one more
        self.put: Callable[..., None] = lambda *_facts: None

    @property
    def ever(self) -> bool:
        """Whether an update has named an image."""
        return any(one.version.image for one in self._state.updating.records)

    def next(self) -> RolloutStep:
        """One thing at a time, and only while nothing else is the matter."""
        state, pods = self._state, self._roster.pods
        wanted = mark(state.version.image)
        old = {uid for uid, pod in pods.items() if pod.metadata.labels.get(IMAGE, "") != wanted}
        if facts := self._taken_back(old) or self._given_up(old):
            return RolloutStep(facts)
        self._evicted &= pods.keys()
        if not old or self._evicted or any(pod.leaving for pod in pods.values()):
            return RolloutStep()
        joined = {uid_of(node.node): node for node in state.nodes.values()}
        coming = pods.keys() - self._ready()
        if stuck := sorted(coming & old):
            return self._evict(stuck[0])
        calm = state.phase is Phase.RUNNING and state.open_incident is None
        if coming or not calm or self._is_short():
            return RolloutStep()
        members = [uid_of(node) for _, node in sorted(state.ranks.items())]
        spares = [uid_of(node) for node in state.spares]
        outdated = [uid for uid in members if uid in old]
        if outdated and any(uid not in old for uid in spares):
            return self._announce(joined[outdated[0]].node)
        waiting = [uid for uid in spares if uid in old]
        if waiting or outdated:
            return self._evict((waiting or outdated)[0])
        return RolloutStep()

    @property
    def waits(self) -> bool:
        """Whether time may tell that the new image does not work."""
        return self._since is not None

    def _given_up(self, old: set[str]) -> tuple[AnyEvent, ...]:
        """Pods with the new image do not become ready, though they have a machine."""
        version = self._state.version
        fresh, ready = self._roster.pods.keys() - old, self._ready()
        so_far = (version.number, len(fresh & ready))
        if so_far != self._so_far:
            self._so_far, self._since = so_far, None
        coming = bool(fresh - ready or self._is_short())  # one that failed has a successor
        if old:
            self._rolls = version.number
        elif not coming:
            self._rolls = 0
        if not coming or not self._may_go_back():
            self._since = None
        elif self._since is None:
            placed = any(self._roster.pods[uid].spec.node_name for uid in fresh - ready)
            self._since = self._clock() if placed else None
        elif self._is_futile() or self._clock() - self._since >= self._patience_s():
            by = f"the roll-out of version {version.number}, as no pod was ready for long,"
            return (UpdateRequested(by=by, id=f"{STALLED}{version.number}", back=True),)
        return ()

    def _is_short(self) -> bool:
        """Whether a node is still to come, be it later because those before failed."""
        return bool(self._state.asked) or len(self._state.nodes) < self._state.wanted

    def _is_futile(self) -> bool:
        """Whether nodes die one after the other: before a job that waits for them gives up."""
        return self._state.stillborn >= PROBE_AFTER

    def _may_go_back(self) -> bool:
        """Not once the roll-out is over, nor while another version is prepared. Not twice in a row,
        either: if what was before did not work, the image is not to blame."""
        state, updating = self._state, self._state.updating
        used = [FIRST, *updating.used]
        if len(used) == 1 or used[-2].image == state.version.image:
            return False
        stage, last = updating.records[-1].stage, updating.records[-1].id
        if stage in (Stage.PREPARING, Stage.WAITING) or last.startswith(STALLED):
            return False
        trained = state.start is not None and state.start.version.number == state.version.number
        return self._rolls == state.version.number or not (self._so_far[1] or trained)

    def _ready(self) -> set[str]:
        nodes = self._state.nodes.values()
        return {uid_of(one.node) for one in nodes if one.state is not NodeState.JOINING}

    def _patience_s(self) -> float:
        """The job itself waits no longer than that for a node."""
        return self._state.limits.node_wait_s / (2 if self._state.phase is Phase.WAITING else 1)

    def done(self, pod: Pod) -> None:
        """It goes."""
        self._evicted.add(pod.uid)

    def _evict(self, uid: str) -> RolloutStep:
        return RolloutStep(evict=self._roster.pods[uid])

    def _announce(self, node: str) -> RolloutStep:
        if any(one.condition == CONDITION for one in self._state.health.get(node, {}).values()):
            return RolloutStep()
        number = self._state.version.number
        told = f"its pod does not have the image of version {number}"
        return RolloutStep((_fact(node, Severity.LEAVES, told),))

    def _taken_back(self, old: set[str]) -> tuple[AnyEvent, ...]:
        """The version before has come back while this one was announced."""
        health = self._state.health.items()
        told = [n for n, known in health if any(c.condition == CONDITION for c in known.values())]
        return tuple(_fact(node, Severity.OK) for node in told if uid_of(node) not in old)


def _fact(node: str, severity: Severity, detail: str = "") -> HealthChanged:
    return HealthChanged(node=node, condition=CONDITION, severity=severity, detail=detail)


async def give_way(cluster: Cluster, pod: Pod) -> None:
    """It has the time to hand over what it alone has. Raises `ApiError`."""
    name = pod.metadata.name
    if not await cluster.evict(name, uid=pod.uid):
        await cluster.delete(PODS, name, uid=pod.uid)
