"""Machines that new pods of this job avoid: their devices failed, or their end is announced.

Where devices failed the machine is also cordoned for all, with `access.cordon`, and what it did is
remembered over jobs (`cordons.py`). Budgets keep a bug in a job from emptying a cluster: one of the
job, beside that of the cluster.

A machine is avoided until it is gone or comes back anew, which takes the right to see machines,
until its notice is taken back, or for a time. The list is an annotation on the job's ConfigMap,
because the controller may have run on a machine that goes.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Annotated

import msgspec

from holdfast.controller import State
from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, NODES, Cluster, NotFoundError
from holdfast.drivers.kubernetes.cordons import cordon
from holdfast.drivers.kubernetes.machines import OUT_OF_SERVICE, Machine
from holdfast.drivers.kubernetes.manifests.names import AVOIDS, LEFT
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.pods import Pod
from holdfast.drivers.kubernetes.talk import say
from holdfast.events import AnyEvent, HealthChanged, Severity

PER_HOUR, HOUR_S = 3, 3600.0
SHARE = 0.1  # of the job's nodes within a day, at least one
BLAMED_S = 86_400.0  # as long as a first cordon holds
NOTICES = ("cloud-removal", "machine-leaving")
MARK_CHARS = 16
GOES_S = 3600.0  # notices come a quarter of an hour ahead at most; then it is gone, or back


class LeftMachine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One machine that new pods avoid."""

    until: float  # wall clock
    goes: bool = False  # its end was announced; else its devices failed
    was: tuple[str, str] = ("", "")  # its Node object, and its boot; empty: not known

    def came_back(self, now: tuple[str, str]) -> bool:
        """Whether this is another machine of that name, or one that goes was started anew."""
        object_, boot = (a != b and bool(a and b) for a, b in zip(self.was, now, strict=True))
        return object_ or (boot and self.goes)


_Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
_List = dict[_Name, LeftMachine]  # what is no name of a machine would have pods refused


