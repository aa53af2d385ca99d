"""Cordoned machines whose time is over: check them, and return those that pass.

A pod of the operator's namespace runs `holdfast check` there, the only one that stands our taint,
and asks for all GPUs of the machine: it waits while others use them. What the check prints is the
verdict: passed, the cordon ends; failed, it is renewed, and the third within 28 days stays until a
person lifts it. No verdict (no image, no GPU seen, a pod that was evicted) changes nothing and is
tried again. Cordons of people, and machines out of service, are left alone. What fails for one
machine is said and tried again later, and holds up no other; a verdict that cannot be written down
stays with its pod until it can.

A pod of the pool of spares (deploy/spares) holds its machine whether that has passed its check or
not, and the scheduler would give it to the next replacement. So one that has failed is cordoned,
and its pod makes room for one elsewhere.
"""

import asyncio
import hashlib
import time
import traceback
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from holdfast.checks.compare import CheckReport
from holdfast.devices import RESOURCES
from holdfast.diagnosis.machine_memory import UNTIL_A_PERSON, is_due, times_out
from holdfast.drivers.kubernetes.cluster import NODES, PODS, ApiError, Cluster, DeniedError
from holdfast.drivers.kubernetes.cordons import cordon, memory_of, settle
from holdfast.drivers.kubernetes.machine_conditions import REMOVALS
from holdfast.drivers.kubernetes.machines import OUT_OF_SERVICE, TAINT, Machine
from holdfast.drivers.kubernetes.manifests.names import DOMAIN
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.pods import Pod, waits_for

LOOK_S = 300.0  # a list of all machines is not small
SOON_S = 20.0  # while checks are under way
AGAIN_S = 3600.0  # after a check without a verdict
CHECK_S = 900  # for a check that runs
CHECKED = f"{DOMAIN}/checks"
POOL = "app.kubernetes.io/name=holdfast-spares"
POOL_SHARE = 0.1  # of the cluster's machines that may be out, as `access.cordon_share` of a job
DEVICE_CHECKS = frozenset(("matmul", "device memory", "model step"))
BY = "the operator"
COMMAND = ["holdfast", "check", "--quick", "--json"]
USER = 1000  # of the images in deploy/images
STATES = "node.kubernetes.io/"  # begins the taints of a machine that Kubernetes finds unwell


class CareVerdict(NamedTuple):
    """What a check says of a machine."""

    verdict: bool  # whether it says anything
    why: str  # it failed, or says nothing


class MachineCare:
    """`run` until cancelled; `look` is one round."""

    def __init__(self, cluster: Cluster, image: str, say: Callable[[str], None]) -> None:
        self._cluster, self._image, self._say = cluster, image, say
        self._not_before: dict[str, float] = {}  # machine → time of the next try
        self._waits: dict[str, str] = {}  # machine → what its check waits for, as it was said
        self.may_act: Callable[[], bool] = lambda: True

    async def run(self) -> None:
        """For ever."""
        while True:
            busy = False
            try:
                busy = self.may_act() and await self.look(time.time())
            except ApiError as error:
                self._say(f"cordoned machines cannot be checked: {error}")
            except Exception:  # a mistake of ours is to stop no job
                self._say(f"cordoned machines cannot be checked: {traceback.format_exc()}")
            await asyncio.sleep(SOON_S if busy else LOOK_S)

    async def look(self, now: float) -> bool:
        """Begin checks that are due, and obey those that are over; whether any is to come."""
        try:
            machines = (await self._cluster.listed(NODES, Machine)).items
        except DeniedError:
            return False  # without deploy/rbac/cordon nobody has cordoned any
        pods = (await self._cluster.listed(PODS, Pod, labels=CHECKED)).items
        by_name = {pod.metadata.name: pod for pod in pods}
        due = {one.metadata.name for one in machines if _is_to_check(one, now)}
        for machine in machines:
            name = machine.metadata.name
            pod = by_name.pop(pod_name(name), None)
            if name in due:
                await self._tried(machine, pod, now)
            elif pod is not None:
                await self._remove(pod)
        for pod in by_name.values():  # their machines are gone
            await self._remove(pod)
        await self._look_at_pool({one.metadata.name: one for one in machines})
        return bool(due)

    async def _tried(self, machine: Machine, pod: Pod | None, now: float) -> None:
        """One step of its check, unless one that failed was not long ago."""
        name = machine.metadata.name
        if now < self._not_before.get(name, 0.0):
            return
        try:
            await self._check(machine, pod, now)
        except ApiError as error:
            self._not_before[name] = now + LOOK_S
            self._say(f"machine {name} is due for a check, and cannot be checked: {error}")

    async def _look_at_pool(self, machines: dict[str, Machine]) -> None:
        """Its pods whose check has failed, where that says that the machine is bad."""
        for pod in (await self._cluster.listed(PODS, Pod, labels=POOL)).items:
            machine = machines.get(pod.spec.node_name)
            if machine is not None and pod.failed_at_start:
                try:
                    await self._judge_spare(machine, pod)
                except ApiError as error:
                    self._say(f"pod {pod.metadata.name} of the spares cannot be judged: {error}")

    async def _judge_spare(self, machine: Machine, pod: Pod) -> None:
        found, name = await self._found(machine, pod), machine.metadata.name
        if not (found.verdict and found.why):
            return
        why = f"failed its checks: {found.why}"
        if refusal := await cordon(self._cluster, name, by=BY, why=why, share=POOL_SHARE):
            self._say(f"spare machine {name} {why}; it is not cordoned: {refusal}")
            return
        await self._remove(pod)
        self._say(f"spare machine {name} {why}; it is cordoned, and another one is kept")

    async def _check(self, machine: Machine, pod: Pod | None, now: float) -> None:
        name = machine.metadata.name
        if pod is not None and pod.over:
            if await self._obeyed(machine, await self._found(machine, pod), now):
                await self._remove(pod)
            else:
                self._not_before[name] = now + LOOK_S
        elif pod is None:
            if not self._image:
                self._say(f"machine {name} is due for a check: {NO_IMAGE}")
                return
            await self._cluster.create(check_pod(machine, self._image))
            self._say(f"machine {name}: its cordon has expired, so it is checked")
        elif (why := waits_for(pod) or "") != self._waits.get(name, ""):
            self._waits[name] = why
            if why:
                self._say(f"machine {name}: its check waits for {why}")

    async def _obeyed(self, machine: Machine, found: CareVerdict, now: float) -> bool:
        """False if the verdict could not be written down."""
        name = machine.metadata.name
        if not found.verdict:
            self._not_before[name] = now + AGAIN_S
            self._say(f"machine {name} stays cordoned: its check returned no result: {found.why}")
            return True
        if not await settle(self._cluster, name, found.why, by=BY):
            return False
        if not found.why:
            self._say(f"machine {name} passed its checks and is returned")
            return True
        last = times_out(memory_of(machine, now), now) + 1 >= UNTIL_A_PERSON
        how = f" until it is lifted manually: holdfast nodes --lift {name}" if last else ""
        self._say(f"machine {name} stays cordoned{how}: {found.why}")
        return True

    async def _found(self, machine: Machine, pod: Pod) -> CareVerdict:
        lines: list[str] = []
        async for line in self._cluster.log(pod.metadata.name, container="check"):
            lines.append(line)
        return judged(lines, gpus=bool(gpus_of(machine)))

    async def _remove(self, pod: Pod) -> None:
        await self._cluster.delete(PODS, pod.metadata.name, uid=pod.uid)


