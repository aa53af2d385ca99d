"""Neither the folder of the cache nor what a source says is trusted: nothing of others is removed,
nothing is read without bounds, and nothing that is secret is told."""

import contextlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from holdfast.datasets import fetch as fetching
from holdfast.datasets import source
from holdfast.datasets.cache import Cache
from holdfast.datasets.fetch import DatasetLease, DatasetRequest, Fetch, FetchNews
from holdfast.errors import Error
from holdfast.spec.storage import Dataset
from tests.datasets.conftest import contents, sums

MD5 = "0123456789abcdef" * 2  # also a name that other caches give to folders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A source on this machine."""
    found = tmp_path / "source"
    found.mkdir()
    (found / "a").write_bytes(bytes(1000))
    return found


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A folder that a user has named, with files of other programs in it."""
    found = tmp_path / "cache"
    for name in ("important.gone", f"{MD5}", f"{MD5[::-1]}/data", f"{MD5}.gone.d"):
        (found / name).mkdir(parents=True)
        (found / name / "file").write_bytes(bytes(500))
    (found / ("f" * 32)).symlink_to(tmp_path)
    return found


def fetch(source: str | Path, cache: Path, **more: object) -> DatasetLease:
    wanted = {"name": "d", "source": str(source), "folder": str(cache), "limit": 1 << 30, **more}
    news: list[FetchNews] = []
    return Fetch(DatasetRequest(**wanted), news.append).run()  # type: ignore[arg-type]


def refused(source: str | Path, cache: Path, **more: object) -> Error:
    with pytest.raises(Error) as raised:
        fetch(source, cache, **more)
    return raised.value


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# ── the folder of the cache ───────────────────────────────────────────────────────────────────


def test_files_of_others_in_the_folder_are_neither_removed_nor_counted(
    folder: Path, cache: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    os.close(fetch(folder, cache, limit=1500).fd)
    (folder / "a").write_bytes(bytes(1001))
    os.close(fetch(folder, cache, limit=1500).fd)  # the first one had to go
    assert len(Cache(cache).whole()) == 1
    kept = {path: path.stat().st_mtime_ns for path in before if path.exists()}
    assert kept == before


def test_what_would_not_make_enough_room_is_not_removed(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.close(fetch(folder, cache).fd)
    (folder / "a").write_bytes(bytes(3000))
    here = os.statvfs(cache)
    full = os.statvfs_result((*here[:3], 0, 0, *here[5:10], here.f_namemax))
    monkeypatch.setattr(os, "statvfs", lambda _: full)  # by files that are no data sets
    assert refused(folder, cache).slug == "dataset-no-room"
    assert len(Cache(cache).whole()) == 1


@pytest.mark.parametrize("torn", [b"", b'{"source"', b"\xff\0", None])
def test_a_record_that_the_disk_has_lost_is_made_anew(
    folder: Path, cache: Path, torn: bytes | None
) -> None:
    first = fetch(folder, cache)
    os.close(first.fd)
    record = first.data.parent / "contents.json"
    record.unlink()
    if torn is not None:
        record.write_bytes(torn)
    again = fetch(folder, cache)
    assert again.data == first.data and contents(again.data) == {"a": bytes(1000)}
    if torn is not None:
        record.write_bytes(torn)
        assert "live jobs use" in refused(folder, cache).why
        assert contents(again.data) == {"a": bytes(1000)}
    os.close(again.fd)


def test_a_try_that_fails_leaves_no_lease_behind(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = fetch(folder, cache)
    os.close(lease.fd)
    (lease.data / "a").unlink()

    def broken(*_: object) -> Iterator[bytes]:
        raise source.unavailable(str(folder), "it broke off")

    monkeypatch.setattr(source.FileSource, "read", broken)
    before = open_files()
    for _ in range(3):
        assert "it broke off" in refused(folder, cache).why
    assert open_files() == before
    monkeypatch.setattr(fetching, "sha256_of", None)
    assert Cache(cache).remove(lease.data.parent.name)


# ── what a folder has ─────────────────────────────────────────────────────────────────────────


def test_a_link_stands_for_its_file_and_one_to_nothing_is_no_empty_file(
    folder: Path, cache: Path
) -> None:
    (folder / "link").symlink_to("a")
    assert contents(fetch(folder, cache).data) == {"a": bytes(1000), "link": bytes(1000)}
    (folder / "lost").symlink_to("nothing")
    assert "lost is a broken link" in refused(folder, cache).why
    (folder / "lost").unlink()
    (folder / "around").symlink_to(".")
    assert "around is neither a file nor a link to one" in refused(folder, cache).why


def test_a_name_that_is_a_file_and_a_folder_is_told() -> None:
    class Keys:
        """As an object store may have them."""

        def files(self) -> list[source.SourceFile]:
            return [source.SourceFile(name, 1, "") for name in ("a", "a.b", "a/b/c")]

    with pytest.raises(Error) as raised:
        source.listing(Keys(), "s3://x", None)  # type: ignore[arg-type]
    assert "'a' is both a file and the folder of 'a/b/c'" in raised.value.why


@pytest.mark.parametrize("name", ["../../evil", "/etc/hostname", "x/./y", "x//y", "..", "nul\0"])
def test_names_of_a_manifest_are_looked_at_before_they_are_asked_for(
    folder: Path, cache: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = source.FileSource.look

    def look(self: source.FileSource, name: str) -> source.SourceFile:
        asked.append(name)
        return real(self, name)

    monkeypatch.setattr(source.FileSource, "look", look)
    (folder / "SUMS").write_bytes(sums({name: b""}))
    assert "is not a valid file name" in refused(folder, cache, manifest="SUMS").why
    assert asked == ["SUMS"]


def test_a_manifest_has_bounds(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MANIFEST_BYTES", 999)
    assert "a manifest has at most" in refused(folder, cache, manifest="a").why


# ── a web server ──────────────────────────────────────────────────────────────────────────────


class Web:
    """What the server does: answers by the request line, and what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.files: dict[str, bytes] = {}
        self.signed_for_get = False
        self.more = b""  # than was said
        self.garbage = False
        self.root = ""


