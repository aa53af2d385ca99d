"""Keeps the engine's object as large as the job wants it, where an engine lets that be changed.

A Job and a PyTorchJob grow when the job is to have more nodes, and shrink when it wants fewer. Both
then delete the pods with the highest numbers, whoever is in them; so they get only as small as
leaves every pod whose node trains, and pods that are left below wait as spares.
"""

import asyncio

from holdfast.controller import State
from holdfast.counts import count
from holdfast.drivers.kubernetes.cluster import ApiError, Cluster
from holdfast.drivers.kubernetes.ending import main_object
from holdfast.drivers.kubernetes.manifests.groups import groups
from holdfast.drivers.kubernetes.manifests.kueue import queue_of
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.roster import ROLE, SPARE, Roster
from holdfast.drivers.kubernetes.supply import whenever
from holdfast.drivers.kubernetes.talk import say
from holdfast.spec.cluster import Engine

NUMBER: dict[Engine, str] = {  # label with the number of a pod, from 0
    "job": "batch.kubernetes.io/job-completion-index",
    "pytorchjob": "training.kubeflow.org/replica-index",
}


class EngineSize:
    """The number of pods of one job's object. `run` until cancelled."""

    def __init__(self, cluster: Cluster, request: Request, state: State, roster: Roster) -> None:
        self._cluster, self._request = cluster, request
        self._state, self._roster = state, roster
        self._look = asyncio.Event()
        self._known: int | None = None  # as far as it was read, or written
        self.trouble: str | None = None  # why it cannot be changed

    def look(self) -> None:
        """Another size may be wanted."""
        self._look.set()

    @property
    def can_change(self) -> bool:
        """Whether it ever does, with this engine and this job. Kueue would take an object that is
        larger or smaller than what it has admitted for a new one, and stop all of its pods."""
        able = self._request.engine in NUMBER and not queue_of(self._request.job)
        return able and bool(self._state.limits.elastic)

    async def run(self) -> None:
        """Change it whenever that is due."""
        await whenever(self._look, self._resize, self._refused)

    async def _resize(self) -> None:
        await self._settle()
        self.trouble = None

    def _refused(self, error: ApiError) -> None:
        self.trouble = f"the cluster to resize its {self._request.engine}: {error.message}"
        say(f"cannot resize {self._request.engine} {self._request.name}: {error}")

    async def _settle(self) -> None:
        kind, pods = main_object(self._request), self.count()
        assert kind is not None, "an engine with an object"
        if self._state.ended:
            return
        if self._known is None:
            found = await self._cluster.get(kind, self._request.name)
            self._known = size_in(self._request.engine, found)
        if pods != self._known:
            say(f"{kind.kind} {self._request.name}: from {self._known} to {count(pods, 'pod')}")
            await self._cluster.patch(kind, self._request.name, sized(self._request.engine, pods))
            self._known = pods

    def count(self) -> int:
        """Pods that it should have: what is wanted, and none less than keeps who trains."""
        apart = groups(self._request).get("spare", 0)
        label = NUMBER[self._request.engine]
        pods = [pod for pod in map(self._roster.alone, self._state.ranks.values()) if pod]
        training = [
            int(pod.metadata.labels.get(label, -1))
            for pod in pods
            if not (apart and pod.metadata.labels.get(ROLE) == SPARE)
        ]
        return max(self._state.wanted - apart, max(training, default=-1) + 1)


def size_in(engine: Engine, body: Body) -> int:
    """How many pods such an object asks for."""
    if engine == "job":
        return int(body["spec"]["completions"])
    return int(body["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"])


def sized(engine: Engine, count: int) -> Body:
    """The patch that makes it ask for so many. Both numbers of a Job may only change together."""
    if engine == "job":
        return {"spec": {"completions": count, "parallelism": count}}
    return {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": count}}}}