class Machines:
    """The machines that this job has left, or is to leave."""

    def __init__(
        self, cluster: Cluster, request: Request, now: Callable[[], float] = time.time
    ) -> None:
        self._cluster = cluster
        self._request = request
        self._now = now
        self._left: _List = {}
        self._seen: dict[str, tuple[str, str]] = {}  # what machines are now, by name
        self._cordons: list[float] = []  # times, within a day
        self.changed = asyncio.Event()
        """Set when there is something to `save`."""
        self.on_change: Callable[[], None] = lambda: None

    async def load(self) -> None:
        """What a controller before this one avoided. Raises `ApiError`."""
        try:
            body = await self._cluster.get(CONFIG_MAPS, f"{self._request.name}-job")
        except NotFoundError:
            return
        text = (body["metadata"].get("annotations") or {}).get(LEFT, "{}")
        try:
            left = msgspec.json.decode(text, type=_List)
        except msgspec.MsgspecError as error:
            say(f"annotation {LEFT} is ignored: {error}")
            return
        last = self._now() + BLAMED_S  # whoever wrote a later time had another clock
        replace = msgspec.structs.replace
        self._left = {name: replace(m, until=min(m.until, last)) for name, m in left.items()}

    async def save(self) -> None:
        """For a controller after this one. Raises `ApiError`."""
        text = msgspec.json.encode(self._avoided()).decode()
        patch = {"metadata": {"annotations": {LEFT: text}}}
        await self._cluster.patch(CONFIG_MAPS, f"{self._request.name}-job", patch)

    def heard(self, event: AnyEvent, state: State, machine_of: Callable[[str], str]) -> None:
        """A fact that the controller has heard: a notice, or that one was taken back."""
        if not isinstance(event, HealthChanged) or event.condition not in NOTICES:
            return
        machine = machine_of(event.node)
        if event.severity is Severity.LEAVES:
            self.goes(machine)
        elif machine in self._left:
            others = [node for node in state.nodes if machine_of(node) == machine]
            known = [one for node in others for one in state.health.get(node, {}).values()]
            if not any(one.severity is Severity.LEAVES for one in known):
                self.stays(machine)

    def goes(self, machine: str) -> None:
        """Its end is announced."""
        known = self._left.get(machine)
        if machine and not (known is not None and not known.goes):
            self._leave(machine, GOES_S, goes=True)

    def stays(self, machine: str) -> None:
        """The notice was taken back."""
        known = self._left.get(machine)
        if known is not None and known.goes:
            self._forget(machine)

    def see(self, machine: Machine) -> None:
        """A machine as it is now: whether it is still the one that was left."""
        name, now = machine.metadata.name, machine.identity
        self._seen[name] = now
        known = self._left.get(name)
        if known is not None and known.came_back(now):
            self._forget(name)
        elif known is not None and not all(known.was):
            self._left[name] = msgspec.structs.replace(known, was=now)

    def listed(self, machines: Sequence[Machine]) -> None:
        """All machines that there are."""
        there = {machine.metadata.name for machine in machines}
        for gone in [name for name in (*self._seen, *self._left) if name not in there]:
            self.gone(gone)
        for machine in machines:
            self.see(machine)

    def gone(self, machine: str) -> None:
        """It is no part of the cluster any more; one that gets its name is another."""
        self._seen.pop(machine, None)
        self._forget(machine)

    def _leave(self, machine: str, for_s: float, *, goes: bool) -> None:
        was = self._seen.get(machine, ("", ""))
        self._left[machine] = LeftMachine(self._now() + for_s, goes, was)
        self._changed()

    def _forget(self, machine: str) -> None:
        if self._left.pop(machine, None) is not None:
            self._changed()

    def _changed(self) -> None:
        self.changed.set()
        self.on_change()

    def _avoided(self) -> _List:
        now = self._now()
        self._left = {name: one for name, one in self._left.items() if one.until > now}
        return self._left

    async def leave(self, machine: str, why: str) -> None:
        """New pods of this job avoid it; with the right to, it is tainted."""
        self._leave(machine, BLAMED_S, goes=False)
        access = self._request.job.access
        if not access.cordon:
            return
        refusal = self._over_budget()
        if refusal is not None:
            say(f"machine {machine} is not cordoned: {refusal}")
            return
        self._cordons.append(self._now())
        owner, share = f"{self._cluster.namespace}/{self._request.name}", access.cordon_share
        if refusal := await cordon(self._cluster, machine, by=owner, why=why, share=share):
            say(f"machine {machine} is not cordoned: {refusal}")

    async def fenced(self, machine: str) -> bool:
        """Whether nothing can run there any more: it is no part of the cluster now, or somebody has
        declared it out of service. Unknown without the right to look at machines."""
        if not (machine and self._request.job.access.cordon):
            return False
        try:
            found = msgspec.convert(await self._cluster.get(NODES, machine), Machine)
        except NotFoundError:
            return True
        return any(taint.key == OUT_OF_SERVICE for taint in found.spec.taints)

    def avoided(self, pod: Body) -> Body:
        """This pod, kept off the machines that were left: by their names, which their label
        `kubernetes.io/hostname` need not have. A label says which."""
        names = sorted(self._avoided())
        if not names:
            return pod
        spec, meta = dict(pod["spec"]), dict(pod.get("metadata", {}))
        spec["affinity"] = _without(spec.get("affinity", {}), names)
        meta["labels"] = {**meta.get("labels", {}), AVOIDS: _mark(names)}
        return {**pod, "metadata": meta, "spec": spec}

    def outdated(self, pods: Iterable[Pod]) -> list[Pod]:
        """Those that have no machine yet and were kept off others than are left now: they may be
        placed on one that goes, or wait for room that is there again. Where others make room for
        a pod on a machine that stays, it would lose that."""
        names = sorted(self._avoided())
        wanted = _mark(names)
        return [
            pod
            for pod in pods
            if pod.unbound
            and pod.metadata.labels.get(AVOIDS, "") != wanted
            and pod.status.nominated_node_name in ("", *names)
        ]

    def _over_budget(self) -> str | None:
        now = self._now()
        self._cordons = [at for at in self._cordons if now - at < BLAMED_S]
        if sum(now - at < HOUR_S for at in self._cordons) >= PER_HOUR:
            return (
                f"{PER_HOUR} machines were cordoned in the last hour, so the cause is probably "
                "not the machines"
            )
        most = max(1, int(self._request.nodes * SHARE))
        if len(self._cordons) >= most:
            return f"the limit of one job is {most} of {self._request.nodes} nodes within a day"
        return None


def _mark(names: Sequence[str]) -> str:
    """What the label says; empty for none."""
    return sha256(" ".join(names).encode()).hexdigest()[:MARK_CHARS] if names else ""


def _without(affinity: Body, machines: Sequence[str]) -> Body:
    """These machines are out in every alternative of the required node affinity. A field may be
    compared with one value at a time."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    node: Body = dict(affinity.get("nodeAffinity", {}))
    alternatives = node.get(required, {}).get("nodeSelectorTerms") or [{}]
    out = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in machines]
    node[required] = {
        "nodeSelectorTerms": [
            {**a, "matchFields": [*a.get("matchFields", []), *out]} for a in alternatives
        ]
    }
    return {**affinity, "nodeAffinity": node}
