"""An object store, or anything else that fsspec knows, as a store.

An object is there whole or not at all, so writing one is a single request, and of a large one many
parts that the last request puts together. Nothing is listed or asked for from a cache, because
other nodes write too.

Requests are tried again a few times with growing pauses, and every one has a time-out: a store that
is slow or broken makes a save fail, which is tried again later, but never hang. Address and
credentials are found as every other client finds them (AWS_ENDPOINT_URL, AWS_PROFILE, the account
of the pod, ...).
"""

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from holdfast.checkpoint import stores
from holdfast.errors import Error

PART_BYTES = 32 << 20  # of at most 10,000, which makes 312 GiB for each rank
AT_ONCE = 3  # parts of one object that are under way
TRIES = 3  # of each request by the client
AGAIN = 2  # times for what breaks off while it is read, which the client does not see
CONNECT_S = 5
READ_S = 20
_S3 = frozenset(("s3", "s3a"))
_DENIED = frozenset(("NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError"))
_CLIENTS = ("botocore", "aiobotocore", "aiohttp", "fsspec", "gcsfs", "azure")
_EXTRAS = {"s3": "holdfast[s3]", "gs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}


class ObjectStore:
    """A store behind a URL."""

    def __init__(self, place: str, options: dict[str, Any]) -> None:
        self.where = place.rstrip("/")
        self._scheme = place.partition("://")[0]
        try:
            self._files, path = connect(place, self._scheme, options)
        except ImportError as error:
            extra = _EXTRAS.get(self._scheme, "its fsspec client")
            raise stores.unusable(
                place, f"its client is not installed: pip install {extra}"
            ) from error
        except ValueError as error:
            raise stores.unusable(place, str(error)) from error
        self._root = path.rstrip("/")

    def list(self, folder: str) -> list[str]:
        """Names of what is in a folder."""
        path = self._path(folder) if folder else self._root
        with self._translated(folder or "the place"):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(path, detail=False)
            except FileNotFoundError:
                return []
        names = (one.rstrip("/").removeprefix(f"{path}/") for one in found)
        return sorted(name for name in names if name and "/" not in name)

    def size(self, name: str) -> int | None:
        """Bytes of a file; None if there is none."""
        path = self._path(name)
        with self._translated(name):
            self._files.invalidate_cache()
            try:
                found = self._files.info(path)
            except FileNotFoundError:
                return None
        return int(found["size"]) if found["type"] == "file" else None

    def read(self, name: str, at: int = 0, length: int | None = None) -> bytes:
        """The bytes of a file from `at` on, to its end or exactly `length`."""
        path, end = self._path(name), None if length is None else at + length
        with self._translated(name):
            data = bytes(self._files.cat_file(path, start=at or None, end=end))
        if length is not None and len(data) < length:
            raise stores.missing(self.where, name, f"it is truncated at byte {at + len(data)}")
        return data

    def read_into(self, name: str, at: int, target: memoryview) -> None:
        """Fill `target` with the bytes of a file from `at` on."""
        target[:] = self.read(name, at, len(target))

    def put(self, name: str, data: bytes) -> None:
        """Write a file at once."""
        path = self._path(name)
        with self._translated(name):
            self._files.pipe_file(path, data)

    @contextmanager
    def create(self, name: str) -> "Iterator[PartsUpload | FileUpload]":
        """Write a large file."""
        path = self._path(name)
        with self._translated(name):
            upload = (PartsUpload if self._scheme in _S3 else FileUpload)(self._files, path)
            try:
                yield upload
                upload.finish()
            except BaseException:
                upload.give_up()
                raise

    def remove(self, name: str) -> None:
        """Remove a file; folders are only names here."""
        path = self._path(name)
        with self._translated(name):
            try:
                self._files.rm_file(path)
            except FileNotFoundError:
                return

    def _path(self, name: str) -> str:
        return f"{self._root}/{stores.require_name(name)}"

    @contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        try:
            yield
        except Error:
            raise
        except Exception as error:
            told = translated(self.where, name, error)
            if told is None:
                raise
            raise told from error


class PartsUpload:
    """One object of S3 in parts, some of them at once; small ones in a single request."""

    def __init__(self, files: Any, path: str) -> None:
        self._files = files
        self._path = path
        bucket, key, _ = files.split_path(path)
        self._object = {"Bucket": bucket, "Key": key}
        self._buffer = bytearray()
        self._upload: str | None = None
        self._parts: list[Future[dict[str, Any]]] = []
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="holdfast-part")

    def write(self, data: bytes | memoryview) -> None:
        """The next bytes."""
        self._buffer += data
        while len(self._buffer) >= PART_BYTES:
            self._send(bytes(self._buffer[:PART_BYTES]))
            del self._buffer[:PART_BYTES]

    def finish(self) -> None:
        """Send what is left and put the parts together."""
        if self._upload is None:
            self._files.pipe_file(self._path, bytes(self._buffer))
        else:
            self._send(bytes(self._buffer))
            parts = [part.result() for part in self._parts]
            self._call("complete_multipart_upload", MultipartUpload={"Parts": parts})
        self._pool.shutdown()

    def give_up(self) -> None:
        """Leave nothing behind, if the store still answers; else its own rules clean up."""
        self._pool.shutdown(cancel_futures=True)
        if self._upload is not None:
            try:
                self._call("abort_multipart_upload")
            except Exception:  # the reason why we give up is the one to be told
                return

    def _send(self, data: bytes) -> None:
        if self._upload is None:
            begun = self._files.call_s3("create_multipart_upload", **self._object)
            self._upload = begun["UploadId"]
        if len(self._parts) >= AT_ONCE:  # so many in memory, and an error is seen soon
            self._parts[-AT_ONCE].result()
        if data:
            number = len(self._parts) + 1
            self._parts.append(self._pool.submit(self._send_part, number, data))

    def _send_part(self, number: int, data: bytes) -> dict[str, Any]:
        sent = self._call("upload_part", PartNumber=number, Body=data)
        return {"PartNumber": number, "ETag": sent["ETag"]}

    def _call(self, method: str, **words: Any) -> Any:
        return self._files.call_s3(method, **self._object, UploadId=self._upload, **words)


