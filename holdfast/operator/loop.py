"""The operator: watches TrainingJobs, their records and what makes their pods, and reconciles.

One of several copies works, the one that holds the Lease; it gives up when it sees that another
has it, and goes on while the API is away. A copy that waits is ready as long as it can look at the
Lease, so that a roll-out does not end with copies none of which could lead. What another operator
looks after is left to that one (`neighbours.py`). Watches only put keys into the queue. What goes
wrong with one job, even a mistake of ours, makes that job wait and nobody else.
"""

import asyncio
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from holdfast.drivers.kubernetes.cluster import (
    CLUSTER_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    DEPLOYMENTS,
    ApiError,
    Change,
    Cluster,
    DeniedError,
    Kind,
    NotFoundError,
)
from holdfast.drivers.kubernetes.lease import Lease
from holdfast.drivers.kubernetes.manifests.names import BULK, JOB, MANAGED_BY
from holdfast.drivers.kubernetes.manifests.request import NEWEST, OLDEST
from holdfast.drivers.kubernetes.manifests.support.access import machine_role
from holdfast.drivers.kubernetes.queued import Workloads
from holdfast.drivers.kubernetes.watch import follow
from holdfast.operator.decide import WATCH_S
from holdfast.operator.definition import TRAINING_JOBS
from holdfast.operator.machine_care import MachineCare
from holdfast.operator.neighbours import ALL, ONE, SCOPE, Neighbours
from holdfast.operator.queue import Queue
from holdfast.operator.reconcile import Key, reconcile
from holdfast.operator.wanted import HOME
from holdfast.shell.host import cancelled

LEASE = "holdfast-operator"
WORKERS = 4
RETRY_S = 2.0
SWEEP_S = 300.0
FIGURES_S = 10.0  # between two writes of a status in which only step and ETTR are new
EVERYWHERE = ""


class _Meta(msgspec.Struct):
    """Metadata of what is watched."""

    name: str
    namespace: str = ""
    labels: dict[str, str] = {}


class Named(msgspec.Struct):
    """Of any object what it is called: enough to know which job to look at."""

    metadata: _Meta

    @property
    def key(self) -> Key:
        """The job that it belongs to."""
        meta = self.metadata
        return meta.namespace, meta.labels.get(JOB, meta.name)