class Handler(BaseHTTPRequestHandler):
    web: Web

    def do_HEAD(self) -> None:
        self._answer(403 if self.web.signed_for_get else 200)

    def do_GET(self) -> None:
        self._answer(200)

    def _answer(self, status: int) -> None:
        web, data = self.web, self.web.files.get(self.path)
        web.asked.append(f"{self.command} {self.path}")
        if web.garbage and self.command == "GET":
            self.wfile.write(b"what?\r\n\r\n")
            return
        first = self.headers["Range"] == "bytes=0-0"
        self.send_response(404 if data is None else 206 if first else status)
        if data is not None and first:
            self.send_header("Content-Range", f"bytes 0-0/{len(data)}")
        elif data is not None and (not web.more or self.command == "HEAD"):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if data is not None and self.command == "GET":
            self.wfile.write(data[:1] if first else data)
            with contextlib.suppress(OSError):
                while web.more and not first:
                    self.wfile.write(web.more)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture
def web() -> Iterator[Web]:
    found = Web()
    handler = type("Bound", (Handler,), {"web": found})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        found.root = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        yield found
        server.shutdown()


def test_a_signed_url_is_one_data_set_whatever_its_signature_and_that_is_never_told(
    web: Web, tmp_path: Path
) -> None:
    web.signed_for_get = True
    for name in ("one", "two"):
        web.files[f"/a%20b.bin?X-Amz-Date={name}&X-Amz-Signature={name}"] = b"data"
    urls = [f"{web.root}{path}" for path in web.files]
    first, second = (fetch(url, tmp_path / "c").data for url in urls)
    assert contents(first) == {"a b.bin": b"data"} and first == second
    assert sum(line.startswith("GET") for line in web.asked) == 4  # three looks, one read
    assert b"X-Amz" not in (first.parent / "contents.json").read_bytes()
    told = refused(f"{web.root}/none?X-Amz-Signature=s3cr3t", tmp_path / "c")
    assert "s3cr3t" not in str((told.what, told.why, told.help))


def test_files_beside_a_manifest_are_asked_for_by_their_own_names(web: Web, tmp_path: Path) -> None:
    files = {"data": b"1", "with space#1": b"22"}
    web.files = {"/data/SUMS": sums(files), "/data/data": b"1", "/data/with%20space%231": b"22"}
    assert contents(fetch(f"{web.root}/data", tmp_path / "c", manifest="SUMS").data) == files


def test_more_than_was_listed_is_not_read(web: Web, tmp_path: Path) -> None:
    web.files, web.more = {"/x": b"data"}, bytes(100_000)
    assert contents(fetch(f"{web.root}/x", tmp_path / "c").data) == {"x": b"data"}


def test_a_server_that_speaks_no_http_is_told_and_tried_again(web: Web, tmp_path: Path) -> None:
    web.files, web.garbage = {"/x": b"data"}, True
    told = refused(f"{web.root}/x", tmp_path / "c")
    assert told.slug == "dataset-unavailable" and "what?" in told.why


def test_passwords_in_a_source_are_refused() -> None:
    with pytest.raises(ValueError, match="must not contain a password"):
        Dataset(name="d", source="https://me:secret@host/x")
    Dataset(name="d", source="hf://datasets/me/it@v1")
    Dataset(name="d", source="abfs://container@account.dfs.core.windows.net/x")
