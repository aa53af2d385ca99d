"""Where a data set comes from: its files by name, size and tag, and their bytes.

A source is a folder, one file, or a prefix of an object store; anything fsspec can list. HTTP has
no listing: there it is one file, or the files that a manifest names. A tag (ETag, or the time of
the last change) stands for the contents: what is fetched is kept under the tags it had.

A manifest is a file in the source as `sha256sum` writes it: then only what it names belongs to the
data set, and every file is verified by its SHA-256. Without one, what an S3 server calls the ETag
of an object that came in one request is its MD5 sum, and is verified; of others only the size is.

What a server says is not trusted: neither names nor sizes lead anywhere but to the files of the
data set. What makes a URL secret (a signature) is no part of the data set's name.
"""

import hashlib
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from holdfast.checkpoint import objects
from holdfast.errors import Error

PIECE_BYTES = 16 << 20
MANIFEST_BYTES = 256 << 20
PATIENCE_S = 30.0  # for a server to answer, or to go on
_MD5 = re.compile(r"[0-9a-f]{32}")
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_WEB = ("http://", "https://")
_SIGNATURES = frozenset(("x-amz-signature", "x-goog-signature", "signature", "sig"))
_NO_HEAD = (403, 405, 501)  # a URL may be signed for GET alone


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

    def read(self, name: str, at: int, size: int) -> Iterator[bytes]:
        """Its bytes from `at` on, to its end at `size`."""


def open_source(url: str, endpoint: str | None) -> DatasetSource:
    """The source at a URL or path. Nothing is asked for yet."""
    if url.startswith(_WEB):
        return WebSource(url)
    return FileSource(url, endpoint)


def identity(url: str) -> str:
    """By which a source is known again, and told: without what signs it, which is secret and new
    each time."""
    if not url.startswith(_WEB):
        return url
    named = {name.lower() for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True)}
    return url.partition("?")[0] if named & _SIGNATURES else url


def listing(source: DatasetSource, url: str, manifest: str | None) -> list[SourceFile]:
    """The files of the data set, by name. Raises `Error` dataset-unavailable, dataset-mismatch."""
    if manifest is None:
        found = source.files()
    else:
        sums = _sums(_manifest(source, url, manifest), url, manifest)
        _require_names(list(sums), url)
        found = [source.look(name)._replace(sha256=sums[name]) for name in sums]
    if not found:
        raise unavailable(url, "it contains no files")
    _require_names([one.name for one in found], url)
    return sorted(found)


def _manifest(source: DatasetSource, url: str, name: str) -> bytes:
    size = source.look(name).size
    if size > MANIFEST_BYTES:
        raise mismatch(url, f"{name} has {size} bytes; a manifest has at most {MANIFEST_BYTES}")
    return b"".join(source.read(name, 0, size))


def _require_names(names: list[str], url: str) -> None:
    """That all can be files below one folder."""
    known = set(names)
    for name in names:
        steps = name.split("/")
        if any(step in ("", ".", "..") for step in steps) or "\0" in name:
            raise mismatch(url, f"{name!r} is not a valid file name")
        above = ("/".join(steps[:count]) for count in range(1, len(steps)))
        if (file := next((one for one in above if one in known), None)) is not None:
            raise mismatch(url, f"{file!r} is both a file and the folder of {name!r}")


def _sums(text: bytes, url: str, manifest: str) -> dict[str, str]:
    lines = [line for line in text.decode(errors="replace").splitlines() if line.strip()]
    found = [_LINE.fullmatch(line) for line in lines]
    if None in found:
        line = lines[found.index(None)]
        raise mismatch(url, f"{manifest} is not in the format of `sha256sum`: {line[:80]!r}")
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
            self._listed(path, path.removeprefix(f"{parent}/"), info)
            for path, info in found.items()
            if not path.endswith("/")
        ]

    def _listed(self, path: str, name: str, info: dict[str, Any]) -> SourceFile:
        """A link of a folder on disk stands for the file that it leads to."""
        if info.get("type") == "other":
            try:
                info = self._store.info(path)
            except Exception as error:
                raise mismatch(self._url, f"{name} is a broken link: {error}") from error
            if info["type"] != "file":
                raise mismatch(self._url, f"{name} is neither a file nor a link to one")
        return _listed(name, info)

    def look(self, name: str) -> SourceFile:
        """One file."""
        try:
            return _listed(name, self._store.info(f"{self._root}/{name}"))
        except Exception as error:
            raise self._translated(name, error) from error

    def read(self, name: str, at: int, size: int) -> Iterator[bytes]:
        """Piece by piece: each is a request of its own, which is tried again."""
        path = self._root if self._alone else f"{self._root}/{name}"
        try:
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
        """A client of any store may raise anything: fetching is tried again, whatever it is."""
        told = objects.translated(self._url, name or "the source", error)
        why = f"{told.what}: {told.why}" if told else f"{type(error).__name__}: {error}"
        return unavailable(self._url, why)


