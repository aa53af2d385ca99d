"""Keeps the engine's object as large as the job wants it, where an engine lets that be changed.

A Job and a PyTorchJob grow when the job is to have more nodes, and shrink when it wants fewer, and
so does the Job inside a JobSet whose controller has the feature gate for it. They then delete the
pods with the highest numbers, whoever is in them; so they get only as small as leaves every pod
whose node trains, and pods that are left below wait as spares. A size that somebody else has given
the object does not last: people ask for another one by `holdfast scale`.

A JobSet's list of Jobs can only be replaced as a whole, so what is sent names the version that was
read: of what changed meanwhile the API server refuses it, and it is read again.
"""

import asyncio
import copy

from holdfast.controller import State
from holdfast.counts import count
from holdfast.drivers.kubernetes.cluster import ApiError, Cluster, InvalidError
from holdfast.drivers.kubernetes.ending import main_object
from holdfast.drivers.kubernetes.manifests.consequences import resized
from holdfast.drivers.kubernetes.manifests.groups import groups
from holdfast.drivers.kubernetes.manifests.names import ROLE
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.roster import SPARE, Roster
from holdfast.drivers.kubernetes.supply import whenever
from holdfast.drivers.kubernetes.talk import say
from holdfast.spec.cluster import Engine

KNOWN_S = 30.0  # after which it is read again
INDEX = "batch.kubernetes.io/job-completion-index"
NUMBER: dict[Engine, str] = {  # label with the number of a pod, from 0
    "job": INDEX,
    "jobset": INDEX,
    "pytorchjob": "training.kubeflow.org/replica-index",
}
NODE = "node"  # the Job of a JobSet whose pods are not spares of their own priority
IMMUTABLE = "field is immutable"  # as the webhook of JobSet says it, after the whole list
NO_GATE = (
    "its controller has not the feature gate ElasticJobSet that kubernetes.elastic_jobset says it "
    "has; nodes that do not train wait as spares"
)


class EngineSize:
    """The number of pods of one job's object. `run` until cancelled."""

    def __init__(self, cluster: Cluster, request: Request, state: State, roster: Roster) -> None:
        self._cluster, self._request = cluster, request
        self._state, self._roster = state, roster
        self._look = asyncio.Event()
        self._known: int | None = None  # as far as it was read, or written
        self._read_at = float("-inf")
        self.trouble: str | None = None  # why it cannot be changed

    def look(self) -> None:
        """Another size may be wanted."""
        self._look.set()

    @property
    def can_change(self) -> bool:
        """Whether it ever does, with this engine and this job."""
        able = self._request.engine in NUMBER and resized(self._request)
        return able and bool(self._state.limits.elastic)

    async def run(self) -> None:
        """Change it whenever that is due."""
        await whenever(self._look, self._resize, self._refused)

    async def _resize(self) -> None:
        await self._settle()
        self.trouble = None

    def _refused(self, error: ApiError) -> None:
        engine, told = self._request.engine, error.message
        if engine == "jobset" and isinstance(error, InvalidError) and IMMUTABLE in told:
            told = NO_GATE
        self.trouble = f"the cluster to resize its {engine}: {told}"
        say(f"cannot resize {engine} {self._request.name}: {told}")

    async def _settle(self) -> None:
        kind, pods = main_object(self._request), self.count()
        assert kind is not None, "an engine with an object"
        if self._state.ended:
            return
        now = asyncio.get_running_loop().time()
        if pods == self._known and now - self._read_at < KNOWN_S:
            return
        found = await self._cluster.get(kind, self._request.name)
        self._known, self._read_at = size_in(self._request.engine, found), now
        if pods != self._known:
            say(f"{kind.kind} {self._request.name}: from {self._known} to {count(pods, 'pod')}")
            patch = sized(self._request.engine, pods, found)
            await self._cluster.patch(kind, self._request.name, patch)
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
    if engine == "jobset":
        jobs = {job["name"]: job["template"]["spec"] for job in body["spec"]["replicatedJobs"]}
        return int(jobs[NODE]["completions"])
    return int(body["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"])


def sized(engine: Engine, count: int, body: Body) -> Body:
    """The patch that makes it ask for so many. Both numbers of a Job may only change together."""
    both = {"completions": count, "parallelism": count}
    if engine == "job":
        return {"spec": both}
    if engine == "jobset":
        jobs = copy.deepcopy(body["spec"]["replicatedJobs"])
        for job in jobs:
            if job["name"] == NODE:
                job["template"]["spec"] |= both
        version = body["metadata"]["resourceVersion"]
        return {"metadata": {"resourceVersion": version}, "spec": {"replicatedJobs": jobs}}
    return {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": count}}}}
