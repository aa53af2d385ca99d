"""A controller takes the place of one that is silent, and one that waits ends when it is told."""

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from holdfast.actions import Entry
from holdfast.cli.incluster import controlled
from holdfast.drivers.kubernetes import incluster, job_token, shelf
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import PODS, SECRETS
from holdfast.drivers.kubernetes.driver import LISTEN
from holdfast.drivers.kubernetes.gather import Gathering, Running
from holdfast.drivers.kubernetes.incluster import (
    Place,
    as_begun,
    end_by_signal,
    limits_of,
    remove_former,
)
from holdfast.drivers.kubernetes.job_token import token_of
from holdfast.drivers.kubernetes.manifests.names import JOB, ROLE
from holdfast.drivers.kubernetes.origin import origin
from holdfast.errors import Error
from holdfast.events import ControllerResumed
from holdfast.journal import VERSION, Header, Journal
from holdfast.shell.server import Server
from holdfast.shell.succession import RollCall, position_of
from holdfast.spec import job_from_dict
from holdfast.spec.cluster import Engine
from tests.drivers.kubernetes.asking import job
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.cluster.faults import Fault
from tests.drivers.kubernetes.playing import playing
from tests.drivers.kubernetes.test_api import config, pod

CONTROLLER = {JOB: "run", ROLE: "controller"}


def test_the_pod_of_the_one_before_is_removed_and_no_other() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        for name in ("a", "b"):
            await api.create(pod(name, labels=CONTROLLER))
        await remove_former(api, "a", "run")
        await it.until(lambda: it.store.find(PODS, "default", "a") is None)
        await remove_former(api, "a", "run")
        await remove_former(api, "", "run")
        assert it.store.find(PODS, "default", "b") is not None

    playing(act)


def test_what_a_lease_names_is_removed_only_if_it_is_a_controller_of_the_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whoever may change a lease may write the name of any pod into it."""
    others = {
        "database": {},
        "node": {JOB: "run", ROLE: "node"},
        "other": {JOB: "other", ROLE: "controller"},
    }

    async def act(it: FakeCluster, api: Api) -> None:
        for name, labels in others.items():
            await api.create(pod(name, labels=labels))
            await remove_former(api, name, "run")
            found = it.store.get(PODS, "default", name)
            assert "deletionTimestamp" not in found["metadata"]

    playing(act)
    assert "pod database held the lease, and is no controller of run" in capsys.readouterr().err


def test_a_pod_that_cannot_be_removed_holds_up_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(pod("a", labels=CONTROLLER))
        it.server.access.denied.add(("delete", "pods"))
        await remove_former(api, "a", "run")

    playing(act)
    assert "pod a cannot be removed" in capsys.readouterr().err


def test_a_token_that_cannot_be_made_at_once_is_made_later_and_once() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(config("run-job"))
        owner = (await origin(api, "run")).owner
        it.faults.add(Fault("create", "secrets", code=500))
        token = await token_of(api, "run", owner)
        assert token == await token_of(api, "run", owner)

    playing(act)


@pytest.mark.parametrize("data", [None, {}, {"token": ""}, {"password": "c2VjcmV0"}])
def test_a_secret_of_somebody_else_is_no_token_and_is_left_alone(data: Any) -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        theirs = {"metadata": {"name": "run-token"}, "data": data}
        made = it.store.create(SECRETS, "default", theirs)
        with pytest.raises(Error, match="has no token") as caught:
            await token_of(api, "run", {})
        assert caught.value.slug == "name-taken"
        assert it.store.get(SECRETS, "default", "run-token") == made

    playing(act)


def test_a_token_that_is_deleted_is_made_again_and_one_of_somebody_else_is_only_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pods that come later would wait for it for ever."""
    monkeypatch.setattr(job_token, "LOOK_S", 0.01)

    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(config("run-job"))
        owner = (await origin(api, "run")).owner
        token = await token_of(api, "run", owner)
        first = it.store.get(SECRETS, "default", "run-token")
        keeping = asyncio.create_task(job_token.keep_token(api, "run", owner, token))
        it.faults.add(Fault("create", "secrets", code=500))
        it.store.delete(SECRETS, "default", "run-token")
        await it.until(lambda: it.store.find(SECRETS, "default", "run-token"))
        again = it.store.get(SECRETS, "default", "run-token")
        assert again["metadata"]["uid"] != first["metadata"]["uid"]
        assert again["metadata"]["ownerReferences"] == [owner]
        assert await token_of(api, "run", owner) == token
        it.store.delete(SECRETS, "default", "run-token")
        b64 = {"token": "b3RoZXI="}
        theirs = it.store.create(
            SECRETS, "default", {"metadata": {"name": "run-token"}, "data": b64}
        )
        calls = it.server.calls.count(("get", "secrets"))
        await it.until(lambda: it.server.calls.count(("get", "secrets")) > calls + 3)
        assert it.store.get(SECRETS, "default", "run-token") == theirs
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    playing(act)
    said = capsys.readouterr().err
    assert "Secret run-token was deleted: it is made again" in said
    assert said.count("has another token: nodes that start are refused") == 1


