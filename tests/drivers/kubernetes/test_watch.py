"""Whoever follows knows what there is, whatever happens to the connection."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec
import pytest

from holdfast.drivers.kubernetes import api as client
from holdfast.drivers.kubernetes import watch
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import (
    CONFIG_MAPS,
    ApiError,
    Change,
    DeniedError,
    GoneError,
)
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.cluster.faults import Fault
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.playing import playing


class Meta(msgspec.Struct):
    name: str


class Map(msgspec.Struct):
    metadata: Meta
    data: dict[str, str] = {}


class Known:
    """What a listener believes, kept as the module says: `on_listed` replaces, changes add."""

    def __init__(self) -> None:
        self.maps: dict[str, dict[str, str]] = {}
        self.lists = 0
        self.changes: list[str] = []
        self.troubles: list[ApiError] = []

    def on_listed(self, items: Sequence[Map]) -> None:
        self.lists += 1
        self.maps = {item.metadata.name: item.data for item in items}

    def on_change(self, change: Change[Map]) -> None:
        self.changes.append(f"{change.type} {change.object.metadata.name}")
        if change.type == "DELETED":
            self.maps.pop(change.object.metadata.name, None)
        else:
            self.maps[change.object.metadata.name] = change.object.data


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (client, watch):
        monkeypatch.setattr(module, "PAUSE_S", 0.001)


def following(act: Callable[[FakeCluster, Known], Awaitable[None]], labels: str = "") -> None:
    """Follow the ConfigMaps of a cluster and do something to it."""

    async def story(it: FakeCluster, api: Api) -> None:
        known = Known()
        put(it, "first")
        task = asyncio.ensure_future(
            watch.follow(
                api,
                CONFIG_MAPS,
                Map,
                labels,
                known.on_listed,
                known.on_change,
                on_trouble=known.troubles.append,
            )
        )
        await it.until(lambda: known.lists == 1)
        try:
            await act(it, known)
            assert not task.done()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    playing(story)


def put(it: FakeCluster, name: str, **data: str) -> Body:
    """Create a ConfigMap, or change its data."""

    def edit(body: Body) -> None:
        body["data"] = data

    if it.store.change(CONFIG_MAPS, "default", name, edit) is None:
        labels = {"labels": {"name": name}}
        body = {"metadata": {"name": name, **labels}, "data": data}
        return it.store.create(CONFIG_MAPS, "default", body)
    return it.store.get(CONFIG_MAPS, "default", name)


async def agrees(it: FakeCluster, known: Known) -> None:
    """Wait until the listener believes what is true."""

    def same() -> bool:
        there = it.store.all(CONFIG_MAPS)
        return known.maps == {b["metadata"]["name"]: b.get("data", {}) for b in there}

    await it.until(same)


def test_first_all_there_is_then_each_change() -> None:
    async def act(it: FakeCluster, known: Known) -> None:
        put(it, "second", x="1")
        put(it, "second", x="2")
        it.store.delete(CONFIG_MAPS, "default", "first")
        await agrees(it, known)
        assert known.changes == ["ADDED second", "MODIFIED second", "DELETED first"]
        assert known.lists == 1
        assert known.troubles == []

    following(act)


def test_only_what_the_labels_choose_and_leaving_them_is_a_deletion() -> None:
    async def act(it: FakeCluster, known: Known) -> None:
        def unlabel(body: Body) -> None:
            body["metadata"]["labels"] = {}

        put(it, "second")
        it.store.change(CONFIG_MAPS, "default", "first", unlabel)
        await it.until(lambda: known.changes == ["DELETED first"])

    following(act, labels="name=first")


def test_a_stream_that_is_cut_goes_on_where_it_was() -> None:
    async def act(it: FakeCluster, known: Known) -> None:
        it.faults.add(Fault("watch", cut_after=0, times=3))
        it.http.drop()
        for number in range(5):
            put(it, f"more-{number}")
        await agrees(it, known)
        assert known.lists == 1
        assert sorted(known.changes) == [f"ADDED more-{number}" for number in range(5)]

    following(act)


def test_a_version_that_is_too_old_means_a_new_list_and_nothing_is_missed() -> None:
    async def act(it: FakeCluster, known: Known) -> None:
        it.faults.add(Fault("watch", code=503, times=2))
        it.http.drop()
        it.store.delete(CONFIG_MAPS, "default", "first")
        put(it, "second")
        it.store.forget()
        await agrees(it, known)
        assert known.lists == 2
        assert known.maps.keys() == {"second"}

    following(act)


@pytest.mark.parametrize("code", [410, 400])
def test_what_does_not_pass_by_itself_as_an_answer_is_the_same_as_410_in_the_stream(
    code: int,
) -> None:
    """A server that was put back from a copy may not know the version at all."""

    async def act(it: FakeCluster, known: Known) -> None:
        it.faults.add(Fault("watch", code=code))
        it.http.drop()
        await it.until(lambda: known.lists == 2)
        put(it, "second")
        await agrees(it, known)

    following(act)


def test_bookmarks_keep_a_quiet_watch_from_growing_old() -> None:
    """Others change much, we hear nothing of it; after a cut nothing needs to be listed."""

    async def act(it: FakeCluster, known: Known) -> None:
        version = it.store.version
        put(it, "other")
        await it.until(lambda: it.server.told > version)
        it.store.forget()
        it.http.drop()
        put(it, "first", x="1")
        await it.until(lambda: known.maps == {"first": {"x": "1"}})
        assert known.lists == 1

    following(act, labels="name=first")


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_busy_server_is_asked_again_and_again(code: int) -> None:
    async def act(it: FakeCluster, known: Known) -> None:
        it.faults.add(Fault("watch", code=code, times=8))
        it.http.drop()
        put(it, "second")
        await agrees(it, known)
        assert len([t for t in known.troubles if t.status == code]) == 8
        assert known.lists == 1

    following(act)


def test_even_without_rights_it_does_not_end_but_tells() -> None:
    async def act(it: FakeCluster, known: Known) -> None:
        it.server.access.denied.add(("watch", "configmaps"))
        it.http.drop()
        await it.until(lambda: any(t.status == 403 for t in known.troubles))
        it.server.access.denied.clear()
        put(it, "second")
        await agrees(it, known)

    following(act)


def test_a_right_that_is_missing_is_said_once_and_what_passes_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = watch.said_once("pods")
    for error in (
        ApiError(503, "ServiceUnavailable", "busy"),
        GoneError(410, "Expired", "too old"),
        DeniedError(403, "Forbidden", "no watch"),
        ApiError(0, "ReadError", "cut"),
        DeniedError(403, "Forbidden", "no watch"),
    ):
        told(error)
    (line,) = capsys.readouterr().err.splitlines()
    assert "pods cannot be watched" in line and "no watch (403 Forbidden)" in line


def test_a_server_that_was_away_is_found_again() -> None:
    async def act(it: FakeCluster, known: Known) -> None:
        port = it.http.port
        await it.http.stop()
        await it.until(lambda: any(t.status == 0 for t in known.troubles))
        put(it, "second")
        await it.http.start(port)
        await agrees(it, known)
        assert known.lists == 1

    following(act)
