"""The record of a job of any size: a small object for who lists, all of it for who asks."""

import base64
import gzip
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.drivers.kubernetes import record, record_journal, segments, sharding
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, DeniedError
from holdfast.drivers.kubernetes.listing import jobs
from holdfast.drivers.kubernetes.manifests.names import JOB, MANAGED_BY
from holdfast.drivers.kubernetes.manifests.render import requested
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.manifests.support import access
from holdfast.drivers.kubernetes.pace import BYTES_PER_S, Pace
from holdfast.drivers.kubernetes.record import Record, Recorded, recorded, recorded_status
from holdfast.drivers.kubernetes.record_journal import published_journal
from holdfast.drivers.kubernetes.sharded import Cache
from holdfast.errors import Error
from holdfast.journal import VERSION, Header, Journal
from holdfast.status import UpdateStatus
from record import incident, node
from record import record as large_record
from tests.drivers.kubernetes.asking import job
from tests.drivers.kubernetes.cluster.admission import content_bytes
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.playing import playing
from tests.drivers.kubernetes.test_segments import DICE


class Book:
    """A record whose content a test sets."""

    def __init__(self, api: Api, owner: dict[str, str], path: Path, shown: Recorded) -> None:
        self.path, self.shown, self.owner = path, shown, owner
        self.record = Record(api, "gpt", path, lambda: self.shown, owner)


async def begun(api: Api, folder: Path, shown: Recorded) -> Book:
    """One whose job is there, with a sound journal."""
    meta = {
        "name": "gpt-job",
        "namespace": "default",
        "labels": {JOB: "gpt", MANAGED_BY: "holdfast"},
    }
    made = await api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gpt-job"}
    path = folder / "journal.jsonl"
    header = Header(journal=VERSION, holdfast="1", job={}, created_at=1.0)
    Journal.create(path, header).close()
    return Book(api, {**owner, "uid": made["metadata"]["uid"]}, path, shown)


def maps(it: FakeCluster, begin: str = "gpt-record") -> dict[str, str]:
    """Names and versions of ConfigMaps."""
    found = [body["metadata"] for kind, body in it.store.everything() if kind == CONFIG_MAPS]
    return {m["name"]: m["resourceVersion"] for m in found if m["name"].startswith(begin)}


def test_twelve_thousand_nodes_and_thousands_of_incidents_are_read_as_they_were(
    tmp_path: Path,
) -> None:
    """The server of the test refuses objects of more than a mebibyte, as a real one does."""
    shown = large_record(12_500, 3_000)

    async def story(_: FakeCluster, api: Api) -> None:
        book = await begun(api, tmp_path, shown)
        await book.record.publish()
        found = await recorded(api, "gpt", journal=False)
        assert found is not None and found.incomplete is None and found.at is not None
        status = msgspec.structs.replace(shown.status, training_count=12_500)
        assert (found.status, found.incidents, found.goodput) == (
            status, shown.incidents, shown.goodput,
        )  # fmt: skip
        head = await api.get(CONFIG_MAPS, "gpt-record")
        assert content_bytes(head) < 4_000
        short = await recorded_status(api, "gpt")
        assert short == msgspec.structs.replace(status, nodes=())

    playing(story)


def test_what_is_written_again_is_what_has_changed(tmp_path: Path) -> None:
    shown = large_record(9_000, 2_345)
    nodes = list(shown.status.nodes)
    nodes[5_000] = msgspec.structs.replace(nodes[5_000], state="lost")

    async def story(it: FakeCluster, api: Api) -> None:
        book = await begun(api, tmp_path, shown)
        await book.record.publish()
        before = maps(it)
        book.shown = msgspec.structs.replace(
            shown, status=msgspec.structs.replace(shown.status, nodes=tuple(nodes))
        )
        await book.record.publish()
        after = maps(it)
        assert len(after) == len(before) + 1, "one chunk of nodes, which went to a free shard"
        book.shown = msgspec.structs.replace(
            book.shown, incidents=(*shown.incidents, incident(2_346))
        )
        await book.record.publish()
        changed = {name for name, version in maps(it).items() if after.get(name) != version}
        assert len(changed) == 2, "the head and the chunk of the newest incidents"
        cache: Cache = {}
        assert await recorded(api, "gpt", journal=False, cache=cache) is not None
        assert len(cache) == len(before) - 1

    playing(story)