def test_a_right_that_a_controller_lacks_is_told_as_an_error() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(config("run-job"))
        it.server.access.denied.add(("create", "leases"))
        place = Place(job(), Mock(), Path(), "", "pod-a", 0, 0)
        with pytest.raises(Error) as caught:
            await controlled(api, place)
        assert 'cannot create resource "leases"' in caught.value.why

    playing(act)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_controller_is_reached_over_either_family(host: str) -> None:
    """Pods of a cluster that has IPv6 only have no other address, and its kubelet none to probe."""

    six = Path("/proc/net/if_inet6")
    if ":" in host and not (six.is_file() and six.read_text()):
        pytest.skip("this machine has no IPv6")

    async def story() -> None:
        server = Server(Mock(), "token", asyncio.get_running_loop().time)
        await server.listen(LISTEN)
        assert server._server is not None
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        ports = {one.family: one.getsockname()[1] for one in server._server.sockets}
        _, writer = await asyncio.open_connection(host, ports[family])
        writer.close()
        await server.close()

    asyncio.run(story())


def test_a_signal_ends_a_controller_that_only_waits() -> None:
    """Whoever is the first process of a container has no other way to go."""

    async def wait() -> None:
        end_by_signal()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(wait())


# ── the journal it begins with ──


class Asked:
    """Agents that hold this copy, and have heard of attempt 7; whether they were asked."""

    def __init__(self, copy: bytes) -> None:
        self.copy, self.times = copy, 0

    def __call__(self, _token: str, far: set[str], near: set[str], _running: Running) -> "Asked":
        self.call = RollCall(far, near, 0.0)
        return self

    async def gather(self, _host: str, _port: int) -> RollCall:
        self.times += 1
        self.call.heard("a", ordered=7, fenced=6)
        position = position_of(self.copy)
        self.call.fetched(position.term, position.line, self.copy)
        return self.call


