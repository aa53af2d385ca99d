"""What the engines' own controllers have in common at the end of a job: what is kept, how long."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.drivers.kubernetes.cluster import PODS, Kind
from tests.drivers.kubernetes.cluster.conditions import is_true, set_condition
from tests.drivers.kubernetes.cluster.making import active, delete, going
from tests.drivers.kubernetes.cluster.pace import Pace
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.cluster.store import Store


@dataclass
class Times:
    """When jobs began and ended, by UID."""

    pace: Pace
    began: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)

    def late(self, job: Body, limit: float | None) -> float | None:
        """Seconds until the deadline of a job that runs, None if it has none."""
        began = self.began.setdefault(job["metadata"]["uid"], time.monotonic())
        return None if limit is None else began + self.pace.s(limit) - time.monotonic()

    def expire(self, store: Store, kind: Kind, job: Body, keep: float | None) -> float | None:
        """Delete a job that has ended long enough ago; else how long that will be."""
        ended = self.ended.setdefault(job["metadata"]["uid"], time.monotonic())
        if keep is None or going(job):
            return None
        left = ended + self.pace.s(keep) - time.monotonic()
        if left <= 0:
            delete(store, kind, job)
        return max(0.0, left) or None


def say(store: Store, kind: Kind, job: Body, type_: str, reason: str, message: str = "") -> None:
    """Write a condition of a job."""
    meta = job["metadata"]

    def edit(body: Body) -> None:
        set_condition(body, type_, "True", reason, message)

    store.change(kind, meta["namespace"], meta["name"], edit)


def unsay(store: Store, kind: Kind, job: Body, *types: str) -> None:
    """Take conditions back."""
    meta = job["metadata"]

    def edit(body: Body) -> None:
        for type_ in types:
            if is_true(body, type_):
                set_condition(body, type_, "False")

    store.change(kind, meta["namespace"], meta["name"], edit)


def clean(store: Store, pods: Iterable[Body], policy: str) -> None:
    """Remove the pods of a job that has ended, as its `cleanPodPolicy` says."""
    for pod in pods:
        if policy == "All" or (policy == "Running" and active(pod)):
            delete(store, PODS, pod)
