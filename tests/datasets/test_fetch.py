"""A data set is fetched once, is what it should be or not there, and goes only when nobody uses it.

The server is a real one that speaks S3, behind a proxy that counts what is read and breaks it.
"""

import hashlib
import http.server
import os
import shutil
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from holdfast.datasets import source
from holdfast.datasets.cache import Cache
from holdfast.datasets.fetch import DatasetRequest, Fetch, FetchNews
from holdfast.errors import Error
from tests.checkpoint.faults import Answer, Break
from tests.datasets.conftest import Site, contents, some_bytes, sums

FILES = {"a.bin": some_bytes(1, 70_000), "deep__b c.bin": some_bytes(2, 5), "empty": b""}


def test_a_second_start_reads_nothing_from_the_source(site: Site) -> None:
    files = site.put(**FILES)
    first = site.fetch()
    assert contents(first.data) == files
    reads, asked = site.reads, len(site.asked)
    assert reads == 2  # an empty file has nothing to read
    again = site.fetch()
    assert (again.data, site.reads) == (first.data, reads)
    assert len(site.asked) == asked + 1  # its list of files


def test_with_a_checksum_in_the_job_nothing_is_asked_at_all(site: Site) -> None:
    files = site.put(**FILES)
    wanted = hashlib.sha256(sums(dict(sorted(files.items())))).hexdigest()
    site.fetch(sha256=wanted)
    asked = len(site.asked)
    assert contents(site.fetch(sha256=wanted).data) == files
    assert len(site.asked) == asked


def test_other_contents_than_the_job_wants_are_refused_and_thrown_away(site: Site) -> None:
    site.put(**FILES)
    with pytest.raises(Error, match="failed verification") as raised:
        site.fetch(sha256="0" * 64)
    assert raised.value.slug == "dataset-mismatch"
    assert Cache(site.cache).whole() == {}
    assert not [path for path in site.cache.iterdir() if path.is_dir()]


def test_a_changed_source_is_fetched_anew_beside_what_others_may_use(site: Site) -> None:
    site.put(**FILES)
    old = site.fetch()
    site.put(empty=b"no more")
    new = site.fetch()
    assert (new.data / "empty").read_bytes() == b"no more"
    assert (old.data / "empty").read_bytes() == b""


