"""Machines whose devices failed: keep this job off them, and with the right to, everybody.

Without `access.cordon` new pods of this job avoid the machine. With it the machine is cordoned for
all, and what it did is remembered over jobs (`cordons.py`). Budgets keep a bug in a job from
emptying a cluster: one of the job, beside that of the cluster.
"""

import time
from collections.abc import Sequence

import msgspec

from holdfast.drivers.kubernetes.cluster import NODES, Cluster, NotFoundError
from holdfast.drivers.kubernetes.cordons import cordon
from holdfast.drivers.kubernetes.machines import OUT_OF_SERVICE, Machine
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.talk import say

PER_HOUR = 3
SHARE = 0.1  # of the job's nodes, at least one


class Machines:
    """The machines that this job has left."""

    def __init__(self, cluster: Cluster, request: Request) -> None:
        self._cluster = cluster
        self._request = request
        self._left: dict[str, str] = {}  # machine → why
        self._cordons: list[float] = []  # monotonic times

    async def leave(self, machine: str, why: str) -> None:
        """New pods of this job avoid it; with the right to, it is tainted."""
        self._left[machine] = why
        access = self._request.job.access
        if not access.cordon:
            return
        refusal = self._over_budget()
        if refusal is not None:
            say(f"machine {machine} is not cordoned: {refusal}")
            return
        self._cordons.append(time.monotonic())
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
        `kubernetes.io/hostname` need not have."""
        if not self._left:
            return pod
        spec = dict(pod["spec"])
        spec["affinity"] = _without(spec.get("affinity", {}), sorted(self._left))
        return {**pod, "spec": spec}

    def _over_budget(self) -> str | None:
        recent = [at for at in self._cordons if time.monotonic() - at < 3600]
        if len(recent) >= PER_HOUR:
            return (
                f"{PER_HOUR} machines were cordoned in the last hour, so the cause is probably "
                "not the machines"
            )
        most = max(1, int(self._request.nodes * SHARE))
        if len(self._cordons) >= most:
            return f"the limit of one job is {most} of {self._request.nodes} nodes"
        return None


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