def _listed(name: str, info: dict[str, Any]) -> SourceFile:
    tags = (
        *("ETag", "etag", "blob_id", "md5Hash", "content_md5"),
        *("mtime", "LastModified", "last_modified"),
    )
    return SourceFile(
        name, int(info["size"]), str(next((info[t] for t in tags if info.get(t)), ""))
    )


class WebSource:
    """One file behind `http://` or `https://`, or those that a manifest beside it names."""

    def __init__(self, url: str) -> None:
        self._url = identity(url)  # in messages
        self._path, mark, query = url.partition("?")
        self._path, self._query = self._path.rstrip("/"), mark + query
        self._alone = False  # it is one file

    def files(self) -> list[SourceFile]:
        """The one file."""
        self._alone = True
        return [self.look(unquote(self._path.rpartition("/")[2]))]

    def look(self, name: str) -> SourceFile:
        """By a request for its head, or for its first byte."""
        try:
            with self._asked(name, "HEAD") as answer:
                head, size = answer.headers, answer.headers.get("Content-Length")
        except urllib.error.HTTPError as error:
            if error.code not in _NO_HEAD:
                raise self._unavailable(name, error) from error
            head, size = self._look_at_first_byte(name)
        except (OSError, ValueError, HTTPException) as error:
            raise self._unavailable(name, error) from error
        if size is None or not size.isdecimal():
            raise unavailable(self._url, f"the server does not report the size of {name}")
        return SourceFile(name, int(size), head.get("ETag") or head.get("Last-Modified") or "")

    def _look_at_first_byte(self, name: str) -> tuple[Any, str | None]:
        try:
            with self._asked(name, "GET", "bytes=0-0") as answer:
                head = answer.headers
                if answer.status == 206:
                    return head, head.get("Content-Range", "").rpartition("/")[2]
                return head, head.get("Content-Length")
        except (OSError, ValueError, HTTPException) as error:
            raise self._unavailable(name, error) from error

    def read(self, name: str, at: int, size: int) -> Iterator[bytes]:
        """In one request; a server that knows no ranges sends what is there already, too."""
        try:
            with self._asked(name, "GET", f"bytes={at}-" if at else "") as answer:
                skipped = 0 if answer.status == 206 else at
                while skipped and (gone := answer.read(min(skipped, PIECE_BYTES))):
                    skipped -= len(gone)
                while at < size and (piece := answer.read(min(size - at, PIECE_BYTES))):
                    yield piece
                    at += len(piece)
        except (OSError, ValueError, HTTPException) as error:
            raise self._unavailable(name, error) from error

    def _asked(self, name: str, method: str, wanted: str = "") -> Any:
        url = (self._path if self._alone else f"{self._path}/{quote(name)}") + self._query
        headers = {"Range": wanted} if wanted else {}
        request = urllib.request.Request(url, method=method, headers=headers)
        return urllib.request.urlopen(request, timeout=PATIENCE_S)

    def _unavailable(self, name: str, error: Exception) -> Error:
        return unavailable(self._url, f"{name}: {error or type(error).__name__}")


def proof_of(listed: SourceFile) -> Any:
    """The running sum by which this file is verified against what the source says; or None."""
    if listed.sha256:
        return hashlib.sha256()
    return hashlib.md5(usedforsecurity=False) if listed.md5 else None


def unavailable(url: str, why: str) -> Error:
    """The source cannot be read."""
    return Error(
        "dataset-unavailable",
        f"data set {identity(url)} cannot be fetched",
        why=why,
        help="check the source, its endpoint and the credentials; fetching is retried",
    )


def mismatch(url: str, why: str) -> Error:
    """What was read is not what was promised."""
    return Error(
        "dataset-mismatch",
        f"data set {identity(url)} failed verification",
        why=why,
        help="compare the source with its manifest and with `sha256` in the job file",
    )