def test_a_source_that_changes_while_it_is_read_is_not_taken(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.put(**FILES)
    real = source.FileSource.read

    def read(self: source.FileSource, name: str, at: int, size: int) -> Iterator[bytes]:
        yield from real(self, name, at, size)
        site.put(new=b"file")

    monkeypatch.setattr(source.FileSource, "read", read)
    with pytest.raises(Error, match="failed verification") as raised:
        site.fetch()
    assert "changed while it was read" in raised.value.why
    assert Cache(site.cache).whole() == {}


def test_what_is_whole_is_used_while_the_source_is_away(site: Site) -> None:
    files = site.put(**FILES)
    site.fetch()
    site.away = Answer(403, "AccessDenied")
    lease = site.fetch()
    assert contents(lease.data) == files
    assert "the source is unreachable" in site.said and "AccessDenied" in site.said.replace(" ", "")


def test_without_it_the_error_says_what_the_server_said(site: Site) -> None:
    site.away = Answer(403, "AccessDenied")
    with pytest.raises(Error) as raised:
        site.fetch()
    assert raised.value.slug == "dataset-unavailable"
    assert "denied" in raised.value.why


def test_an_empty_source_is_an_error_and_not_an_empty_data_set(site: Site) -> None:
    with pytest.raises(Error, match="cannot be fetched") as raised:
        site.fetch()
    assert "it contains no files" in raised.value.why


def test_an_etag_that_only_looks_like_a_sum_is_found_out_by_reading_twice(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = site.put(**FILES)
    real = source.FileSource.files
    wrong = "f" * 32

    def encrypted(self: source.FileSource) -> list[source.SourceFile]:
        return [file._replace(tag=wrong) for file in real(self)]

    monkeypatch.setattr(source.FileSource, "files", encrypted)
    assert contents(site.fetch().data) == files
    assert "(two reads agree)" in site.said


def test_a_file_that_differs_from_its_etag_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.put(**FILES)
    real, turns = source.FileSource.read, iter(range(99))

    def flipped(self: source.FileSource, name: str, at: int, size: int) -> Iterator[bytes]:
        for piece in real(self, name, at, size):
            yield bytes([next(turns)]) + piece[1:]

    monkeypatch.setattr(source.FileSource, "read", flipped)
    with pytest.raises(Error, match="failed verification"):
        site.fetch()
    assert Cache(site.cache).whole() == {}


def test_a_broken_connection_leaves_nothing_visible_and_the_next_try_goes_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "PIECE_BYTES", 10_000)
    files = site.put(big=some_bytes(3, 100_000))
    site.fault, site.reads_before_fault = Answer(403, "AccessDenied"), 6
    with pytest.raises(Error):
        site.fetch()
    assert Cache(site.cache).whole() == {}
    site.fault, before = None, site.reads
    assert contents(site.fetch().data) == files
    assert site.reads - before == 4  # of ten


def test_bytes_that_are_cut_short_are_never_taken(site: Site) -> None:
    site.put(**FILES)
    site.fault = Break(900)
    with pytest.raises(Error) as raised:
        site.fetch()
    assert raised.value.slug == "dataset-unavailable"
    assert Cache(site.cache).whole() == {}


def test_a_damaged_file_is_fetched_again_alone_and_in_its_place(site: Site) -> None:
    files = site.put(**FILES)
    lease = site.fetch()
    before = site.reads
    (lease.data / "a.bin").write_bytes(b"x" + files["a.bin"][1:])
    with (lease.data / "a.bin").open("rb") as reader:  # of another job
        assert site.fetch().data == lease.data
        assert reader.read(1) == b"x"
    assert contents(lease.data) == files
    assert site.reads == before + 1
    assert "1 files in the cache are damaged: a.bin" in site.said


def test_damage_that_keeps_size_and_time_is_found_by_a_full_look(site: Site) -> None:
    files = site.put(**FILES)
    lease = site.fetch()
    path = lease.data / "a.bin"
    was = path.stat()
    path.write_bytes(b"x" + files["a.bin"][1:])
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    site.fetch()
    assert path.read_bytes() != files["a.bin"]
    site.fetch(full=True)
    assert contents(lease.data) == files


def test_a_damaged_file_is_not_used_when_the_source_is_away(site: Site) -> None:
    site.put(**FILES)
    lease = site.fetch()
    (lease.data / "a.bin").unlink()
    site.away = Answer(403, "AccessDenied")
    with pytest.raises(Error, match="cannot be fetched"):
        site.fetch()


def test_a_manifest_says_what_belongs_to_it_and_verifies_it(site: Site) -> None:
    files = site.put(**FILES)
    listed = {"a.bin": files["a.bin"]}
    site.put(SUMS=sums(listed))
    assert contents(site.fetch(manifest="SUMS").data) == listed
    site.put(SUMS=sums({"a.bin": b"other"}))
    with pytest.raises(Error) as raised:
        site.fetch(manifest="SUMS")
    assert raised.value.slug == "dataset-mismatch"
    site.put(SUMS=b"nonsense")
    with pytest.raises(Error, match="failed verification") as raised:
        site.fetch(manifest="SUMS")
    assert "sha256sum" in raised.value.why


def test_names_that_lead_out_of_the_cache_are_refused(site: Site) -> None:
    site.put(SUMS=sums({"../../evil": b""}))
    with pytest.raises(Error):
        site.fetch(manifest="SUMS")
    assert not list(site.cache.parent.rglob("evil"))


# ── room ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Four sources of 1000 bytes on this machine."""
    found = [tmp_path / f"source-{number}" for number in range(4)]
    for number, folder in enumerate(found):
        folder.mkdir()
        (folder / "data").write_bytes(bytes([number]) * 1000)
    return found


def fetch(folder: Path, cache: Path, limit: int) -> tuple[int, Path, list[str]]:
    """Fetch one; the lease, where it lies, and what was said."""
    said: list[FetchNews] = []
    wanted = DatasetRequest(name=folder.name, source=str(folder), folder=str(cache), limit=limit)
    lease = Fetch(wanted, said.append).run()
    return lease.fd, lease.data, [news.text for news in said if "removed" in news.text]


def test_the_one_used_longest_ago_makes_room_and_this_is_said(
    folders: list[Path], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    kept = []
    for folder in folders[:3]:
        fd, data, said = fetch(folder, cache, 4200)
        os.close(fd)
        kept.append(data)
        assert said == []
    for age, data in ((30, kept[1]), (20, kept[0]), (10, kept[2])):
        lease = cache / f"{data.parent.name}.lease"
        os.utime(lease, (time.time() - age * 3600,) * 2)
    _, _, said = fetch(folders[3], cache, 4200)
    assert [data.exists() for data in kept] == [True, False, True]
    assert len(said) == 1
    assert f"removed data set {folders[1]}" in said[0]
    assert "last used 30.0 h ago: data set source-3 needs" in said[0]


def test_what_a_live_job_uses_is_never_removed(folders: list[Path], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    fd, used, _ = fetch(folders[0], cache, 2500)
    os.utime(cache / f"{used.parent.name}.lease", (0, 0))  # though it is the oldest
    idle, other, _ = fetch(folders[1], cache, 2500)
    os.close(idle)
    _, _, said = fetch(folders[2], cache, 2500)
    assert used.exists() and not other.exists() and len(said) == 1
    with pytest.raises(Error) as raised:
        fetch(folders[3], cache, 2500)
    assert raised.value.slug == "dataset-no-room"
    assert f"used by live jobs: data set {folders[0]}" in raised.value.why
    assert contents(used) == {"data": b"\0" * 1000}
    os.close(fd)
    fetch(folders[3], cache, 2500)
    assert not used.exists()


def test_a_data_set_above_the_limit_removes_nothing(folders: list[Path], tmp_path: Path) -> None:
    fd, data, _ = fetch(folders[0], tmp_path / "cache", 1500)
    os.close(fd)
    (folders[1] / "more").write_bytes(bytes(1000))
    with pytest.raises(Error, match="does not fit"):
        fetch(folders[1], tmp_path / "cache", 1500)
    assert data.exists()


def test_a_full_disk_is_told_and_what_was_fetched_is_given_back(
    folders: list[Path], small_disk: Path
) -> None:
    (folders[0] / "large").write_bytes(bytes(600_000))
    with pytest.raises(Error, match="does not fit") as raised:
        fetch(folders[0], small_disk, 1 << 30)
    assert "the disk has" in raised.value.why
    fetch(folders[1], small_disk, 1 << 30)  # what fits still does


def test_a_disk_that_fills_up_meanwhile_is_told_and_given_back(
    folders: list[Path], small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folders[0] / "large").write_bytes(bytes(300_000))
    real = source.FileSource.read

    def read(self: source.FileSource, name: str, at: int, size: int) -> Iterator[bytes]:
        if name == "large":
            (small_disk / "other").write_bytes(bytes(400_000))  # of somebody else
        yield from real(self, name, at, size)

    monkeypatch.setattr(source.FileSource, "read", read)
    with pytest.raises(OSError, match="No space left"):
        fetch(folders[0], small_disk, 1 << 30)
    assert not [path for path in small_disk.iterdir() if path.is_dir()]


def test_half_of_a_data_set_does_not_count_as_one(folders: list[Path], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    fd, data, _ = fetch(folders[0], cache, 5000)
    os.close(fd)
    shutil.copytree(data.parent, cache / f"{'a' * 32}.part")
    shutil.copytree(data.parent, cache / f"{'b' * 32}.gone")
    assert len(Cache(cache).whole()) == 1
    fetch(folders[1], cache, 5000)
    assert not (cache / f"{'b' * 32}.gone").exists()  # somebody was killed while removing it
    os.utime(cache / f"{'a' * 32}.part", (0, 0))
    fetch(folders[2], cache, 4300)
    assert not (cache / f"{'a' * 32}.part").exists()


# ── a web server ──────────────────────────────────────────────────────────────────────────────


def test_a_file_behind_http_is_fetched_once(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "one.bin").write_bytes(some_bytes(5, 50_000))
    (site / "two.bin").write_bytes(b"two")
    (site / "SUMS").write_bytes(sums({"two.bin": b"two"}))
    lines: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            lines.append(format % args)

    handler = partial(Handler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        root = f"http://127.0.0.1:{server.server_port}"
        plain = DatasetRequest(
            name="d", source=f"{root}/one.bin", folder=str(tmp_path / "c"), limit=1 << 20
        )
        lease = Fetch(plain, lambda _: None).run()
        assert contents(lease.data) == {"one.bin": some_bytes(5, 50_000)}
        Fetch(plain, lambda _: None).run()
        assert sum("GET" in line for line in lines) == 1
        named = DatasetRequest(
            name="d", source=root, manifest="SUMS", folder=str(tmp_path / "c"), limit=1 << 20
        )
        assert contents(Fetch(named, lambda _: None).run().data) == {"two.bin": b"two"}
        server.shutdown()