class FileUpload:
    """One file of another kind of store, as fsspec writes it.

    Some kinds show it while it grows. Nothing refers to it before it is whole.
    """

    def __init__(self, files: Any, path: str) -> None:
        self._files = files
        self._path = path
        files.makedirs(files._parent(path), exist_ok=True)
        self._file = files.open(path, "wb", block_size=PART_BYTES, autocommit=False)

    def write(self, data: bytes | memoryview) -> None:
        """The next bytes."""
        self._file.write(data)

    def finish(self) -> None:
        """All of it is there now."""
        self._file.close()
        self._file.commit()

    def give_up(self) -> None:
        """Leave nothing behind."""
        from fsspec.spec import AbstractBufferedFile  # type: ignore[import-untyped]

        self._file.discard()
        if isinstance(self._file, AbstractBufferedFile):
            self._file.closed = True  # or some kinds go on writing it when it is collected
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path)


def connect(place: str, scheme: str, options: dict[str, Any]) -> tuple[Any, str]:
    """The filesystem of a URL, with bounded requests, and the path in it. Raises `ImportError`,
    `ValueError`."""
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]

    given = {"skip_instance_cache": True, "use_listings_cache": False, **options}
    if scheme in _S3:
        limits = {"connect_timeout": CONNECT_S, "read_timeout": READ_S}
        retries = {"total_max_attempts": TRIES, "mode": "standard"}
        given.setdefault("config_kwargs", {**limits, "retries": retries})
    files, path = url_to_fs(place, **given)
    if scheme in _S3:
        files.retries = AGAIN
    return files, path


def translated(where: str, name: str, error: Exception) -> Error | None:
    """What this means to a person; None for a mistake of ours."""
    why = " ".join(str(error).split()) or type(error).__name__
    code = _code(error)
    if "StorageFull" in code or "Quota" in code:
        return stores.full(where, name, why)
    status = getattr(error, "status_code", None)  # of Azure
    denied = isinstance(error, PermissionError) or type(error).__name__ in _DENIED
    if denied or status in (401, 403) or why.startswith("Forbidden"):  # as gcsfs says it
        return stores.denied(where, name, why)
    if isinstance(error, FileNotFoundError) or code == "InvalidRange" or status == 416:
        return stores.missing(where, name, why)
    # gcsfs raises ValueError for an answer that it does not understand
    talks = isinstance(error, OSError | TimeoutError | ValueError)
    known = type(error).__module__.startswith(_CLIENTS)
    return stores.unreachable(where, name, why) if talks or known else None


def _code(error: BaseException) -> str:
    """The error code in the answer of an S3 server, if that is behind it."""
    response = getattr(error.__cause__, "response", None) or getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""
