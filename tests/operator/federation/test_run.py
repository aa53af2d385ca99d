"""A federation over clusters: in order, one at a time, and from what it has written down."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from holdfast.drivers.kubernetes import api as client
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import (
    CLAIMS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    JOBS,
    NODES,
    PODS,
    Cluster,
)
from holdfast.errors import Error
from holdfast.operator.federation.decide import FederationState, Role, Standing
from holdfast.operator.federation.run import Federation, locked, places_of, read, write
from holdfast.spec import Job, job_from_dict
from holdfast.status import JobStatus
from tests.drivers.kubernetes.cluster.fake import FakeCluster, cluster
from tests.drivers.kubernetes.cluster.machines import node
from tests.operator.asking import spec
from tests.patience import PATIENCE_S
from tests.warm import holdfast

ARCHIVE = {"archive": {"url": "s3://bucket/runs"}}
CHOICES = [{"context": name, "max_wait_s": 100, "lost_after_s": 50} for name in ("east", "west")]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a client pauses before it asks again is tested with the client."""
    monkeypatch.setattr(client, "PAUSE_S", 0.01)


def job(**keys: Any) -> Job:
    said = spec(kubernetes={"engine": "job"}, checkpoints=ARCHIVE, clusters=CHOICES, **keys)
    return job_from_dict({"name": "run", **said}, where="test")


class Sites:
    """Two clusters that may be cut off, and what is told."""

    def __init__(self, folder: Path, fakes: dict[str, FakeCluster]) -> None:
        self.folder, self.fakes = folder, fakes
        self.away: set[str] = set()
        self.said: list[str] = []
        self.federation = self.start()

    def start(self) -> Federation:
        return Federation(job(), self.folder, self._connect, self.said.append)

    async def _connect(self, context: str, namespace: str | None) -> Cluster:
        async def gate(request: httpx2.Request) -> None:
            if context in self.away:
                raise httpx2.ConnectError("no route", request=request)

        client = httpx2.AsyncClient(
            base_url=self.fakes[context].url, trust_env=False, event_hooks={"request": [gate]}
        )
        return Api(client, namespace or "default")

    def has(self, name: str) -> bool:
        store = self.fakes[name].store
        kinds = (JOBS, DEPLOYMENTS, PODS, CONFIG_MAPS)
        return any(store.all(kind, "default") for kind in kinds)

    def admit(self, name: str) -> None:
        """Its machine takes the pods, a node and the controller, and says that they run."""
        machine = node("m", {}, {})
        machine["spec"]["unschedulable"] = True  # nothing but these
        self.fakes[name].store.create(NODES, "", machine)
        for role in ("node", "controller"):
            labels = {"holdfast.dev/job": "run", "holdfast.dev/role": role}
            body = {
                "metadata": {"name": f"run-{role}", "labels": labels},
                "spec": {"nodeName": "m", "containers": [{"name": "main", "image": "x"}]},
                "status": {
                    "phase": "Running",
                    "containerStatuses": [{"name": "main", "state": {"running": {}}}],
                },
            }
            self.fakes[name].store.create(PODS, "default", body)

    def end(self, name: str, outcome: str) -> None:
        status = JobStatus(
            job="run", phase=outcome, attempt=1, step=9, ettr=1.0, nodes=(), incidents_count=0,
            restarts_count=0, waiting_for=None, started_at=1.0, wall_s=1.0, outcome=outcome,
        )  # fmt: skip
        labels = {"holdfast.dev/job": "run"}
        body = {
            "metadata": {"name": "run-record", "labels": labels},
            "data": {"status.json": msgspec.json.encode(status).decode()},
        }
        self.fakes[name].store.create(CONFIG_MAPS, "default", body)

    def roles(self) -> list[Role]:
        return [standing.role for standing in self.federation.state.standings]

    def takes_over(self) -> dict[str, bool]:
        """By cluster, whether the job there continues whoever else saves where it does."""
        found = {name: fake.store.get(CONFIG_MAPS, "default", "run-job") for name, fake in
                 self.fakes.items()}  # fmt: skip
        return {n: "take_over: true" in body["data"]["job.yaml"] for n, body in found.items()}

    async def step(self, now: float) -> list[Role]:
        await self.federation.step(now)
        return self.roles()

    async def gone(self, name: str, now: float) -> None:
        """Look again until the cluster has removed everything; pods go with their machine."""
        if self.fakes[name].store.find(NODES, "", "m") is not None:
            self.fakes[name].store.delete(NODES, "", "m")
        while self.has(name) or self.roles()[list(self.fakes).index(name)] is not Role.IDLE:
            await self.step(now)


@asynccontextmanager
async def sites(folder: Path) -> AsyncIterator[Sites]:
    async with AsyncExitStack() as stack:
        fakes = {
            name: await stack.enter_async_context(cluster(machines=0)) for name in ("east", "west")
        }
        yield Sites(folder, fakes)