class Operator:
    """The work of one copy while it leads. `run` ends only by cancellation."""

    def __init__(self, cluster: Cluster, namespace: str, check_image: str = "") -> None:
        self._cluster = cluster
        self._namespace = namespace  # EVERYWHERE or one
        self._machines = MachineCare(cluster, check_image, self._say)
        self._workloads = Workloads(cluster)
        self._queue: Queue[Key] = Queue()
        self._jobs: set[Key] = set()  # TrainingJobs that there are
        self._listed = asyncio.Event()
        self._leads = False
        self._neighbours = Neighbours(cluster, self._say)
        self._machines.may_act = lambda: not self._neighbours.elder
        self.can_lead: Callable[[], bool] = lambda: False
        self._whole: dict[Key, float] = {}  # when all objects of a job were last looked after
        self._figures: dict[Key, float] = {}  # when these were last allowed to be written
        self._told = ""

    @property
    def ready(self) -> bool:
        """Whether the TrainingJobs of the cluster are known; or could be soon, were it our turn."""
        return self._listed.is_set() if self._leads else self.can_lead()

    @property
    def scope(self) -> str:
        """What it watches, as a label."""
        return ALL if self._namespace == EVERYWHERE else ONE

    async def run(self) -> None:
        """Watch and reconcile for ever."""
        self._leads = True
        version = await self._version()
        duties: list[Coroutine[Any, Any, None]] = [
            self._follow(TRAINING_JOBS, "", self._on_jobs, self._on_job),
            self._follow(CONFIG_MAPS, f"{JOB},!{BULK}", self._on_parts, self._on_part),
            self._follow(DEPLOYMENTS, JOB, self._on_parts, self._on_part),
            self._sweep(),
            *(self._work(version) for _ in range(WORKERS)),
        ]
        if self._namespace == EVERYWHERE:  # machines belong to the cluster
            await self._neighbours.look()
            duties += [self._machines.run(), self._neighbours.run(self._on_neighbours)]
        tasks = [asyncio.create_task(duty) for duty in duties]
        try:
            await asyncio.gather(*tasks)
        finally:
            await cancelled(*tasks)

    # ── news ──

    def _follow(
        self,
        kind: Kind,
        labels: str,
        on_listed: Callable[[Sequence[Named]], None],
        on_change: Callable[[Change[Named]], None],
    ) -> Coroutine[Any, Any, None]:
        def trouble(error: ApiError) -> None:
            if kind == TRAINING_JOBS and isinstance(error, NotFoundError):
                self._say("the kind TrainingJob is missing: kubectl apply -k deploy/crd")
            else:
                self._say(f"cannot watch {kind.plural}: {error}")

        return follow(
            self._cluster, kind, Named, labels, on_listed, on_change,
            namespace=self._namespace, on_trouble=trouble,
        )  # fmt: skip

    def _on_jobs(self, found: Sequence[Named]) -> None:
        self._jobs = {(one.metadata.namespace, one.metadata.name) for one in found}
        self._listed.set()
        for key in self._jobs:
            self._queue.add(key)

    def _on_job(self, change: Change[Named]) -> None:
        key = (change.object.metadata.namespace, change.object.metadata.name)
        if change.type == "DELETED":
            self._jobs.discard(key)
            self._whole.pop(key, None)
            self._figures.pop(key, None)
            self._queue.forget(key)
            return
        self._jobs.add(key)
        self._queue.add(key)

    def _on_parts(self, found: Sequence[Named]) -> None:
        for key in {one.key for one in found} & self._jobs:
            self._queue.add(key)

    def _on_part(self, change: Change[Named]) -> None:
        if change.object.key in self._jobs:
            self._queue.add(change.object.key)

    def _on_neighbours(self) -> None:
        for key in self._jobs:
            self._queue.add(key)

    # ── work ──

    async def _work(self, version: tuple[int, int]) -> None:
        while True:
            key = await self._queue.take()
            try:
                after_s = await self._reconcile(key, version)
            except ApiError as error:
                self._say(
                    f"{key[0]}/{key[1]}: {error}; retrying in {self._queue.failed(key):.0f} s"
                )
            except Exception:
                wait_s = self._queue.failed(key)
                self._say(f"{key[0]}/{key[1]}: {traceback.format_exc()}retrying in {wait_s:.0f} s")
            else:
                self._queue.done(key, after_s)

    async def _reconcile(self, key: Key, version: tuple[int, int]) -> float | None:
        if not self._neighbours.acts_in(key[0]):
            return None
        now = time.monotonic()
        whole = now - self._whole.get(key, -WATCH_S) >= WATCH_S
        figures = now - self._figures.get(key, -FIGURES_S) >= FIGURES_S
        after_s = await reconcile(
            self._cluster, key, version, self._workloads, whole=whole, figures=figures
        )
        if key in self._jobs:
            self._whole |= {key: now} if whole else {}
            self._figures |= {key: now} if figures else {}
        return after_s

    async def _version(self) -> tuple[int, int]:
        """That of the server, as far as manifests are made for it."""
        while True:
            try:
                found = await self._cluster.ask("/version")
                return version_of(found)
            except ApiError as error:
                self._say(f"cannot read the version of the cluster: {error}")
                await asyncio.sleep(RETRY_S)

    # ── what owner references cannot clean up ──

    async def _sweep(self) -> None:
        """Roles for machines belong to the cluster, which no TrainingJob can own."""
        while self._namespace == EVERYWHERE:
            await self._listed.wait()
            try:
                if not self._neighbours.elder:
                    await self._swept()
            except ApiError as error:
                self._say(f"cannot delete unused roles: {error}")
            await asyncio.sleep(SWEEP_S)

    async def _swept(self) -> None:
        for kind in (CLUSTER_BINDINGS, CLUSTER_ROLES):
            try:
                found = await self._cluster.listed(kind, Named, labels=f"{JOB},{HOME}")
            except DeniedError:
                return  # without deploy/rbac/cordon we have made none
            for one in found.items:
                name, home = one.metadata.name, one.metadata.labels[HOME]
                job = one.metadata.labels[JOB]
                ours = name == machine_role(home, f"{job}-controller")  # else a copy of somebody
                if ours and (home, job) not in self._jobs:
                    await self._cluster.delete(kind, name)

    def _say(self, text: str) -> None:
        if text != self._told:
            self._told = text
            print(f"holdfast: {text}", file=sys.stderr, flush=True)


def version_of(told: dict[str, str]) -> tuple[int, int]:
    """`{"major": "1", "minor": "36+"}` as the nearest version that manifests are made for."""
    minor = "".join(c for c in told.get("minor", "") if c.isdigit())
    return max(OLDEST, min(NEWEST, (1, int(minor or NEWEST[1]))))


async def operate(cluster: Cluster, operator: Operator, me: str) -> None:
    """Lead when it is our turn; returns when the lease is lost, after which others lead."""
    lease = Lease(cluster, LEASE, me, {MANAGED_BY: "holdfast", SCOPE: operator.scope})
    operator.can_lead = lambda: lease.is_in_sight
    await _acquired(lease)
    keeping = asyncio.create_task(lease.keep())
    working = asyncio.create_task(operator.run())
    try:
        await asyncio.wait({keeping, working}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        await cancelled(keeping, working)
        await lease.release()


async def _acquired(lease: Lease) -> None:
    while True:
        try:
            return await lease.acquire()
        except ApiError as error:
            print(f"holdfast: cannot acquire the lease yet: {error}", file=sys.stderr, flush=True)
            await asyncio.sleep(RETRY_S)