def test_a_small_record_is_one_object_and_a_large_one_becomes_that_again(tmp_path: Path) -> None:
    small, large = large_record(3, 2), large_record(700, 2)

    async def story(it: FakeCluster, api: Api) -> None:
        book = await begun(api, tmp_path, small)
        for shown in (small, large, small):
            book.shown = shown
            await book.record.publish()
            found = await recorded(api, "gpt", journal=False)
            assert found is not None and found.incidents == shown.incidents
            assert found.status.nodes == shown.status.nodes
            head = await api.get(CONFIG_MAPS, "gpt-record")
            assert ("incidents.json" in head["data"]) == (shown is small)
        assert len(maps(it)) > 1, "until they have been free for a while"

    playing(story)


def test_the_head_follows_events_while_the_pace_holds_shards_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = large_record(700, 2)
    now = 1_000.0
    monkeypatch.setattr(record, "monotonic", lambda: now)

    async def story(_: FakeCluster, api: Api) -> None:
        nonlocal now
        book = await begun(api, tmp_path, shown)
        await book.record._tell(shown)
        fewer = msgspec.structs.replace(
            shown.status, phase="recovering", nodes=shown.status.nodes[1:]
        )
        book.shown = msgspec.structs.replace(shown, status=fewer)
        await book.record._tell(book.shown)
        found = await recorded(api, "gpt", journal=False)
        assert found is not None and found.status.phase == "recovering"
        assert found.status.nodes == shown.status.nodes, "those of one version"
        assert not book.record._due(now)
        now += 1.0
        assert book.record._due(now), "what is owed is written as soon as it may be"
        await book.record._tell(book.shown)
        found = await recorded(api, "gpt", journal=False)
        assert found is not None and found.status.nodes == fewer.nodes

    playing(story)


