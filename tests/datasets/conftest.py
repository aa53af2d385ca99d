"""A data set behind a server that speaks S3, and what is asked of that server."""

import functools
import hashlib
import random
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.checkpoint import objects
from holdfast.datasets.fetch import DatasetLease, DatasetRequest, Fetch, FetchNews
from tests.checkpoint.conftest import CREDENTIALS, s3_endpoint
from tests.checkpoint.faults import Choose, Fault, proxied

__all__ = ["Site", "s3_endpoint", "site"]

MANIFEST = "SUMS"


class S3(NamedTuple):
    """What all tests share, because it takes time to make: a client, and a proxy that asks the
    first of `choose`."""

    store: Any
    endpoint: str
    choose: list[Choose]


class Site:
    """The source, a proxy before it, and a cache. `fault` is what becomes of reads of objects."""

    def __init__(self, place: str, cache: Path, s3: S3) -> None:
        self.place, self.cache = place, cache
        self.endpoint, self._store = s3.endpoint, s3.store
        self.asked: list[str] = []
        self.fault: Fault = None
        self.away: Fault = None
        self.reads_before_fault = 0
        self.news: list[FetchNews] = []

    def choose(self, line: bytes) -> Fault:
        """The proxy asks what is to become of a request."""
        method, path, _ = line.decode().split()
        is_read = method == "GET" and "?" not in path and not path.endswith(f"/{MANIFEST}")
        self.asked.append("read" if is_read else "ask")
        if is_read and self.fault is not None:
            self.reads_before_fault -= 1
            return self.fault if self.reads_before_fault < 0 else None
        return self.away

    @property
    def reads(self) -> int:
        """Objects that were read."""
        return self.asked.count("read")

    def put(self, **files: bytes) -> dict[str, bytes]:
        """Objects of the source; `__` in a name is a `/`."""
        named = {name.replace("__", "/"): data for name, data in files.items()}
        for name, data in named.items():
            self._store.pipe_file(f"{self.place}/{name}", data, ACL="public-read")
        return named

    @property
    def web(self) -> str:
        """The same for those who ask without credentials; they need a manifest."""
        return f"{self.endpoint}/{self.place.removeprefix('s3://')}"

    def wanted(self, **changes: Any) -> DatasetRequest:
        """What a job wants."""
        plain = {
            "name": "tokens", "source": self.place, "endpoint": self.endpoint,
            "folder": str(self.cache), "limit": 1 << 30,
        }  # fmt: skip
        return DatasetRequest(**{**plain, **changes})

    def fetch(self, **changes: Any) -> DatasetLease:
        """As a node does it."""
        return Fetch(self.wanted(**changes), self.news.append).run()

    @property
    def said(self) -> str:
        """All words."""
        return "\n".join(news.text for news in self.news)


def some_bytes(seed: int, size: int) -> bytes:
    """Not to be compressed, and the same each time."""
    return random.Random(seed).randbytes(size)


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def sums(files: dict[str, bytes]) -> bytes:
    """As `sha256sum` writes it."""
    lines = (f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
    return "".join(lines).encode()


@pytest.fixture(scope="module")
def s3(s3_endpoint: str) -> Iterator[S3]:
    """A server, what breaks it, and clients that are made once for each of their options."""
    import s3fs  # type: ignore[import-untyped]

    host, port = s3_endpoint.removeprefix("http://").split(":")
    choose: list[Choose] = []
    made = functools.cache(lambda endpoint: real("s3://x", "s3", _options(endpoint))[0])
    real = objects.connect

    def connect(place: str, scheme: str, options: dict[str, Any]) -> tuple[Any, str]:
        if scheme != "s3":
            return real(place, scheme, options)
        return made(options["client_kwargs"]["endpoint_url"]), place.removeprefix("s3://")

    with (
        pytest.MonkeyPatch.context() as patched,
        proxied((host, int(port)), lambda line: choose[0](line)) as endpoint,
    ):
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": s3_endpoint}.items():
            patched.setenv(name, value)
        patched.setattr(objects, "connect", connect)
        yield S3(s3fs.S3FileSystem(skip_instance_cache=True), endpoint, choose)


def _options(endpoint: str) -> dict[str, Any]:
    return {"client_kwargs": {"endpoint_url": endpoint}}


@pytest.fixture
def site(s3: S3, tmp_path: Path) -> Site:
    """One in a new bucket."""
    bucket = f"bucket-{secrets.token_hex(6)}"
    s3.store.mkdir(bucket)
    found = Site(f"s3://{bucket}/some/job", tmp_path / "cache", s3)
    s3.choose[:] = [found.choose]
    return found


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
