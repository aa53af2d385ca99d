"""All jobs of a namespace, or of a cluster, each in one line, from two lists.

The ConfigMaps of Holdfast name the jobs and hold their records, of which only the status is decoded
here; the pods tell which jobs still have a controller, and which run without one at all.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, PODS, Cluster
from holdfast.drivers.kubernetes.manifests.names import JOB, ROLE
from holdfast.drivers.kubernetes.pods import Pod, summary
from holdfast.drivers.kubernetes.remote import LISTED
from holdfast.drivers.kubernetes.roster import TRAINS
from holdfast.status import JobStatus


class _Data(msgspec.Struct, frozen=True):
    status: str = msgspec.field(name="status.json", default="")


class _Meta(msgspec.Struct, rename="camel", frozen=True):
    name: str
    namespace: str = ""
    labels: dict[str, str] = {}
    creation_timestamp: str = ""


class _Map(msgspec.Struct, frozen=True):
    metadata: _Meta
    data: _Data = msgspec.field(default_factory=_Data)


@dataclass
class ListedJob:
    """One job."""

    job: str
    namespace: str
    submitted_at: float = 0.0
    status: JobStatus | None = None
    managed: bool = False
    unreadable: bool = False  # its record is of another version
    pods: list[Pod] = field(default_factory=list)

    @property
    def nodes(self) -> list[Pod]:
        """Pods that train or wait to."""
        return [p for p in self.pods if p.metadata.labels.get(ROLE, "node") in TRAINS]

    @property
    def controlled(self) -> bool:
        """Whether its controller runs."""
        return any(
            pod.running for pod in self.pods if pod.metadata.labels.get(ROLE) == "controller"
        )

    @property
    def phase(self) -> str:
        """What it does; without a record, what its pods do."""
        if self.status is not None:
            return self.status.phase
        if self.unreadable:
            return "unreadable"
        if self.managed:
            return "waiting"
        ended = [pod.status.phase.lower() for pod in self.nodes if pod.ended]
        if ended and len(ended) == len(self.nodes):
            return "failed" if "failed" in ended else "succeeded"
        return "waiting" if self.waiting_for else "running"

    @property
    def waiting_for(self) -> str | None:
        """What it waits for."""
        if self.status is not None:
            return self.status.waiting_for
        if self.unreadable:
            return None
        there = [pod for pod in self.nodes if not pod.ended and not pod.leaving]
        return summary(there, len(there))


async def jobs(cluster: Cluster, namespace: str | None = None) -> list[ListedJob]:
    """The jobs of a namespace, or with "" of all, the newest first. Raises `ApiError`."""
    maps = (await cluster.listed(CONFIG_MAPS, _Map, labels=LISTED, namespace=namespace)).items
    found = _from_maps(maps)
    for space in [namespace] if namespace else _spaces(found, cluster, namespace):
        pods = (await cluster.listed(PODS, Pod, labels=JOB, namespace=space)).items
        _add_pods(found, pods, space or cluster.namespace)
    return sorted(found.values(), key=lambda job: (-job.submitted_at, job.job))


def _spaces(
    found: dict[tuple[str, str], ListedJob], cluster: Cluster, namespace: str | None
) -> Sequence[str]:
    """Namespaces whose pods are to be listed: only those with jobs, if all were asked for."""
    if namespace is None:
        return [cluster.namespace]
    return sorted({space for space, _ in found})


def _from_maps(maps: Iterable[_Map]) -> dict[tuple[str, str], ListedJob]:
    found: dict[tuple[str, str], ListedJob] = {}
    for item in maps:
        meta = item.metadata
        name = meta.labels[JOB]
        job = found.setdefault(
            (meta.namespace, name), ListedJob(name, meta.namespace, managed=True)
        )
        if meta.name == f"{name}-job" or not job.submitted_at:
            job.submitted_at = _seconds(meta.creation_timestamp)
        if item.data.status:
            try:
                job.status = msgspec.json.decode(item.data.status, type=JobStatus)
            except msgspec.DecodeError:
                job.unreadable = True
    return found


def _add_pods(found: dict[tuple[str, str], ListedJob], pods: Iterable[Pod], namespace: str) -> None:
    for pod in pods:
        name = pod.metadata.labels[JOB]
        found.setdefault((namespace, name), ListedJob(name, namespace)).pods.append(pod)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
