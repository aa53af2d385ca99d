"""A job seen from outside: its logs, the wishes that are passed to it, the list of all jobs."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.drivers.kubernetes import remote_logs
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import (
    CONFIG_MAPS,
    CRON_JOBS,
    DEPLOYMENTS,
    JOBS,
    PODS,
    ApiError,
)
from holdfast.drivers.kubernetes.listing import ListedJob, jobs
from holdfast.drivers.kubernetes.manifests.engines.pods import GATE
from holdfast.drivers.kubernetes.manifests.names import JOB, MANAGED_BY, ROLE, STOP
from holdfast.drivers.kubernetes.manifests.render import requested
from holdfast.drivers.kubernetes.remote import controller_state, job_of, look, newest, status
from holdfast.drivers.kubernetes.remote_logs import Following, Printed, parsed, written
from holdfast.drivers.kubernetes.remote_orders import ask_to_stop
from holdfast.drivers.kubernetes.resuming import resume
from holdfast.drivers.kubernetes.submit import submit
from holdfast.errors import Error
from tests.drivers.kubernetes.asking import job
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.cluster.faults import Fault
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.playing import playing
from tests.drivers.kubernetes.seen import ended as over
from tests.drivers.kubernetes.test_submit import asked, ended, play

pytestmark = pytest.mark.usefixtures("nothing_left")


def printing(folder: Path, story: Callable[[FakeCluster, Api], Awaitable[None]]) -> None:
    """Let something happen in a cluster whose only image is a folder with scripts."""
    playing(story, machines=2, images={"shell": folder})


def node(name: str, script: str) -> Body:
    """A pod of job `run` whose output is that of a shell script."""
    meta = {"name": name, "namespace": "default", "labels": {JOB: "run", ROLE: "node"}}
    main = {"name": "main", "image": "shell", "command": ["sh", "-c", script]}
    spec = {"restartPolicy": "Never", "containers": [main]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def test_lines_are_told_apart_by_their_rank() -> None:
    assert parsed("p", "[rank 12] loss 0.1") == Printed("p", 12, "loss 0.1")
    assert parsed("p", "[rank 1] ") == Printed("p", 1, "")
    assert parsed("p", "holdfast: connected") == Printed("p", None, "holdfast: connected")
    assert parsed("p", "[ranking] x").rank is None


def test_a_log_is_all_that_a_pod_has_printed(tmp_path: Path) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await api.create(node("run-0", "echo '[rank 0] a'; echo agent; echo '[rank 0] b'"))
        await it.until(lambda: it.pods(job="run")[0]["status"]["phase"] == "Succeeded")
        [pod] = (await look(api, "run")).pods
        found = [line async for line in written(api, pod)]
        assert [(line.rank, line.text) for line in found] == [(0, "a"), (None, "agent"), (0, "b")]

    printing(tmp_path, story)


def test_a_pod_that_has_not_started_has_printed_nothing() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await api.create(node("run-0", "echo"))
        await it.until(lambda: it.pods(job="run")[0]["spec"].get("nodeName"))
        [pod] = (await look(api, "run")).pods
        assert [line async for line in written(api, pod)] == []

    play(story, machines=1)


def test_following_shows_pods_that_come_later_and_ends_with_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_logs, "LOOK_S", 0.1)

    async def story(_it: FakeCluster, api: Api) -> None:
        await api.create(node("run-0", "echo '[rank 0] first'; sleep 0.2"))
        seen: list[str] = []
        async for line in Following(api, "run").lines():
            seen.append(line.text)
            if line.text == "first":
                await api.create(node("run-1", "echo '[rank 1] second'"))
            if line.text == "second":
                await ended(api)
        assert seen == ["first", "second"]

    printing(tmp_path, story)


class Cutting:
    """A cluster whose logs break off: each reading gives one line more than the one before."""

    namespace = "default"

    def __init__(self, api: Api) -> None:
        self._api, self._readings = api, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def log(
        self,
        pod: str,
        *,
        container: str,
        follow: bool = False,
        tail: int | None = None,
        since: float | None = None,
    ) -> AsyncIterator[str]:
        """The first lines."""
        assert (pod, container, follow, tail, since) == ("run-0", "main", True, None, None)
        self._readings += 1
        for number in range(self._readings):
            yield f"[rank 0] {number}"
        if self._readings < 3:
            raise ApiError(0, "ReadError", "cut")


def test_a_log_that_is_cut_goes_on_without_saying_anything_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_logs, "AGAIN_S", 0.0)
    monkeypatch.setattr(remote_logs, "LOOK_S", 0.1)

    async def story(_it: FakeCluster, api: Api) -> None:
        await api.create(node("run-0", "true"))
        following = Following(Cutting(api), "run").lines()
        seen = [(await anext(following)).text for _ in range(3)]
        await ended(api)
        assert [*seen, *[line.text async for line in following]] == ["0", "1", "2"]

    printing(tmp_path, story)


# ── wishes ────────────────────────────────────────────────────────────────────────────────────


def test_a_wish_to_stop_waits_where_the_controller_looks() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await submit(api, asked())
        for now, said in ((False, "gently"), (True, "now")):
            await ask_to_stop(api, "run", now=now)
            body = it.store.get(CONFIG_MAPS, "default", "run-job")
            assert body["metadata"]["annotations"][STOP] == said

    play(story, machines=0)


def test_a_controller_that_was_scaled_down_comes_back_without_an_old_wish() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await submit(api, asked())
        await ask_to_stop(api, "run", now=True)
        scale = {"spec": {"replicas": 0}}
        await api.patch(DEPLOYMENTS, "run-controller", scale, part="scale")
        seen = await look(api, "run")
        assert controller_state(seen) == "away"
        assert await resume(api, seen) == ["its controller is started"]
        assert it.store.get(DEPLOYMENTS, "default", "run-controller")["spec"]["replicas"] == 2
        kept = it.store.get(CONFIG_MAPS, "default", "run-job")["metadata"]
        assert STOP not in (kept.get("annotations") or {})

    play(story, machines=0)


def test_an_ended_job_is_not_resumed() -> None:
    async def story(_it: FakeCluster, api: Api) -> None:
        await submit(api, asked())
        await ended(api, "stopped")
        with pytest.raises(Error) as caught:
            await resume(api, await look(api, "run"))
        assert caught.value.slug == "job-ended"

    play(story, machines=0)


def test_a_suspended_engine_is_let_go_and_stays_so() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await submit(api, asked("job", lifetime={"suspend": True}))
        assert it.store.get(JOBS, "default", "run")["spec"]["suspend"] is True
        await resume(api, await look(api, "run"))
        assert it.store.get(JOBS, "default", "run")["spec"]["suspend"] is False
        file = it.store.get(CONFIG_MAPS, "default", "run-job")
        assert job_of(file).lifetime.suspend is False
        assert await resume(api, await look(api, "run")) == []

    play(story, machines=0)


def test_a_suspended_schedule_is_on_again() -> None:
    keys: dict[str, Any] = {"schedule": {"cron": "@daily"}, "lifetime": {"suspend": True}}

    async def story(it: FakeCluster, api: Api) -> None:
        await submit(api, asked("cronjob", **keys))
        await resume(api, await look(api, "run"))
        assert it.store.get(CRON_JOBS, "default", "run")["spec"]["suspend"] is False

    play(story, machines=0)


def test_our_gate_is_taken_off_pods_and_that_of_a_queue_stays() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await submit(api, asked(lifetime={"suspend": True}))
        held = node("run-0", "true")
        held["spec"]["schedulingGates"] = [{"name": GATE}, {"name": "kueue.x-k8s.io/admission"}]
        await api.create(held)
        assert (await resume(api, await look(api, "run")))[0] == "1 pod may start"
        gates = it.store.get(PODS, "default", "run-0")["spec"]["schedulingGates"]
        assert gates == [{"name": "kueue.x-k8s.io/admission"}]

    play(story, machines=0)


# ── which jobs there are ──────────────────────────────────────────────────────────────────────


def _later(than: float) -> float:
    return than + 60


def test_the_newest_job_is_meant_when_none_is_named() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        with pytest.raises(Error) as caught:
            await newest(api)
        assert caught.value.slug == "job-not-found"
        for name in ("b", "a"):
            await submit(api, requested(job(name=name), namespace="default"))
            it.store.clock = partial(_later, it.store.clock())
        assert await newest(api) == "a"

    play(story, machines=0)


def test_a_job_that_is_not_there_is_said_with_those_that_are() -> None:
    async def story(_it: FakeCluster, api: Api) -> None:
        await submit(api, asked())
        with pytest.raises(Error) as caught:
            await look(api, "rum")
        assert (caught.value.slug, caught.value.why) == ("job-not-found", "known: run")

    play(story, machines=0)


def test_jobs_of_all_namespaces_are_listed_managed_and_plain() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        it.namespace("other")
        other = it.api("other")
        await submit(api, asked())
        await submit(other, requested(job(name="far"), namespace="other"))
        plain = asked("pods", "plain")
        await submit(api, requested(plain.job.model_copy(update={"name": "plain"}), mode="plain",
                                    namespace="default"))  # fmt: skip
        await ended(api, "failed")
        found = {f"{j.namespace}/{j.job}": j.phase for j in await jobs(api, "")}
        assert found == {
            "default/run": "failed", "default/plain": "waiting", "other/far": "waiting",
        }  # fmt: skip
        assert {j.job for j in await jobs(api)} == {"run", "plain"}
        await other.close()

    play(story, machines=0)


@pytest.mark.parametrize("status", ['{"phase": 3}', "{", "[]"])
def test_a_record_of_another_version_hinders_no_list(status: str) -> None:
    def story_of(name: str, data: Body) -> Body:
        meta = {"name": name, "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
        labels = {JOB: name.removesuffix("-record"), MANAGED_BY: "holdfast"}
        meta_body = {**meta, "labels": labels}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta_body, "data": data}

    async def story(_it: FakeCluster, api: Api) -> None:
        await submit(api, asked())
        await api.create(story_of("foreign-record", {"status.json": status}))
        found = {one.job: (one.phase, one.waiting_for) for one in await jobs(api)}
        assert found["foreign"] == ("unreadable", None) and "run" in found

    play(story, machines=0)


def test_a_plain_job_that_has_ended_waits_for_nothing() -> None:
    done = ListedJob("run", "default", pods=[over("run-0", 0), over("run-1", 0)])
    assert (done.phase, done.waiting_for) == ("succeeded", None)


def test_a_look_from_afar_survives_a_server_that_stumbles() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await submit(api, asked())
        for code in (429, 500, 503):
            it.faults.add(Fault("get", "configmaps", code))
        it.faults.add(Fault("list", "pods", cut=True))
        assert status(await look(api, "run")).phase == "waiting"
        it.faults.add(Fault("list", "pods", 403, message="you cannot list pods"))
        with pytest.raises(Error) as caught:
            await look(api, "run")
        assert caught.value.slug == "rights-missing"

    play(story, machines=0)
