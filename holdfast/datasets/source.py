"""Where a data set comes from: its files by name, size and tag, and their bytes.

A source is a folder, one file, or a prefix of an object store; anything fsspec can list. HTTP has
no listing: there it is one file, or the files that a manifest names. A tag (ETag, or the time of
the last change) stands for the contents: what is fetched is kept under the tags it had.

A manifest is a file in the source as `sha256sum` writes it: then only what it names belongs to the
data set, and every file is verified by its SHA-256. Without one, what an S3 server calls the ETag
of an object that came in one request is its MD5 sum, and is verified; of others only the size is.
"""

import hashlib
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from holdfast.checkpoint import objects
from holdfast.errors import Error

PIECE_BYTES = 16 << 20
PATIENCE_S = 30.0  # for a server to answer, or to go on
_MD5 = re.compile(r"[0-9a-f]{32}")
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_WEB = ("http://", "https://")


class SourceFile(NamedTuple):
    """One file of a data set."""

    name: str  # below the source, with `/`
    size: int
    tag: str
    sha256: str = ""  # as the manifest has it

    @property
    def md5(self) -> str:
        """Of its contents, where the tag is that; else empty."""
        found = self.tag.strip('"').lower()
        return found if _MD5.fullmatch(found) else ""


class DatasetSource(Protocol):
    """What both kinds can do. Raise `Error` dataset-unavailable."""

    def files(self) -> list[SourceFile]:
        """All there is, without a manifest."""

    def look(self, name: str) -> SourceFile:
        """One file by its name."""

    def read(self, name: str, at: int, size: int | None) -> Iterator[bytes]:
        """Its bytes from `at` on, to its end, which is at `size` if that is known."""


def open_source(url: str, endpoint: str | None) -> DatasetSource:
    """The source at a URL or path. Nothing is asked for yet."""
    if url.startswith(_WEB):
        return WebSource(url)
    return FileSource(url, endpoint)


def listing(source: DatasetSource, url: str, manifest: str | None) -> list[SourceFile]:
    """The files of the data set, by name. Raises `Error` dataset-unavailable, dataset-mismatch."""
    if manifest is None:
        found = source.files()
    else:
        sums = _sums(b"".join(source.read(manifest, 0, None)), url, manifest)
        found = [source.look(name)._replace(sha256=sums[name]) for name in sums]
    if not found:
        raise unavailable(url, "there are no files")
    for one in found:
        if any(step in ("", ".", "..") for step in one.name.split("/")) or "\0" in one.name:
            raise unavailable(url, f"{one.name!r} cannot be the name of a file")
    return sorted(found)


def _sums(text: bytes, url: str, manifest: str) -> dict[str, str]:
    lines = [line for line in text.decode(errors="replace").splitlines() if line.strip()]
    found = [_LINE.fullmatch(line) for line in lines]
    if None in found:
        line = lines[found.index(None)]
        raise mismatch(url, f"{manifest} is not as `sha256sum` writes it: {line[:80]!r}")
    return {one[2].removeprefix("./"): one[1] for one in found if one is not None}