NO_IMAGE = (
    "no image is set; start the operator with --check-image, or lift the cordon: "
    "holdfast nodes --lift MACHINE"
)


def _is_to_check(machine: Machine, now: float) -> bool:
    out = any(taint.key == OUT_OF_SERVICE for taint in machine.spec.taints)
    asked = machine.cordoned and is_due(memory_of(machine, now), now)
    return asked and not (out or machine.spec.unschedulable)


def judged(lines: list[str], *, gpus: bool) -> CareVerdict:
    """What `holdfast check --json` has printed. A machine with GPUs whose GPUs nobody has checked
    has not passed."""
    for line in lines:
        try:
            report = msgspec.json.decode(line, type=CheckReport)
        except msgspec.MsgspecError:
            continue
        bad = [f"{one.name}: {one.found}" for one in report.checks if one.blames_machine]
        if bad:
            return CareVerdict(True, "; ".join(bad))
        seen = any(one.state == "ok" and one.name in DEVICE_CHECKS for one in report.checks)
        return CareVerdict(not gpus or seen, "" if seen or not gpus else "it checked no GPU")
    return CareVerdict(False, lines[-1] if lines else "it printed nothing")


def gpus_of(machine: Machine) -> dict[str, str]:
    """All GPUs of a machine, as a pod asks for them."""
    amounts = machine.status.allocatable
    return {key: amounts[key] for key in RESOURCES if amounts.get(key, "0") != "0"}


def pod_name(machine: str) -> str:
    """One for each machine, so that no two checks run on it."""
    return f"holdfast-check-{hashlib.sha256(machine.encode()).hexdigest()[:12]}"


def check_pod(machine: Machine, image: str) -> Body:
    """A pod that checks this machine and nothing else, as restricted as its namespace may want."""
    name, gpus = machine.metadata.name, gpus_of(machine)
    place = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [place]}}
    container: Body = {
        "name": "check",
        "image": image,
        "command": COMMAND,
        "env": [{"name": "HOLDFAST_HOME", "value": "/tmp/holdfast"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if gpus:
        container["resources"] = {"limits": gpus}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(name),
            "labels": {CHECKED: "machine"},
            "annotations": {f"{DOMAIN}/machine": name},
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": CHECK_S,
            "automountServiceAccountToken": False,
            "affinity": {"nodeAffinity": required},
            "tolerations": _tolerated(machine, gpus),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        },
    }


def _tolerated(machine: Machine, gpus: Iterable[str]) -> list[Body]:
    """Our taint, that of GPUs, and those by which a cluster keeps a machine for some: pods that use
    it stand them, too. Not those by which it is unwell, or about to go."""
    keys = dict.fromkeys((key, "NoSchedule") for key in (TAINT, *gpus))
    for taint in machine.spec.taints:
        if not (taint.key.startswith(STATES) or taint.key in REMOVALS):
            keys[taint.key, taint.effect] = None
    return [{"key": key, "operator": "Exists", "effect": effect} for key, effect in keys]