def test_what_became_of_an_update_is_told_at_once_and_never_before_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller after one that was lost in between knew of no refusal that people had read,
    and gave its number to their next update."""
    update = UpdateStatus(
        version=2, id="x", by="me", at=1.0, when="now", stage="preparing", why=None, code=None,
        sets={}, back=False, attempt=None, incidents=(), image="img:none",
    )  # fmt: skip

    async def story(_: FakeCluster, api: Api) -> None:
        book = await begun(api, tmp_path, large_record(3, 2))
        await book.record.look()
        written: list[str] = []
        apply = api.apply

        async def noted(body: Body) -> Body:
            written.append(body["metadata"]["name"])
            return await apply(body)

        monkeypatch.setattr(api, "apply", noted)
        await book.record.look()
        assert written == [], "nothing is new"
        for stage in ("preparing", "refused"):
            one = msgspec.structs.replace(update, stage=stage)
            status = msgspec.structs.replace(book.shown.status, updates=(one,))
            book.shown = msgspec.structs.replace(book.shown, status=status)
            grown(book.path, 1)
            await book.record.look()
            assert written == ["gpt-journal", "gpt-record"]
            journal = await published_journal(api, "gpt")
            assert journal == book.path.read_bytes()
            written.clear()

    playing(story)


def test_what_is_written_in_a_minute_of_constant_change_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(record, "monotonic", lambda: now)
    written: list[int] = []

    async def story(_: FakeCluster, api: Api) -> None:
        nonlocal now
        first = large_record(5_000, 0)
        book = await begun(api, tmp_path, first)
        apply = api.apply

        async def counting(body: Body) -> Body:
            written.append(content_bytes(body))
            return await apply(body)

        monkeypatch.setattr(api, "apply", counting)
        for second in range(60):
            now = 1_000.0 + second
            nodes = (*first.status.nodes[:second], node(second), *first.status.nodes[second + 1 :])
            status = msgspec.structs.replace(first.status, nodes=nodes)
            first = msgspec.structs.replace(first, status=status)
            await book.record._tell(first)

    playing(story)
    assert sum(written) < 60 * (BYTES_PER_S + 2_000) + 300_000
    assert len([size for size in written if size < 2_000]) >= 60, "but the head came each time"


def test_a_pace_lets_small_things_through_and_makes_large_ones_wait() -> None:
    pace = Pace()
    assert pace.ready(0.0)
    pace.spent(100, 0.0)
    assert pace.ready(0.1)
    pace.spent(10 * BYTES_PER_S, 1.0)
    assert not pace.ready(10.9) and pace.ready(11.0)


def test_the_next_look_waits_for_a_multiple_of_what_the_last_one_took() -> None:
    assert record.pause_s(0.0) == record.LOOK_S
    assert record.pause_s(0.25) == 5.0


def test_a_record_that_the_cluster_does_not_take_is_offered_ever_later(tmp_path: Path) -> None:
    pauses = [record.pause_s(0.0, refused) for refused in (1, 2, 3, 99)]
    assert pauses == [2.0, 4.0, 8.0, 8.0] and record.pause_s(1.0, 1) == 20.0

    async def story(it: FakeCluster, api: Api) -> None:
        book = await begun(api, tmp_path, large_record(3, 2))
        it.server.access.denied.add(("patch", "configmaps"))
        for count in (1, 2):
            await book.record.look()
            assert book.record._refused == count
        it.server.access.denied.clear()
        await book.record.look()
        assert book.record._refused == 0 and maps(it)

    playing(story)


def test_what_is_encoded_and_compressed_does_not_hold_up_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    for module, name in ((record, "_written"), (gzip, "compress"), (segments, "_block")):
        real = getattr(module, name)

        def noted(*args: object, _real: Callable[..., object] = real, **keys: object) -> object:
            threads.add(threading.get_ident())
            return _real(*args, **keys)

        monkeypatch.setattr(module, name, noted)

    async def story(_: FakeCluster, api: Api) -> None:
        await (await begun(api, tmp_path, large_record(700, 2))).record.publish()

    playing(story)
    assert threads and threading.get_ident() not in threads


def test_incidents_for_which_there_is_no_room_are_left_out_from_the_oldest_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "RECORD_SHARDS", 6)
    monkeypatch.setattr(record, "INCIDENTS_EACH", (40, 10))
    monkeypatch.setattr(record, "INLINE_BYTES", 1_000)
    shown = large_record(10, 300)

    async def story(_: FakeCluster, api: Api) -> None:
        book = await begun(api, tmp_path, large_record(10, 100))
        await book.record.publish()
        book.shown = shown
        for _look in range(8):
            await book.record.publish()
        found = await recorded(api, "gpt", journal=False)
        assert found is not None and found.status.incidents_count == 300
        assert found.incidents == shown.incidents[-len(found.incidents) :] and found.incidents
        left = 300 - len(found.incidents)
        assert found.incomplete == f"there is no room for the oldest {left} incidents"

    playing(story)
    assert "has no room for all 300 incidents" in capsys.readouterr().err


def test_the_role_of_a_controller_is_enough_to_write_and_delete_shards_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharding, "FREE_S", 0.0)
    request = requested(job(name="gpt"), engine="job", namespace="default")

    async def story(it: FakeCluster, api: Api) -> None:
        for body in access.objects(request):
            await api.apply(body)
        book = await begun(api, tmp_path, large_record(700, 2))
        own = it.api(account="gpt-controller")
        record = Record(own, "gpt", book.path, lambda: book.shown, book.owner)
        for shown in (book.shown, large_record(9_000, 2), large_record(700, 2)):
            book.shown = shown
            await record.publish()
            found = await recorded(own, "gpt")
            assert found is not None and found.incomplete is None and found.journal is not None
            assert found.status.nodes == shown.status.nodes
        assert len(maps(it, "gpt-record-")) == 2, "what was free is gone"
        with pytest.raises(DeniedError):
            await own.delete(CONFIG_MAPS, "gpt-job")
        await own.close()

    playing(story)


def test_where_shards_are_forbidden_the_head_is_published_and_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A role that was made before there were shards has no rights on them."""

    async def story(_: FakeCluster, api: Api) -> None:
        book = await begun(api, tmp_path, large_record(700, 2))
        apply = api.apply

        async def narrow(body: Body) -> Body:
            if body["metadata"]["name"] != "gpt-record":
                raise DeniedError(403, "Forbidden", "no right")
            return await apply(body)

        api.apply = narrow  # type: ignore[assignment,method-assign]
        for phase in ("running", "recovering"):
            status = msgspec.structs.replace(book.shown.status, phase=phase)
            book.shown = msgspec.structs.replace(book.shown, status=status)
            await book.record._tell(book.shown)
            found = await recorded(api, "gpt", journal=False)
            assert found is not None and found.status.phase == phase
            assert found.incomplete is not None and found.status.incidents_count == 2

    playing(story)
    assert capsys.readouterr().err.count("nodes and incidents are not published") == 1


