"""Federates one job: looks at all its clusters, decides, and sees to it, until the job has ended.

What is decided is on disk before it takes effect, so that a federation that was killed goes on
where it was; while nobody federates, the job runs on where it runs. One folder, one federation: the
lock in it says so.
"""

import asyncio
import fcntl
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.drivers.kubernetes.cluster import ApiError, Cluster
from holdfast.drivers.kubernetes.manifests.render import requested
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.drivers.kubernetes.submit_withdraw import withdraw
from holdfast.errors import Error
from holdfast.operator.federation.decide import (
    Offer,
    Order,
    Role,
    Seen,
    Standing,
    State,
    Terms,
    Withdraw,
    decide,
    over,
)
from holdfast.operator.federation.place import AWAY, look, offer
from holdfast.spec import Job

LOOK_EVERY_S = 5.0
ACT_S = 30.0  # for one order; it is given again

Connect = Callable[[str, str | None], Awaitable[Cluster]]
Tell = Callable[[str], None]


class Place(NamedTuple):
    """A cluster of the federation."""

    name: str
    context: str
    namespace: str | None
    terms: Terms


def places_of(job: Job) -> list[Place]:
    """The clusters of a job. Raises `Error` clusters-missing, or what is wrong with the job."""
    if not job.clusters or job.kubernetes.mode != "managed":
        why = "kubernetes.mode is plain" if job.clusters else "the job file names no clusters"
        raise Error(
            "clusters-missing",
            f"job {job.name} cannot be federated",
            why=why,
            help="add `clusters: [{context: east}, {context: west}]`, or use holdfast submit",
        )
    return [
        Place(
            f"{c.context}/{c.namespace}" if c.namespace else c.context,
            c.context,
            c.namespace,
            Terms(c.max_wait_s, c.lost_after_s),
        )
        for c in job.clusters
    ]


class Federation:
    """One job over its clusters, with its state in a folder."""

    def __init__(
        self, job: Job, folder: Path, connect: Connect, tell: Tell, *, code: bytes = b""
    ) -> None:
        self._job = job
        self._code = code
        self._places = places_of(job)
        self._path = folder / "state.json"
        self._connect = connect
        self._tell = tell
        self._clusters: dict[int, Cluster] = {}
        self._refused: dict[int, str] = {}
        self.state = read(self._path, len(self._places))

    async def run(self, *, placed_only: bool = False) -> State:
        """Until the job has ended everywhere; `placed_only`: until a cluster runs it."""
        try:
            while not over(self.state):
                await self.step(time.time())
                if placed_only and any(s.role is Role.RUNS for s in self.state.standings):
                    break
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            for cluster in self._clusters.values():
                await cluster.close()
        return self.state

    async def step(self, now: float) -> None:
        """Look, decide, write down, act."""
        seen = await asyncio.gather(*(self._look(i) for i in range(len(self._places))))
        self._refused.clear()
        terms = [place.terms for place in self._places]
        state, orders = decide(self.state, seen, terms, now)
        self._report(self.state, state)
        if state != self.state:
            write(self._path, state)
        self.state = state
        await asyncio.gather(*(self._act(order) for order in orders))

    async def _look(self, i: int) -> Seen:
        cluster = await self._cluster(i)
        if cluster is None:
            return AWAY
        seen = await look(cluster, self._request(cluster))
        return seen._replace(refused=self._refused.get(i)) if seen.reachable else seen

    def _request(self, cluster: Cluster) -> Request:
        """The job for one cluster, which need not know of the others."""
        alone = self._job.model_copy(update={"clusters": ()})
        return requested(alone, namespace=cluster.namespace, code=self._code)

    async def _cluster(self, i: int) -> Cluster | None:
        """Connected once it answers; a wrong context is silence too, and is told."""
        if i not in self._clusters:
            place = self._places[i]
            try:
                self._clusters[i] = await self._connect(place.context, place.namespace)
            except Error as error:
                self._tell(f"{place.name}: {error.what}: {error.why}")
                return None
        return self._clusters[i]

    async def _act(self, order: Order) -> None:
        name = self._places[order.cluster].name
        cluster = self._clusters[order.cluster]
        request = self._request(cluster)
        try:
            async with asyncio.timeout(ACT_S):
                match order:
                    case Offer(cluster=i):
                        why = await offer(cluster, request)
                        if why is not None:
                            self._refused[i] = why
                            self._tell(f"{name} refuses the job: {why}")
                    case Withdraw():
                        await withdraw(cluster, request.name)
        except (ApiError, TimeoutError) as error:
            self._tell(f"{name}: {error!r}; it is tried again")

    def _report(self, old: State, new: State) -> None:
        for place, was, is_ in zip(self._places, old.standings, new.standings, strict=True):
            if was.role is not is_.role:
                self._tell(f"{place.name}: {WORDS[is_.role]}")
        if new.outcome is not None and old.outcome is None:
            self._tell(f"the job has ended: {new.outcome}")
            for place, standing in zip(self._places, new.standings, strict=True):
                if standing.role in (Role.LOST, Role.LEAVING):
                    self._tell(f"{place.name}: what is left there is still to be removed")


WORDS: dict[Role, str] = {
    Role.NEW: "nothing is known of it",
    Role.IDLE: "nothing of the job is there",
    Role.OFFERED: "has the job and looks for machines",
    Role.RUNS: "runs the job",
    Role.LEAVING: "gives the job back",
    Role.LOST: "cannot be reached; what runs there is removed before it is used again",
}


# ── the folder ────────────────────────────────────────────────────────────────────────────────


def read(path: Path, count: int) -> State:
    """The state that was left; a new one if there is none, or if the clusters are others."""
    fresh = State(tuple(Standing() for _ in range(count)))
    try:
        found = msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return fresh
    except msgspec.DecodeError:
        return fresh
    return found if len(found.standings) == count else fresh


def write(path: Path, state: State) -> None:
    """On the disk, whole or not at all."""
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        file.write(msgspec.json.encode(state))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder of a federation, for one process at a time. Raises `Error` job-running."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Error(
                "job-running",
                f"another process federates {folder.name}",
                why=f"it holds the lock in {folder}",
                help="end it first; the job runs on meanwhile",
            ) from None
        yield
