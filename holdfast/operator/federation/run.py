"""Federates one job: looks at all its clusters, decides, and sees to it, until the job has ended.

What is decided is on disk before it takes effect, so that a federation that was killed goes on
where it was; while nobody federates, the job runs on where it runs. One folder, one federation: the
lock in it says so.
"""

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, ApiError, Cluster
from holdfast.drivers.kubernetes.doctor_visit import nearest, server_version
from holdfast.drivers.kubernetes.manifests.names import STOP
from holdfast.drivers.kubernetes.manifests.render import requested
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.drivers.kubernetes.submit import make_room
from holdfast.drivers.kubernetes.submit_withdraw import withdraw
from holdfast.errors import Error
from holdfast.operator.federation.decide import (
    FederationState,
    Offer,
    Order,
    Role,
    Seen,
    Standing,
    Terms,
    Withdraw,
    decide,
    over,
)
from holdfast.operator.federation.place import AWAY, look, offer
from holdfast.spec import Job

LOOK_EVERY_S = 5.0
ASK_EVERY_S = 1.0  # the same while no cluster runs the job
ACT_S = 30.0  # for one order; it is given again
BYTES_PER_S = 100_000  # of code, on a slow way to a cluster

Connect = Callable[[str, str | None], Awaitable[Cluster]]
Tell = Callable[[str], None]


class MemberCluster(NamedTuple):
    """A cluster of the federation."""

    name: str
    context: str
    namespace: str | None
    terms: Terms


def places_of(job: Job) -> list[MemberCluster]:
    """The clusters of a job. Raises `Error` clusters-missing, or what is wrong with the job."""
    if (why := _cannot(job)) is not None:
        raise Error(
            "clusters-missing",
            f"job {job.name} cannot be federated",
            why=why,
            help="write `clusters: [{context: east}, {context: west}]` and mode managed in the "
            "job file, or use holdfast submit with --context",
        )
    return [
        MemberCluster(
            f"{c.context}/{c.namespace}" if c.namespace else c.context,
            c.context,
            c.namespace,
            Terms(c.max_wait_s, c.lost_after_s),
        )
        for c in job.clusters
    ]


def _cannot(job: Job) -> str | None:
    if not job.clusters:
        return "the job file has no `clusters`"
    if job.kubernetes.mode != "managed":
        return "kubernetes.mode is plain"
    if job.kubernetes.engine == "cronjob":
        return "a scheduled job cannot be placed"
    return None


