"""Why Kueue has not admitted a job, in its own words.

Kueue says it in a condition of the Workload that it makes for an object, or for a group of pods:
`QuotaReserved` as long as it finds no quota, `Admitted` once only admission checks are missing. A
Workload is the job's if its owner is: an object of the job's name, or one of its pods.

Whoever looks reads it, with rights of their own: a controller would need them in every namespace,
and so would all who submit, because nobody may hand on a right without having it. Who looks again
and again, at many jobs, reads the Workloads of a namespace once in a while for all of them.
"""

import time
from collections.abc import Callable, Collection, Iterable

import msgspec

from holdfast.drivers.kubernetes.cluster import ApiError, Cluster, Kind, NotFoundError
from holdfast.drivers.kubernetes.manifests.kueue import DOMAIN
from holdfast.drivers.kubernetes.pods import Condition
from holdfast.status import JobStatus

VERSIONS = ("v1beta2", "v1beta1")  # of Kueue, the newest first
WORKLOADS = tuple(Kind(f"{DOMAIN}/{version}", "Workload", "workloads") for version in VERSIONS)
SAME_S = 30.0
QUOTE = "; Kueue: "  # between what is waited for and its words
HELD = ("QuotaReserved", "Admitted")  # what is false while it waits, in this order


class _Owner(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class _Meta(msgspec.Struct, rename="camel", frozen=True):
    owner_references: list[_Owner] = []


class _Status(msgspec.Struct, frozen=True):
    conditions: list[Condition] = []


class Workload(msgspec.Struct, frozen=True):
    """What Kueue admits or holds back."""

    metadata: _Meta
    status: _Status = _Status()


class Workloads:
    """Those of each namespace, as they were at most `SAME_S` ago."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster, self._clock = cluster, clock
        self._known: dict[str | None, tuple[float, list[Workload]]] = {}

    async def of(self, namespace: str | None) -> list[Workload]:
        """None of a cluster that has none, or may not be asked. None: the cluster's own."""
        at, found = self._known.get(namespace, (float("-inf"), []))
        if self._clock() - at > SAME_S:
            found = await _listed(self._cluster, namespace)
            self._known[namespace] = self._clock(), found
        return found


async def held_back(cluster: Cluster, job: str, pods: Collection[str]) -> str:
    """What Kueue says of this job, of which there are pods with these UIDs; "" if it says nothing,
    or may not be asked."""
    return words(await _listed(cluster, None), job, pods)


async def _listed(cluster: Cluster, namespace: str | None) -> list[Workload]:
    for kind in WORKLOADS:
        try:
            return list((await cluster.listed(kind, Workload, namespace=namespace)).items)
        except NotFoundError:
            continue
        except ApiError:
            break
    return []


def words(workloads: Iterable[Workload], job: str, pods: Collection[str]) -> str:
    """The same of Workloads that are known, each sentence once."""
    names = (job, f"{job}-spare")

    def is_ours(owner: _Owner) -> bool:
        return owner.uid in pods if owner.kind == "Pod" else owner.name in names

    ours = (one for one in workloads if any(map(is_ours, one.metadata.owner_references)))
    return "; ".join(dict.fromkeys(filter(None, (_message(o.status.conditions) for o in ours))))


def _message(conditions: Iterable[Condition]) -> str:
    said = {one.type: one for one in conditions}
    if "Finished" in said:
        return ""
    held = (said[type_] for type_ in HELD if type_ in said)
    return next((one.message.strip() for one in held if one.status == "False"), "")


def quoted(told: JobStatus, said: str) -> JobStatus:
    """A status that says why Kueue holds the job back, if it does."""
    if not (said and told.waiting_for and told.phase == "waiting"):
        return told
    return msgspec.structs.replace(told, waiting_for=f"{told.waiting_for}{QUOTE}{said}")
