"""Shards are written so that a reader has one version or the other, whatever happens on the way."""

import asyncio
import gzip
import random
from collections.abc import Iterable
from functools import partial

import pytest

from holdfast.drivers.kubernetes import sharded, sharding
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, ApiError, NotFoundError
from holdfast.drivers.kubernetes.config_map import Content
from holdfast.drivers.kubernetes.manifests.names import JOB
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.sharded import Cache, digest_of, read
from holdfast.drivers.kubernetes.sharding import Home, NoShardError, Parts, ShardChunk, Sharding
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.cluster.faults import Fault
from tests.drivers.kubernetes.playing import playing

HEAD = "run-record"
DICE = random.Random(1)


def chunk(content: bytes) -> ShardChunk:
    return ShardChunk(digest_of(content), len(content), partial(gzip.compress, content))


def parts(**contents: Iterable[bytes]) -> Parts:
    return {name: [chunk(content) for content in run] for name, run in contents.items()}


async def opened(api: Api, shards: int = 24) -> Sharding:
    """A writer whose head belongs to a job that is there."""
    try:
        owner = await api.get(CONFIG_MAPS, "run-job")
    except NotFoundError:
        meta = {"name": "run-job", "namespace": "default", "labels": {JOB: "run"}}
        owner = await api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
    named = {"apiVersion": "v1", "kind": "ConfigMap", "name": "run-job"}
    home = Home("run", HEAD, {**named, "uid": owner["metadata"]["uid"]}, shards, bulk=False)
    return Sharding(api, home)


def shards(it: FakeCluster) -> dict[str, str]:
    """The version of each shard that is there."""
    found = [body["metadata"] for kind, body in it.store.everything() if kind == CONFIG_MAPS]
    return {
        meta["name"]: meta["resourceVersion"]
        for meta in found
        if meta["name"].startswith(f"{HEAD}-")
    }


async def told(api: Api) -> dict[str, bytes] | None:
    found = await read(api, HEAD)
    assert found is not None
    return found.parts


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that look again soon."""
    monkeypatch.setattr(sharded, "PAUSE_S", 0.01)


def test_content_of_any_size_is_read_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "SHARD_BYTES", 1_000)
    large = DICE.randbytes(5_500)

    async def story(it: FakeCluster, api: Api) -> None:
        writer = await opened(api)
        content = Content({"status.json": "{}"})
        written = await writer.publish(parts(a=[b"1", b"2"], b=[large], c=[]), content)
        assert await told(api) == {"a": b"12", "b": large, "c": b""}
        assert len(shards(it)) == 8 and written > 5_500
        found = await read(api, HEAD)
        assert found is not None and found.head["data"]["status.json"] == "{}"

    playing(story)


def test_only_what_has_changed_is_written_again() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        writer = await opened(api)
        await writer.publish(parts(a=[b"1", b"2"], b=[b"3"]), Content())
        before = shards(it)
        await writer.publish(parts(a=[b"1", b"9"], b=[b"3"]), Content())
        after = shards(it)
        assert {name: after[name] for name in before} == before, "still referred to until then"
        assert len(after) == len(before) + 1
        await writer.publish(None, Content({"x": "new"}))
        assert shards(it) == after
        assert await told(api) == {"a": b"19", "b": b"3"}

    playing(story)


def test_a_reader_beside_a_writer_never_has_parts_of_two_versions() -> None:
    async def story(_: FakeCluster, api: Api) -> None:
        writer = await opened(api, shards=8)
        await writer.publish(parts(a=[b"0"], b=[b"0", b"x"]), Content())
        seen: set[bytes] = set()

        async def write() -> None:
            for version in range(1, 60):
                text = str(version).encode()
                await writer.publish(parts(a=[text], b=[text, b"x"]), Content())

        async def look() -> None:
            cache: Cache = {}
            while b"59" not in seen:
                found = await read(api, HEAD, cache)
                assert found is not None and found.parts is not None
                assert found.parts["b"] == found.parts["a"] + b"x"
                seen.add(found.parts["a"])

        await asyncio.gather(write(), look(), look())
        assert len(seen) > 2

    playing(story)


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("at", range(5))
def test_a_writer_that_fails_at_any_step_leaves_one_version_whole(
    at: int, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`done`: the server did it, and nobody knows."""
    old, new = {"a": b"12", "b": b"3"}, {"a": b"45", "b": b"6"}

    async def story(_: FakeCluster, api: Api) -> None:
        writer = await opened(api, shards=6)
        await writer.publish(parts(a=[b"1", b"2"], b=[b"3"]), Content())
        apply, steps = api.apply, iter(range(5))

        async def failing(body: Body) -> Body:
            if next(steps) != at:
                return await apply(body)
            if done:
                await apply(body)
            raise ApiError(0, "ReadTimeout", "the answer was lost")

        monkeypatch.setattr(api, "apply", failing)
        failed = False
        try:
            await writer.publish(parts(a=[b"4", b"5"], b=[b"6"]), Content())
        except ApiError:
            failed = True
        assert failed == (at < 4), "three shards and the head"
        assert await told(api) == (new if at == 4 or (done and at == 3) else old)
        monkeypatch.setattr(api, "apply", apply)
        for last in (b"7", b"8", b"9"):
            await writer.publish(parts(a=[last], b=[last]), Content())
            assert await told(api) == {"a": last, "b": last}

    playing(story)


