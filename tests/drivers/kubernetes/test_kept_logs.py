"""Output outlives pods: the last part of each log is kept, and shown when its pod is gone."""

import asyncio
import base64
import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.drivers.kubernetes import kept_logs as module
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, PODS, NotFoundError
from holdfast.drivers.kubernetes.kept_logs import (
    PIECE_BYTES,
    KeptLog,
    KeptLogs,
    kept_logs,
    logs_name,
    packed,
)
from holdfast.drivers.kubernetes.kept_logs import (
    PODS as MOST,
)
from holdfast.drivers.kubernetes.pods import Pod
from holdfast.drivers.kubernetes.remote import look
from holdfast.drivers.kubernetes.remote_logs import Following, everything
from holdfast.shell.host import cancelled
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.cluster.faults import Fault
from tests.drivers.kubernetes.seen import RUNS, ended, pod
from tests.drivers.kubernetes.test_remote import node, printing
from tests.patience import PATIENCE_S


async def _pods(api: Api) -> list[Pod]:
    return list((await look(api, "run")).pods)


async def _ended(it: FakeCluster, api: Api) -> Pod:
    """One that has printed `a` as rank 0, and succeeded."""
    await api.create(node("run-0", "echo '[rank 0] a'"))
    await it.until(lambda: it.pods()[0]["status"]["phase"] == "Succeeded")
    [over] = await _pods(api)
    return over


async def _kept(api: Api) -> KeptLogs:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}
    made = await api.create(body)
    named = {key: made["metadata"][key] for key in ("name", "uid")}
    return KeptLogs(api, "run", {"apiVersion": "v1", "kind": "ConfigMap", **named})


def test_a_pod_is_over_before_its_phase_says_so_and_then_nobody_may_delete_it() -> None:
    done = {"terminated": {"exitCode": 0}}
    assert pod(state=done).over and not pod(state=done).ended
    assert ended("a", 0).over
    assert not pod(state=RUNS).over
    assert not pod(state={"waiting": {"reason": "ContainerCreating"}}).over


def test_what_a_deleted_pod_printed_to_its_end_can_be_read_afterwards(tmp_path: Path) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        last = "trap 'echo \"[rank 0] last\"; exit 0' TERM; echo '[rank 0] first'; sleep 60 & wait"
        await api.create(node("run-0", last))
        await api.create(node("run-1", "echo '[rank 1] other'; sleep 60"))
        await it.until(lambda: all("first" in it.output(p) or "other" in it.output(p)
                                   for p in it.pods()) and len(it.pods()) == 2)  # fmt: skip
        logs = await _kept(api)
        assert [logs.wants(p) for p in await _pods(api)] == [False, False], "they run"
        await api.delete(PODS, "run-0")
        [leaving] = [p for p in await _pods(api) if p.metadata.name == "run-0"]
        assert logs.wants(leaving)
        reading = logs.take(leaving)
        assert not logs.wants(leaving), "once, also where two changes of it come before it is read"
        await reading
        await logs.settle([p for p in await _pods(api) if p.metadata.name == "run-1"])
        await it.until(lambda: len(it.pods()) == 1)
        found = {k.pod: k.lines for k in await kept_logs(api, "run")}
        assert found == {
            "run-0": ("[rank 0] first", "[rank 0] last"), "run-1": ("[rank 1] other",),
        }  # fmt: skip
        said: list[str] = []
        seen = await look(api, "run")
        shown = [(p.pod, p.text) async for p in everything(api, seen, said.append)]
        assert shown == [("run-0", "first"), ("run-0", "last"), ("run-1", "other")]
        again = KeptLogs(api, "run", {})
        await again.load()
        await again.publish()
        assert len(await kept_logs(api, "run")) == 2, "a new controller forgets nothing"

    printing(tmp_path, story)


def test_one_machine_that_is_away_does_not_hide_the_output_of_the_others(tmp_path: Path) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await api.create(node("run-0", "echo '[rank 0] a'; sleep 60"))
        await api.create(node("run-1", "echo '[rank 1] b'; sleep 60"))
        await it.until(lambda: all("rank" in it.output(p) for p in it.pods()) and it.pods()[1:])
        seen = await look(api, "run")
        logs = await _kept(api)
        await logs.settle(seen.nodes)
        await api.delete(CONFIG_MAPS, logs_name("run"))
        away = it.pods()[0]["spec"]["nodeName"]
        together = it.pods()[1]["spec"]["nodeName"] == away
        it.partition_machine(away)
        said: list[str] = []
        shown = [p.text async for p in everything(api, seen, said.append)]
        assert shown == ([] if together else ["b"])
        assert "run-0 cannot be read" in said[0] and "i/o timeout" in said[0]
        await logs.settle(seen.nodes)
        shown = [p.text async for p in everything(api, seen, said.append)]
        assert shown == ["a", "b"], "what was kept of it stands in"

    printing(tmp_path, story)