def test_nobody_waits_for_agents_whose_pods_end_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drained machine takes its controller along with its agents."""
    place, begun = Place(job(), Mock(), tmp_path, "", "c", 0, 0), asyncio.Event()
    asked: set[str] = set()

    class Begun(Gathering):
        async def gather(self, host: str, port: int) -> RollCall:
            asked.update(self._far)
            begun.set()
            return await super().gather(host, port)

    monkeypatch.setattr(incluster, "Gathering", Begun)

    async def act(it: FakeCluster, api: Api) -> RollCall:
        for name in ("a", "b"):
            await api.create(pod(name, labels={JOB: "run"}))
        await it.until(lambda: sum(told_running(body) for body in it.pods(job="run")) == 2)
        asking = asyncio.create_task(incluster._roll_call(api, place, Mock(former=""), "token"))
        await begun.wait()
        for name in ("a", "b"):
            await api.delete(PODS, name, grace_s=0)
        return await asking

    assert not playing(act, machines=1).silent
    assert len(asked) == 2


def told_running(body: dict[str, Any]) -> bool:
    told = body.get("status", {}).get("containerStatuses", [])
    return any("running" in one["state"] for one in told)


def written(path: Path, *terms: int) -> bytes:
    """A journal with an entry of a controller of each of these terms."""
    journal = Journal.create(path, Header(journal=VERSION, holdfast="x", job={}, created_at=0.0))
    for seq, term in enumerate(terms, 1):
        event = ControllerResumed(existing=(), term=term)
        journal.append(Entry(seq=seq, at=1.0, event=event, actions=()))
    journal.sync()
    journal.close()
    return path.read_bytes()


@pytest.mark.parametrize(
    ("left_term", "copy_terms", "taken", "asked"),
    [
        (4, (1, 2), "left", False),  # that of the controller before: complete
        (3, (1, 2, 4), "copy", True),  # another one has acted since
        (3, (1,), "left", True),  # and has left nothing
    ],
)
def test_what_lies_on_a_disk_is_taken_unless_another_controller_has_acted_since(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    left_term: int,
    copy_terms: tuple[int, ...],
    taken: str,
    asked: bool,
) -> None:
    copy = written(tmp_path / "copy", *copy_terms)
    left = written(tmp_path / "left", 1, 3, 3, 3, 3)
    agents = Asked(copy)
    monkeypatch.setattr(incluster, "Gathering", agents)
    place = Place(job(), Mock(), tmp_path / "jobs", "", "pod-a", 0, 0)
    shelf.begin(place.job, shelf.place(place.journals, "run", "u", left_term, "pod-a"), left, now=1)

    async def act(_it: FakeCluster, api: Api) -> None:
        lease = Mock(term=5, former="")
        path, obeyed = await incluster._prepare(api, place, "u", lease, "token")
        assert path.read_bytes() == {"left": left, "copy": copy}[taken]
        assert (agents.times, obeyed) == ((1, 7) if asked else (0, 0))
        assert [p.name for p in path.parent.parent.iterdir()] == ["000005-pod-a"]

    playing(act)


@pytest.mark.parametrize("engine", ["pods", "job"])
@pytest.mark.parametrize("queue", [True, False])
def test_nodes_are_released_only_where_that_gives_something_back(
    engine: Engine, queue: bool
) -> None:
    """Kueue has admitted a group of so many pods: one that goes keeps its quota, and its deletion
    waits for a pod in its place. An engine of its own makes it anew."""
    job = job_from_dict(
        {
            "name": "run", "image": "i", "script": "t.py", "nodes": 3,
            "elasticity": {"min_nodes": 1},
            **({"scheduling": {"kueue": {"queue": "q"}}} if queue else {}),
        },
        where="test",
    )  # fmt: skip
    assert limits_of(job, engine).lets_go == (engine == "pods" and not queue)


@pytest.mark.parametrize("said", [{}, {"mode": "in_process"}])
def test_a_journal_goes_on_with_the_mode_that_it_was_begun_with(
    tmp_path: Path, said: dict[str, str]
) -> None:
    """The default was `processes` once, and a job file in the cluster has no defaults in it."""
    given = job(recovery={"max_restarts": 3, **said})
    path = tmp_path / "journal.jsonl"
    for begun, kept in (("processes", bool(said)), ("auto", True)):
        old = {"recovery": {"mode": begun}}
        head = Header(journal=VERSION, holdfast="0", job=old, created_at=1.0)
        Journal.create(path, head).close()
        limits = limits_of(as_begun(given, path), "pods")
        assert (limits.in_process, limits.max_restarts) == (kept, 3)
        path.unlink()