def test_a_new_writer_goes_on_from_what_is_there_and_mends_what_is_not() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        content = parts(a=[b"1", b"2"], b=[b"3"])
        await (await opened(api)).publish(content, Content())
        before = shards(it)
        await (await opened(api)).publish(content, Content())
        assert shards(it) == before
        await api.delete(CONFIG_MAPS, f"{HEAD}-2")
        assert await told(api) is None, "that something is missing is seen"
        await (await opened(api)).publish(content, Content())
        assert await told(api) == {"a": b"12", "b": b"3"}

    playing(story)


def test_a_shard_that_somebody_has_changed_is_not_read() -> None:
    async def story(_: FakeCluster, api: Api) -> None:
        writer = await opened(api)
        await writer.publish(parts(a=[b"1", b"2"]), Content())
        other = await api.get(CONFIG_MAPS, f"{HEAD}-1")
        patch = {"binaryData": other["binaryData"]}
        await api.patch(CONFIG_MAPS, f"{HEAD}-2", patch)
        assert await told(api) is None

    playing(story)


def test_an_index_that_somebody_has_broken_is_nothing_to_read_from_and_is_written_anew(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A controller that begins reads the published journal, and one that publishes its index."""

    async def story(_: FakeCluster, api: Api) -> None:
        writer = await opened(api)
        for text in ("{", "[]", '{"parts": {"a": [{"digest": 1}]}}'):
            await writer.publish(parts(a=[b"1"]), Content())
            await api.patch(CONFIG_MAPS, HEAD, {"data": {sharded.INDEX: text}})
            assert await told(api) is None
            writer = await opened(api)
            await writer.publish(parts(a=[b"2"]), Content())
            assert await told(api) == {"a": b"2"}

    playing(story)
    said = "the index in ConfigMap run-record cannot be read: it is written anew"
    assert capsys.readouterr().err.count(said) == 3


def test_a_head_that_was_deleted_is_written_anew_with_all_its_shards() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        writer = await opened(api)
        await writer.publish(parts(a=[b"1"]), Content())
        await api.delete(CONFIG_MAPS, HEAD)
        await it.until(lambda: not shards(it))
        await writer.publish(parts(a=[b"1"]), Content())
        assert await told(api) == {"a": b"1"}
        await api.delete(CONFIG_MAPS, "run-job")
        await it.until(lambda: not shards(it))

    playing(story)


def test_what_has_room_only_without_the_old_version_is_published_all_the_same() -> None:
    async def story(_: FakeCluster, api: Api) -> None:
        writer = await opened(api, shards=3)
        await writer.publish(parts(a=[b"1", b"2"]), Content())
        await writer.publish(parts(a=[b"3", b"4"]), Content())
        assert await told(api) == {"a": b"34"}
        with pytest.raises(NoShardError):
            await writer.publish(parts(a=[b"5", b"6", b"7", b"8"]), Content())
        assert await told(api) == {}
        await writer.publish(parts(a=[b"5"]), Content())
        assert await told(api) == {"a": b"5"}

    playing(story)


# ── what is deleted, and what never ───────────────────────────────────────────────────────────


def _foreign(name: str, **labels: str) -> Body:
    meta = {"name": name, "namespace": "default", "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"x": "theirs"}}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free is deleted without delay."""
    monkeypatch.setattr(sharding, "FREE_S", 0.0)


@pytest.mark.usefixtures("at_once")
def test_a_shard_that_is_free_is_deleted_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        writer = await opened(api)
        await writer.publish(parts(a=[b"1", b"2"]), Content())
        await writer.publish(parts(a=[b"1"]), Content())
        assert set(shards(it)) == {f"{HEAD}-1"}
        assert await told(api) == {"a": b"1"}
        await writer.publish(parts(a=[b"1", b"2"]), Content())
        assert await told(api) == {"a": b"12"}

    playing(story)
    said = "ConfigMap run-record-2 is deleted: nothing has referred to it for 0 s"
    assert said in capsys.readouterr().err


def test_a_shard_that_was_free_only_a_moment_is_kept_for_the_next_change() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        writer = await opened(api)
        for text in (b"1", b"2", b"3", b"4"):
            await writer.publish(parts(a=[text]), Content())
        assert set(shards(it)) == {f"{HEAD}-1", f"{HEAD}-2"}, "the two take turns"

    playing(story)


@pytest.mark.usefixtures("at_once")
def test_what_another_controller_refers_to_is_never_deleted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The old one believes that shard 2 is free, in which the new one has written meanwhile."""

    async def story(it: FakeCluster, api: Api) -> None:
        old = await opened(api)
        await old.publish(parts(a=[b"1", b"2"]), Content())
        sharding.FREE_S = 300.0
        await old.publish(parts(a=[b"1"]), Content())
        new = await opened(api)
        await new.publish(parts(a=[b"1", b"new"]), Content())
        assert set(shards(it)) == {f"{HEAD}-1", f"{HEAD}-2"}
        sharding.FREE_S = 0.0
        await old._delete_free()
        assert await told(api) == {"a": b"1new"}

    playing(story)
    assert "ConfigMap run-record was modified by another client" in capsys.readouterr().err


@pytest.mark.usefixtures("at_once")
def test_a_config_map_of_somebody_else_is_neither_written_nor_deleted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await api.create(_foreign(f"{HEAD}-1"))
        await api.create(_foreign(f"{HEAD}-2", **{JOB: "another"}))
        writer = await opened(api)
        for text in (b"1", b"2", b"3"):
            await writer.publish(parts(a=[text]), Content())
        await writer.publish({}, Content())
        assert set(shards(it)) == {f"{HEAD}-1", f"{HEAD}-2"}
        for number in (1, 2):
            body = await api.get(CONFIG_MAPS, f"{HEAD}-{number}")
            assert body["data"] == {"x": "theirs"} and "binaryData" not in body

    playing(story)
    assert (
        "ConfigMap run-record-1 does not belong to job run: it is ignored"
        in capsys.readouterr().err
    )


@pytest.mark.usefixtures("at_once")
def test_a_deletion_that_is_refused_hinders_no_publication() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        writer = await opened(api)
        await writer.publish(parts(a=[b"1", b"2"]), Content())
        it.faults.add(Fault("delete", "configmaps", code=403))
        await writer.publish(parts(a=[b"1"]), Content())
        assert await told(api) == {"a": b"1"}
        await writer.publish(parts(a=[b"1"]), Content())
        assert set(shards(it)) == {f"{HEAD}-1"}, "it is tried again"

    playing(story)