def test_a_log_that_could_not_be_read_when_its_pod_ended_is_read_again_at_the_end(
    tmp_path: Path,
) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        logs, over = await _kept(api), await _ended(it, api)
        it.faults.add(Fault("get", "pods", code=500, times=100))
        await logs.take(over)
        it.faults.clear()
        await logs.settle([])
        assert [k.lines for k in await kept_logs(api, "run")] == [("[rank 0] a",)]

    printing(tmp_path, story)


def test_what_others_have_put_among_them_is_left_out(tmp_path: Path) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        logs, over = await _kept(api), await _ended(it, api)
        await logs.settle([over])
        pieces = {"a": b"?", "b": gzip.compress(b"[1]"), "c": gzip.compress(b"{}")[:9]}
        theirs = {key: base64.b64encode(piece).decode() for key, piece in pieces.items()}
        await api.patch(CONFIG_MAPS, logs_name("run"), {"binaryData": theirs})
        assert [k.lines for k in await kept_logs(api, "run")] == [("[rank 0] a",)]

    printing(tmp_path, story)


def test_logs_that_may_not_be_read_are_said_once_and_hold_up_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        logs, over = await _kept(api), await _ended(it, api)
        it.server.access.denied.add(("get", "pods/log"))
        for _ in range(2):
            await logs.glance(over)
        await logs.settle([over])
        assert await kept_logs(api, "run") == []

    printing(tmp_path, story)
    said = capsys.readouterr().err
    assert said.count("output of pods that end is not kept: ") == 1
    assert 'cannot get resource "pods/log"' in said


def test_what_is_kept_is_published_although_publishing_it_was_broken_off_or_refused(
    tmp_path: Path,
) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        logs, over = await _kept(api), await _ended(it, api)
        await logs.glance(over)
        slow = it.faults.add(Fault("patch", "configmaps", delay_s=3600.0))
        publishing = asyncio.create_task(logs.publish())
        await it.until(lambda: slow.times == 0)
        await cancelled(publishing)
        it.faults.clear()
        it.faults.add(Fault("patch", "configmaps", code=503, times=100))
        await logs.publish()
        it.faults.clear()
        await logs.publish()
        assert [k.lines for k in await kept_logs(api, "run")] == [("[rank 0] a",)]

    printing(tmp_path, story)


def test_a_pod_that_goes_while_logs_are_read_is_read_from_what_was_kept(tmp_path: Path) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await _ended(it, api)
        seen, logs = await look(api, "run"), await _kept(api)

        def log(*_args: object, **_keys: object) -> AsyncIterator[str]:
            return going()

        async def going() -> AsyncIterator[str]:
            await logs.settle(seen.nodes)
            await api.delete(PODS, "run-0")
            for line in list[str]():
                yield line
            raise NotFoundError(404, "NotFound", "gone")

        other = it.api()
        other.log = log  # type: ignore[method-assign]
        shown = [p.text async for p in everything(other, seen, str)]
        await other.close()
        assert shown == ["a"]

    printing(tmp_path, story)


def test_of_much_output_the_end_is_kept_and_of_many_pods_those_read_last() -> None:
    lines = tuple(f"{n} {hash(str(n))}" for n in range(5000))
    piece = packed(KeptLog("a", "u", lines))
    assert len(piece) <= PIECE_BYTES
    long = packed(KeptLog("a", "u", ("x".join(lines),)))
    assert len(long) <= PIECE_BYTES
    assert MOST * PIECE_BYTES * 4 / 3 < 1 << 20, "a ConfigMap holds all of them"


def test_following_a_plain_job_that_has_ended_ends(tmp_path: Path) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await api.create(node("run-0", "echo plain words"))
        await it.until(lambda: it.pods()[0]["status"]["phase"] == "Succeeded")
        async with asyncio.timeout(PATIENCE_S):
            shown = [(p.pod, p.rank, p.text) async for p in Following(api, "run").lines()]
        assert shown == [("run-0", None, "plain words")]

    printing(tmp_path, story)


def test_a_machine_that_does_not_answer_holds_up_the_end_for_moments_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ONE_S", 0.3)
    monkeypatch.setattr(module, "SETTLE_S", 3600.0)

    async def story(it: FakeCluster, api: Api) -> None:
        for number in (0, 1):
            await api.create(node(f"run-{number}", "echo '[rank 0] here'; sleep 60"))
        await it.until(lambda: [it.output(p) for p in it.pods()] == ["[rank 0] here\n"] * 2)
        logs, pods = await _kept(api), await _pods(api)
        it.faults.add(Fault("get", "pods", delay_s=3600.0))
        await asyncio.wait_for(logs.settle(pods), 60)
        assert len(await kept_logs(api, "run")) == 1, "of the other one"

    printing(tmp_path, story)