class Federation:
    """One job over its clusters, with its state in a folder.

    `strict`: what no cluster takes is an error, where otherwise they are asked again and again.
    """

    def __init__(
        self,
        job: Job,
        folder: Path,
        connect: Connect,
        tell: Tell,
        *,
        code: bytes = b"",
        strict: bool = False,
    ) -> None:
        self._job = job
        self._code = code
        self._places = places_of(job)
        self._path = folder / "state.json"
        self._connect = connect
        self._tell = tell
        self._clusters: dict[int, Cluster] = {}
        self._versions: dict[int, tuple[int, int]] = {}
        self._refused: dict[int, str] = {}
        self._strict = strict
        self._against: dict[int, str] = {}  # why a cluster did not take the job when it was asked
        self._quiet: dict[int, str] = {}  # why a cluster could not be asked
        self._wishes = 0
        self._requested = asyncio.Event()
        self.state = read(self._path, len(self._places))

    async def run(self, *, placed_only: bool = False) -> FederationState:
        """Until the job has ended everywhere; `placed_only`: until a cluster runs it."""
        try:
            while not over(self.state):
                await self.step(time.time())
                if placed_only and any(s.role is Role.RUNS for s in self.state.standings):
                    break
                if self._wishes > 2:
                    break
                await self._pause()
        finally:
            await self.close()
        return self.state

    async def close(self) -> None:
        """Hang up everywhere."""
        while self._clusters:
            await self._clusters.popitem()[1].close()

    async def _pause(self) -> None:
        self._requested.clear()
        runs = any(standing.role is Role.RUNS for standing in self.state.standings)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY_S if runs else ASK_EVERY_S):
                await self._requested.wait()

    async def step(self, now: float) -> None:
        """Look, decide, write down, act."""
        seen = await asyncio.gather(*(self._look(i) for i in range(len(self._places))))
        self._refused.clear()
        terms = [place.terms for place in self._places]
        state, orders = decide(self.state, seen, terms, now)
        self._hopeless(seen, orders)
        self._report(self.state, state)
        if state != self.state:
            write(self._path, state)
        self.state = state
        await asyncio.gather(*(self._act(order) for order in orders))
        await self._pass_on()

    def _hopeless(self, seen: Sequence[Seen], orders: Sequence[Order]) -> None:
        """Asked a second time would be one that has refused, and there is no other."""
        roles = [standing.role for standing in self.state.standings]
        self._strict = self._strict and Role.RUNS not in roles
        silent = {
            i: self._quiet.get(i, "it does not respond")
            for i, one in enumerate(seen)
            if not one.reachable
        }
        against = {**silent, **self._against}
        asked = [order.cluster for order in orders if isinstance(order, Offer)]
        nowhere = len(silent) == len(seen) and Role.OFFERED not in roles
        over_again = any(i in self._against for i in asked)
        if self._strict and len(against) == len(seen) and (nowhere or over_again):
            whys = "; ".join(f"{place.name}: {against[i]}" for i, place in enumerate(self._places))
            raise Error(
                "clusters-refuse",
                f"no cluster accepts job {self._job.name}",
                why=whys,
                help="holdfast doctor job.yaml --on kubernetes --context "
                f"{self._places[0].context}   (checks one of them)",
            )

    # ── a wish of people ──

    def ask_to_stop(self) -> None:
        """The job ends where it runs: gently, the second time at once; the third ends us."""
        self._wishes += 1
        self._requested.set()

    async def _pass_on(self) -> None:
        """To every cluster that has the job; again and again, for it may be on its way."""
        if not self._wishes:
            return
        wish = {"metadata": {"annotations": {STOP: "gently" if self._wishes == 1 else "now"}}}
        for i, standing in enumerate(self.state.standings):
            if standing.role in (Role.RUNS, Role.OFFERED) and i in self._clusters:
                with contextlib.suppress(ApiError):
                    await self._clusters[i].patch(CONFIG_MAPS, f"{self._job.name}-job", wish)

    # ── the beginning ──

    async def begin(self, *, replace: bool) -> None:
        """Go on with what was begun, or make room for a new job.

        Raises `Error` job-running or job-exists, as a submission to one of the clusters would.
        """
        seen = await asyncio.gather(*(self._look(i) for i in range(len(self._places))))
        both = list(zip(self.state.standings, seen, strict=True))
        if self.state.outcome is None:
            if any(was.role is Role.OFFERED and not one.outcome for was, one in both):
                self._tell("resuming the previous federation")
                return
            self._none_unseen(both)
        kept = []
        for i, (was, one) in enumerate(both):
            leaving = was.role in (Role.LEAVING, Role.LOST)
            if one.there and not leaving:
                await self._make_room(i, replace=replace)
            kept.append(was if leaving else Standing())
        self.state = FederationState(tuple(kept))
        write(self._path, self.state)

    def _none_unseen(self, both: Sequence[tuple[Standing, Seen]]) -> None:
        for place, (was, one) in zip(self._places, both, strict=True):
            if was.role is Role.RUNS and not one.reachable:
                raise Error(
                    "job-running",
                    f"job {self._job.name!r} is probably already running",
                    why=f"{place.name}, where it was placed, does not respond",
                    help="holdfast federate job.yaml   (continues with it, and moves it if "
                    "necessary)",
                )

    async def _make_room(self, i: int, *, replace: bool) -> None:
        cluster, place = self._clusters[i], self._places[i]
        words = f" --context {place.context} -n {cluster.namespace}"
        await make_room(cluster, self._request(i, cluster), replace=replace, words=words)

    async def _look(self, i: int) -> Seen:
        cluster = await self._cluster(i)
        if cluster is None:
            return AWAY
        seen = await look(cluster, self._request(i, cluster))
        return seen._replace(refused=self._refused.get(i)) if seen.reachable else seen

    def _request(self, i: int, cluster: Cluster) -> Request:
        """The job for one cluster, which need not know of the others. One that comes after a
        cluster which was lost does not wait for the job there, which may go on saving."""
        tiers = self._job.checkpoints
        if self.state.term > 1:
            tiers = tiers.model_copy(update={"take_over": True})
        alone = self._job.model_copy(update={"clusters": (), "checkpoints": tiers})
        return requested(
            alone, namespace=cluster.namespace, version=self._versions[i], code=self._code
        )

    async def _cluster(self, i: int) -> Cluster | None:
        """Connected once it answers; a wrong context is silence too, and is told."""
        if i not in self._clusters:
            place = self._places[i]
            try:
                cluster = await self._connect(place.context, place.namespace)
            except Error as error:
                self._silent(i, f"{error.what}: {error.why}")
                return None
            try:
                self._versions[i] = nearest(await server_version(cluster))
            except ApiError as error:
                self._silent(i, str(error))
                await cluster.close()
                return None
            self._clusters[i] = cluster
        return self._clusters[i]

    def _silent(self, i: int, why: str) -> None:
        """Told once for each reason."""
        if self._quiet.get(i) != why:
            self._quiet[i] = why
            self._tell(f"{self._places[i].name}: {why}")

    async def _act(self, order: Order) -> None:
        name = self._places[order.cluster].name
        cluster = self._clusters[order.cluster]
        request = self._request(order.cluster, cluster)
        try:
            async with asyncio.timeout(ACT_S + len(self._code) / BYTES_PER_S):
                match order:
                    case Offer(cluster=i):
                        why = await offer(cluster, request)
                        if why is not None:
                            self._refused[i] = self._against[i] = why
                            self._tell(f"{name} rejects the job: {why}")
                    case Withdraw():
                        await withdraw(cluster, request.name)
        except (ApiError, TimeoutError) as error:
            self._tell(f"{name}: {error!r}; retrying")

    def _report(self, old: FederationState, new: FederationState) -> None:
        for place, was, is_ in zip(self._places, old.standings, new.standings, strict=True):
            if was.role is not is_.role:
                self._tell(f"{place.name}: {WORDS[is_.role]}")
        if new.outcome is not None and old.outcome is None:
            self._tell(f"the job has ended: {new.outcome}")
            for place, standing in zip(self._places, new.standings, strict=True):
                if standing.role in (Role.LOST, Role.LEAVING):
                    self._tell(f"{place.name}: remaining objects have yet to be deleted")


WORDS: dict[Role, str] = {
    Role.NEW: "state unknown",
    Role.IDLE: "no objects of the job",
    Role.OFFERED: "has the job, waiting for machines",
    Role.RUNS: "runs the job",
    Role.LEAVING: "is releasing the job",
    Role.LOST: "is unreachable; what runs there is deleted before it is used again",
}


# ── the folder ────────────────────────────────────────────────────────────────────────────────


def read(path: Path, count: int) -> FederationState:
    """The state that was left; a new one if there is none, or if the clusters are others."""
    fresh = FederationState(tuple(Standing() for _ in range(count)))
    try:
        found = msgspec.json.decode(path.read_bytes(), type=FederationState)
    except FileNotFoundError:
        return fresh
    except msgspec.DecodeError:
        return fresh
    return found if len(found.standings) == count else fresh


def write(path: Path, state: FederationState) -> None:
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
                f"another process is federating {folder.name}",
                why=f"it holds the lock in {folder}",
                help="stop it first; the job keeps running",
            ) from None
        yield