def test_the_first_that_admits_the_job_runs_it_and_the_other_is_cleared(tmp_path: Path) -> None:
    async def live() -> None:
        async with sites(tmp_path) as it:
            assert await it.step(1000) == [Role.OFFERED, Role.IDLE]
            assert it.has("east") and not it.has("west")
            assert await it.step(1050) == [Role.OFFERED, Role.IDLE]
            await it.step(1100)
            async with asyncio.timeout(PATIENCE_S):
                await it.gone("east", 1105)
            assert it.roles() == [Role.IDLE, Role.OFFERED]
            it.admit("west")
            assert await it.step(1110) == [Role.IDLE, Role.RUNS]
            it.end("west", "succeeded")
            await it.step(1120)
            assert it.federation.state.outcome == "succeeded"
            text = it.fakes["west"].store.get(CONFIG_MAPS, "default", "run-job")["data"]["job.yaml"]
            assert "clusters" not in text

    asyncio.run(live())


def test_a_lost_cluster_is_replaced_and_cleared_when_it_is_back(tmp_path: Path) -> None:
    async def live() -> None:
        async with sites(tmp_path) as it:
            await it.step(1000)
            it.admit("east")
            assert await it.step(1005) == [Role.RUNS, Role.IDLE]
            it.away.add("east")
            assert await it.step(1010) == [Role.RUNS, Role.IDLE]
            assert await it.step(1060) == [Role.LOST, Role.OFFERED]
            assert it.has("west") and it.has("east")
            assert it.takes_over() == {"east": False, "west": True}, "east may still save"
            it.admit("west")
            assert await it.step(1065) == [Role.LOST, Role.RUNS]
            it.away.clear()
            assert await it.step(1070) == [Role.LEAVING, Role.RUNS]
            async with asyncio.timeout(PATIENCE_S):
                await it.gone("east", 1075)
            assert it.roles() == [Role.IDLE, Role.RUNS] and it.has("west")

    asyncio.run(live())


def test_a_federation_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    async def live() -> None:
        async with sites(tmp_path) as it:
            await it.step(1000)
            it.admit("east")
            await it.step(1005)
            before = len(it.fakes["east"].store.everything())
            it.federation = it.start()
            assert it.roles() == [Role.RUNS, Role.IDLE]
            assert await it.step(1010) == [Role.RUNS, Role.IDLE]
            assert len(it.fakes["east"].store.everything()) == before
            (tmp_path / "state.json").unlink()
            it.federation = it.start()
            assert await it.step(1015) == [Role.OFFERED, Role.IDLE]
            assert await it.step(1020) == [Role.RUNS, Role.IDLE]
            assert not it.has("west")

    asyncio.run(live())


def test_a_cluster_that_refuses_is_passed_over_at_once(tmp_path: Path) -> None:
    async def live() -> None:
        async with sites(tmp_path) as it:
            it.fakes["east"].server.access.denied.add(("patch", "deployments"))
            await it.step(1000)
            await it.step(1005)
            async with asyncio.timeout(PATIENCE_S):
                await it.gone("east", 1010)
            await it.step(1015)
            assert it.roles()[1] is Role.OFFERED
            assert any("east rejects the job" in line for line in it.said)

    asyncio.run(live())


def test_claims_stay_when_the_job_is_withdrawn(tmp_path: Path) -> None:
    async def live() -> None:
        async with sites(tmp_path) as it:
            labels = {"holdfast.dev/job": "run"}
            claim = {"metadata": {"name": "data", "labels": labels}, "spec": {}}
            it.fakes["east"].store.create(CLAIMS, "default", claim)
            await it.step(1000)
            await it.step(1100)
            async with asyncio.timeout(PATIENCE_S):
                await it.gone("east", 1105)
            assert it.fakes["east"].store.get(CLAIMS, "default", "data")

    asyncio.run(live())


# ── the file and the folder ───────────────────────────────────────────────────────────────────


def test_what_was_written_is_read_again_and_other_clusters_begin_anew(tmp_path: Path) -> None:
    state = FederationState(
        (Standing(Role.RUNS, 5.0, 6.0), Standing(Role.LOST)), term=3, next=1, at=7.0
    )
    write(tmp_path / "state.json", state)
    assert read(tmp_path / "state.json", 2) == state
    assert read(tmp_path / "state.json", 3) == FederationState((Standing(),) * 3)
    (tmp_path / "state.json").write_text("{")
    assert read(tmp_path / "state.json", 1) == FederationState((Standing(),))


def test_one_process_federates_a_job(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(Error, match="another process is federating"):
        with locked(tmp_path):
            pass


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"clusters": CHOICES}, "checkpoints.archive"),
        (
            {"clusters": [{"context": "a"}, {"context": "a"}], "checkpoints": ARCHIVE},
            "duplicate entry",
        ),
        ({"clusters": [{"context": "a", "max_wait": 1}]}, "max_wait"),
    ],
)
def test_wrong_clusters_are_refused(keys: dict[str, Any], what: str) -> None:
    with pytest.raises(Error) as refused:
        job_from_dict({"name": "run", **spec(**keys)}, where="test")
    assert what in str(refused.value)


def test_a_job_without_clusters_or_without_agents_is_not_federated() -> None:
    with pytest.raises(Error, match="cannot be federated"):
        places_of(job_from_dict({"name": "run", **spec()}, where="test"))
    plain = spec(kubernetes={"engine": "job", "mode": "plain"}, clusters=[{"context": "a"}])
    with pytest.raises(Error, match="cannot be federated"):
        places_of(job_from_dict({"name": "run", **plain}, where="test"))


def test_holdfast_federate_says_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: run\nscript: t.py\nimage: x\n")
    done = holdfast("federate", str(file))
    assert done.returncode == 2
    assert "error[clusters-missing]" in done.stderr