def test_listing_jobs_transfers_neither_shards_nor_journals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(_: FakeCluster, api: Api) -> None:
        book = await begun(api, tmp_path, large_record(700, 2))
        await book.record.publish()
        listed = api.listed
        sizes: list[int] = []

        async def counting(kind: object, shape: object, **keys: object) -> object:
            if kind == CONFIG_MAPS:
                everything = await listed(CONFIG_MAPS, dict, labels=str(keys["labels"]))
                sizes.extend(content_bytes(body) for body in everything.items)
            return await listed(kind, shape, **keys)  # type: ignore[arg-type]

        monkeypatch.setattr(api, "listed", counting)
        [one] = await jobs(api)
        assert one.status is not None and one.status.step == 81_000
        assert len(sizes) == 2 and sum(sizes) < 4_000

    playing(story)


# ── the journal ───────────────────────────────────────────────────────────────────────────────


def grown(path: Path, entries: int) -> None:
    """More lines, each with what cannot be compressed."""
    from holdfast.actions import Entry
    from holdfast.events import StopRequested
    from holdfast.journal import end_of

    book = Journal(path, end_of(path))
    for _ in range(entries):
        event = StopRequested(by=DICE.randbytes(2_000).hex(), now=False)
        book.append(Entry(book.seq + 1, 1.0, event, ()))
    book.close()


@pytest.mark.usefixtures("small_segments")
def test_a_journal_in_many_segments_is_read_whole_and_closed_ones_are_written_once(
    tmp_path: Path,
) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        book = await begun(api, tmp_path, large_record(3, 0))
        before: dict[str, str] = {}
        for _grown in range(6):
            grown(book.path, 40)
            await book.record.publish()
            assert await published_journal(api, "gpt") == book.path.read_bytes()
            after = maps(it, "gpt-journal-")
            assert before.items() <= after.items()
            before = after
        assert len(before) > 4
        successor = Record(api, "gpt", book.path, lambda: book.shown, book.owner)
        grown(book.path, 1)
        await successor.publish()
        assert maps(it, "gpt-journal-") == before, "known again by their digests"
        assert await published_journal(api, "gpt") == book.path.read_bytes()

    playing(story)


@pytest.mark.usefixtures("small_segments")
def test_a_journal_that_outgrows_its_shards_stays_a_sound_one_up_to_a_line_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record_journal, "JOURNAL_SHARDS", 2)

    async def story(_: FakeCluster, api: Api) -> None:
        book = await begun(api, tmp_path, large_record(3, 0))
        for _grown in range(6):
            grown(book.path, 60)
            await book.record.publish()
        found = await published_journal(api, "gpt")
        assert found is not None and found.endswith(b"\n")
        assert book.path.read_bytes().startswith(found)
        assert 0 < len(found) < book.path.stat().st_size

    playing(story)
    assert capsys.readouterr().err.count("has outgrown ConfigMap gpt-journal") == 1


@pytest.mark.parametrize("data", [{"x": "y"}, {"status.json": "{"}, {"status.json": "{}"}, None])
def test_a_record_that_others_have_changed_is_an_error_that_says_so(data: Any) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        it.store.create(CONFIG_MAPS, "default", {"metadata": {"name": "run-record"}, "data": data})
        with pytest.raises(Error, match="ConfigMap run-record is not what") as caught:
            await recorded(api, "run")
        assert caught.value.slug == "record-incomplete"
        assert await recorded_status(api, "run") is None

    playing(story)


def test_a_record_and_a_journal_of_a_former_version_are_read(tmp_path: Path) -> None:
    shown = large_record(3, 2)

    async def story(_: FakeCluster, api: Api) -> None:
        book = await begun(api, tmp_path, shown)
        content = book.path.read_bytes()
        data = {
            "status.json": msgspec.json.encode(shown.status).decode(),
            "incidents.json": msgspec.json.encode(shown.incidents).decode(),
            "goodput.json": msgspec.json.encode(shown.goodput).decode(),
        }
        labels = {JOB: "gpt", MANAGED_BY: "holdfast"}
        meta = {"namespace": "default", "labels": labels}
        body = {"apiVersion": "v1", "kind": "ConfigMap"}
        await api.apply({**body, "metadata": {**meta, "name": "gpt-record"}, "data": data})
        packed = base64.b64encode(gzip.compress(content)).decode()
        journal = {"binaryData": {"journal.gz": packed}}
        await api.apply({**body, "metadata": {**meta, "name": "gpt-journal"}, **journal})
        assert await recorded(api, "gpt") == msgspec.structs.replace(shown, journal=content)
        await book.record.publish()
        found = await recorded(api, "gpt")
        assert found is not None and found.at is not None and found.journal == content

    playing(story)