class FileSource:
    """Whatever fsspec opens: folders, S3, GCS, Azure, ..."""

    def __init__(self, url: str, endpoint: str | None) -> None:
        self._url = url
        options = {"client_kwargs": {"endpoint_url": endpoint}} if endpoint else {}
        try:
            self._store, path = objects.connect(url, url.partition("://")[0], options)
        except (ImportError, ValueError) as error:
            raise unavailable(url, f"it cannot be opened: {error}") from error
        self._root = path.rstrip("/")
        self._alone = False  # it is one file

    def files(self) -> list[SourceFile]:
        """All there is."""
        try:
            self._store.invalidate_cache()
            found = self._store.find(self._root, detail=True)
        except Exception as error:
            raise self._translated("", error) from error
        self._alone = list(found) == [self._root]
        parent = self._root.rpartition("/")[0] if self._alone else self._root
        return [
            _listed(path.removeprefix(f"{parent}/"), info)
            for path, info in found.items()
            if not path.endswith("/")
        ]

    def look(self, name: str) -> SourceFile:
        """One file."""
        try:
            return _listed(name, self._store.info(f"{self._root}/{name}"))
        except Exception as error:
            raise self._translated(name, error) from error

    def read(self, name: str, at: int, size: int | None) -> Iterator[bytes]:
        """Piece by piece: each is a request of its own, which is tried again."""
        path = self._root if self._alone else f"{self._root}/{name}"
        try:
            if size is None:
                yield bytes(self._store.cat_file(path))
                return
            while at < size:
                end = min(at + PIECE_BYTES, size)
                piece = bytes(self._store.cat_file(path, start=at, end=end))
                if not piece:
                    raise OSError(f"it ends at byte {at} of {size}")
                yield piece
                at += len(piece)
        except Exception as error:
            raise self._translated(name, error) from error

    def _translated(self, name: str, error: Exception) -> Exception:
        told = objects.translated(self._url, name or "the source", error)
        return error if told is None else unavailable(self._url, f"{told.what}: {told.why}")


def _listed(name: str, info: dict[str, Any]) -> SourceFile:
    tags = ("ETag", "etag", "md5Hash", "content_md5", "mtime", "LastModified", "last_modified")
    return SourceFile(
        name, int(info["size"]), str(next((info[t] for t in tags if info.get(t)), ""))
    )


class WebSource:
    """One file behind `http://` or `https://`, or those that a manifest beside it names."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._own = self._url.rpartition("/")[2]

    def files(self) -> list[SourceFile]:
        """The one file."""
        return [self.look(self._own)]

    def look(self, name: str) -> SourceFile:
        """By a request for its head."""
        with self._asked(name, "HEAD", 0) as answer:
            size, head = answer.headers.get("Content-Length"), answer.headers
        if size is None:
            raise unavailable(self._url, f"the server does not tell the size of {name}")
        return SourceFile(name, int(size), head.get("ETag") or head.get("Last-Modified") or "")

    def read(self, name: str, at: int, size: int | None) -> Iterator[bytes]:  # noqa: ARG002
        """In one request; a server that knows no ranges sends what is there already, too."""
        with self._asked(name, "GET", at) as answer:
            skipped = 0 if answer.status == 206 else at
            try:
                while skipped and (gone := answer.read(min(skipped, PIECE_BYTES))):
                    skipped -= len(gone)
                while piece := answer.read(PIECE_BYTES):
                    yield piece
            except OSError as error:
                raise unavailable(self._url, f"{name}: {error}") from error

    def _asked(self, name: str, method: str, at: int) -> Any:
        url = self._url if name == self._own else f"{self._url}/{name}"
        headers = {"Range": f"bytes={at}-"} if at else {}
        request = urllib.request.Request(url, method=method, headers=headers)
        try:
            return urllib.request.urlopen(request, timeout=PATIENCE_S)
        except (OSError, ValueError) as error:
            raise unavailable(self._url, f"{name}: {error}") from error


def proof_of(listed: SourceFile) -> Any:
    """The running sum by which this file is verified against what the source says; or None."""
    if listed.sha256:
        return hashlib.sha256()
    return hashlib.md5(usedforsecurity=False) if listed.md5 else None


def unavailable(url: str, why: str) -> Error:
    """The source cannot be read."""
    return Error(
        "dataset-unavailable",
        f"data set {url} cannot be fetched",
        why=why,
        help="check the source, its endpoint and the credentials; fetching is retried",
    )


def mismatch(url: str, why: str) -> Error:
    """What was read is not what was promised."""
    return Error(
        "dataset-mismatch",
        f"data set {url} is not what it should be",
        why=why,
        help="compare the source with its manifest and with `sha256` in the job file",
    )
