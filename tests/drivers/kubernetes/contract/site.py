"""A job in a cluster in this process: real controller, agents and training, seen by the API."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

from holdfast.bundles import bundle, digest
from holdfast.drivers import records
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, LEASES, NAMESPACES, PODS, ApiError
from holdfast.drivers.kubernetes.ending import main_object
from holdfast.drivers.kubernetes.manifests.names import ROLE, STOP
from holdfast.drivers.kubernetes.manifests.render import requested, unchecked
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.origin import origin
from holdfast.drivers.kubernetes.record import recorded
from holdfast.drivers.kubernetes.remote import look
from holdfast.drivers.kubernetes.remote_logs import everything
from holdfast.drivers.kubernetes.remote_orders import ask_to_update
from holdfast.drivers.kubernetes.roster import TRAINS
from holdfast.drivers.kubernetes.shipped_code import ship
from holdfast.messages import UpdateJob
from holdfast.spec import job_from_dict
from holdfast.spec.cluster import Engine
from holdfast.status import Goodput, Incident, JobStatus, UpdateStatus
from tests.drivers.kubernetes.cluster.fake import FakeCluster, cluster
from tests.drivers.kubernetes.cluster.pod_security import ENFORCE
from tests.end_to_end.local.jobs import SCRIPTS
from tests.patience import ENOUGH_S, MAY_BE_SILENT, PATIENCE_S, Patience

LONG = 100_000  # steps: more than any test waits for
LOOK_S = 0.2  # a look reads a whole record by HTTP, or all output
PAUSE = "0.1"  # in each of them: most of what a story waits for is not training


class Site:
    """One job called `run` in namespace `default`."""

    def __init__(self, it: FakeCluster, api: Api, request: Request, folder: Path) -> None:
        self.it, self.api, self.request, self.folder = it, api, request, folder
        self.pods_bound = request.pods  # there may never be more

    # ── what can be seen ──

    async def status(self) -> JobStatus | None:
        """What the record says; None before there is one."""
        try:
            found = await recorded(self.api, "run")
        except ApiError:
            return None
        return found.status if found is not None else None

    async def incidents(self) -> list[Incident]:
        """Every incident so far."""
        found = await recorded(self.api, "run")
        assert found is not None
        return list(found.incidents)

    async def goodput(self) -> Goodput:
        """The ledger, which is that of the journal too."""
        found = await recorded(self.api, "run")
        assert found is not None and found.journal is not None
        folder = self.folder / "run"
        folder.mkdir(exist_ok=True)
        (folder / "job.json").write_text(self.request.job.model_dump_json())
        (folder / "journal.jsonl").write_bytes(found.journal)
        if found.status.outcome is not None:
            assert records.goodput(folder, 0.0).buckets == found.goodput.buckets
        return found.goodput

    def pods(self, role: str = "") -> list[Body]:
        """Pods of the job, those that are being deleted left out."""
        chosen = {"role": role} if role else {}
        found = self.it.pods(job="run", **chosen)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    async def member(self, rank: int) -> Body:
        """The pod of a node that trains."""
        status = await self.status()
        assert status is not None
        name = next(node.name for node in status.nodes if node.rank == rank)
        return next(pod for pod in self.pods() if pod["metadata"]["name"] == name)

    async def controller(self) -> Body:
        """The pod that has the lease, not the one that stands by."""
        while True:
            lease = self.it.store.find(LEASES, "default", "run-controller") or {"spec": {}}
            holder = lease["spec"].get("holderIdentity")
            for pod in self.pods("controller"):
                if pod["metadata"]["name"] == holder:
                    return pod
            await asyncio.sleep(LOOK_S)

    async def successor(self, old: Body, patience_s: float = PATIENCE_S) -> Body:
        """The next pod that has the lease."""
        async with asyncio.timeout(patience_s):
            while (found := await self.controller())["metadata"]["uid"] == old["metadata"]["uid"]:
                await asyncio.sleep(LOOK_S)
        return found

    async def main_object(self) -> Body:
        """The engine's object."""
        kind = main_object(self.request)
        assert kind is not None
        return await self.api.get(kind, "run")

    # ── waiting ──

    async def until(
        self, condition: Callable[[JobStatus], Any], what: str, patience_s: float = ENOUGH_S
    ) -> JobStatus:
        """Wait until something is true of the status."""
        patience, status = Patience(patience_s), None
        async with asyncio.timeout(PATIENCE_S):  # for one answer, too
            while not patience.is_over:
                status = await self.status()
                if status is not None and condition(status):
                    return status
                if status is not None and status.outcome is not None:
                    break
                await asyncio.sleep(LOOK_S)
        over = patience.is_over
        told = f"not within {patience_s:g} s" if over else "not before the job ended"
        raise AssertionError(f"{told}: {what}\n{status}\n{self.it.story()}")

    async def trains(self, *, attempt: int = 1, spares: int = 0, after: int = 0) -> JobStatus:
        """Wait until it trains in this attempt or a later one, with so many spares ready."""
        light = self.request.job.command is not None  # reports no steps
        status = await self.until(
            lambda s: s.phase == "running" and s.attempt >= attempt
            and (light or (s.step or 0) > after)
            and sum(node.state == "spare" for node in s.nodes) >= spares,
            f"attempt {attempt} to train past step {after} with {spares} spares",
        )  # fmt: skip
        if light:  # it runs once it is started, and may be stopped before its first word
            await self._both_speak()
        return status

    async def _both_speak(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not {0, 1} <= await self.spoken():
                await asyncio.sleep(LOOK_S)

    async def ends(self, outcome: str) -> JobStatus:
        """Wait for the end; then the books balance, and nothing of it runs any more."""
        status = await self.until(lambda s: s.outcome is not None, f"the job to end ({outcome})")
        assert status.outcome == outcome, f"{status}\n{self.it.story()}"
        await self.it.until(lambda: not self._running())
        goodput = await self.goodput()
        assert round(sum(goodput.buckets.values()), 3) == round(goodput.wall_s, 3)
        for incident in await self.incidents():
            assert round(sum(incident.bill.values()), 3) == incident.lost_s
        if "echo trains" in " ".join(self.request.job.command or ()):
            assert {0, 1} <= await self.spoken(), "output of each rank can be read afterwards"
        return status

    async def spoken(self) -> set[int | None]:
        """Ranks of which output can be read now, from pods or from what was kept of them."""
        lost: list[str] = []
        lines = everything(self.api, await look(self.api, "run"), lost.append)
        return {line.rank async for line in lines}

    def _running(self) -> list[str]:
        return [p["metadata"]["name"] for p in self.pods() if p["status"]["phase"] == "Running"]

    # ── harm and wishes ──

    async def worker(self, rank: int) -> int:
        """The pid of the worker with this rank, as soon as it is told; there is one on a node."""

        def pid_in(status: JobStatus) -> int:
            return next((n.pids[0] for n in status.nodes if n.rank == rank and n.pids), 0)

        return pid_in(await self.until(pid_in, f"the process of rank {rank}"))

    def most_pods(self) -> int:
        """As many pods that could train as there ever were at one time: the referee's count."""
        there: set[str] = set()
        most = 0
        for event in self.it.store.since(self.it.store.oldest):
            meta = event.object["metadata"]
            if event.kind != PODS or meta.get("labels", {}).get(ROLE) not in TRAINS:
                continue
            over = event.object["status"].get("phase") in ("Succeeded", "Failed")
            if event.type == "DELETED" or over or "deletionTimestamp" in meta:
                there.discard(meta["uid"])
            else:
                there.add(meta["uid"])
            most = max(most, len(there))
        return most

    def failed_duties(self) -> list[str]:
        """What controllers have said of duties that had to be started again."""
        logs = self.it.folder.glob("pods/*/controller.log")
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
        return [line for line in lines if "is started again" in line]

    def ever(self) -> set[str]:
        """Every pod that could train and that there ever was."""
        made = (
            e.object["metadata"]
            for e in self.it.store.since(self.it.store.oldest)
            if e.kind == PODS
        )
        return {meta["uid"] for meta in made if meta.get("labels", {}).get(ROLE) in TRAINS}

    async def stop(self, how: str = "gently") -> None:
        """As `holdfast stop` does."""
        patch = {"metadata": {"annotations": {STOP: how}}}
        await self.api.patch(CONFIG_MAPS, "run-job", patch)

    async def update(self, id_: str, data: bytes = b"", **wish: Any) -> UpdateStatus:
        """As `holdfast update` does; once nodes have prepared it, or could not."""
        if data:
            owner = (await origin(self.api, "run")).owner
            await ship(self.api, "run", data, owner, ())
            wish["code"] = digest(data)
        order = UpdateJob(by="holdfast update", id=id_, **wish)
        await ask_to_update(self.api, "run", order)

        def heard(status: JobStatus) -> UpdateStatus | None:
            return next((one for one in status.updates if one.id == id_), None)

        status = await self.until(
            lambda s: (found := heard(s)) is not None and found.stage != "preparing",
            f"update {id_} to be prepared",
        )
        found = heard(status)
        assert found is not None
        return found

    async def delete(self, pod: Body) -> None:
        """As `kubectl delete pod`."""
        await self.api.delete(PODS, pod["metadata"]["name"], uid=pod["metadata"]["uid"])

    async def evict(self, pod: Body) -> bool:
        """By the Eviction API."""
        return await self.api.evict(pod["metadata"]["name"], uid=pod["metadata"]["uid"])


def _restrict(namespace: Body) -> None:
    namespace["metadata"]["labels"] = {ENFORCE: "restricted"}


@contextlib.asynccontextmanager
async def running(
    engine: Engine, folder: Path, *, steps: int = LONG, args: tuple[str, ...] = (),
    machines: int = 4, light: bool = False, images: Iterable[str] | None = None,
    restricted: bool = True, **spec: Any,
) -> AsyncIterator[Site]:  # fmt: skip
    """A submitted job of two nodes and a spare, gone with its cluster at the end. Of images only
    those that are named can be pulled. `restricted`: its namespace enforces that standard, as it
    cannot where pods run as root or use a folder of their machine.

    A light one runs a program that only waits, and starts in a tenth of the time.
    """
    code = folder / "code"
    code.mkdir(exist_ok=True)
    shutil.copy(SCRIPTS / "small.py", code)
    program: dict[str, Any] = {
        "script": "small.py",
        "args": ["--out", ".", "--steps", str(steps), "--pause", PAUSE, *args],
    }
    if light:
        program = {"command": ["sh", "-c", f"echo trains; exec sleep {0.05 * steps}"]}
    job = job_from_dict(
        {
            "name": "run", "image": "img:1", "code": ".", **program,
            "nodes": {"count": 2, "spares": 1}, "workers_per_node": 1,
            "env": {"OMP_NUM_THREADS": "1"}, "snapshots": {"every_steps": 1},
            **spec,
            "recovery": {**MAY_BE_SILENT, "check": "off", **spec.get("recovery", {})},
        },
        where="test",
    )  # fmt: skip
    request = requested(job, engine=engine, namespace="default", code=bundle(code))
    extra = () if engine in ("pods", "job") else (engine,)
    known = None if images is None else dict.fromkeys(images)
    async with cluster(machines=machines, engines=extra, images=known) as it:
        if restricted:
            it.store.change(NAMESPACES, "", "default", _restrict)
        api = it.api()
        try:
            for body in unchecked(request):
                if body["kind"] != "Pod":  # those the controller makes
                    await api.apply(body)
            site = Site(it, api, request, folder)
            yield site
            assert site.most_pods() <= site.pods_bound, "more pods than the job has asked for"
            assert site.failed_duties() == [], "what goes on in the background"
        finally:
            await api.close()
