"""A data set behind a server that speaks S3, and what is asked of that server."""

import hashlib
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.datasets.fetch import DatasetLease, DatasetWish, Fetch, FetchNews
from tests.checkpoint.conftest import s3_endpoint, s3_place
from tests.checkpoint.faults import Fault, proxied

__all__ = ["Site", "s3_endpoint", "s3_place", "site"]


class Site:
    """The source, a proxy before it, and a cache. `fault` is what becomes of reads of objects."""

    def __init__(self, place: str, cache: Path) -> None:
        self.place, self.cache = place, cache
        self.endpoint = ""
        self.asked: list[str] = []
        self.fault: Fault = None
        self.away: Fault = None
        self.reads_before_fault = 0
        self.news: list[FetchNews] = []

    def choose(self, line: bytes) -> Fault:
        """The proxy asks what is to become of a request."""
        method, path, _ = line.decode().split()
        is_read = method == "GET" and "?" not in path
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
        import s3fs  # type: ignore[import-untyped]

        named = {name.replace("__", "/"): data for name, data in files.items()}
        store = s3fs.S3FileSystem(skip_instance_cache=True)
        for name, data in named.items():
            store.pipe_file(f"{self.place}/{name}", data)
        return named

    def wanted(self, **changes: Any) -> DatasetWish:
        """What a job wants."""
        plain = {
            "name": "tokens", "source": self.place, "endpoint": self.endpoint,
            "folder": str(self.cache), "limit": 1 << 30,
        }  # fmt: skip
        return DatasetWish(**{**plain, **changes})

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


@pytest.fixture
def site(s3_place: str, s3_endpoint: str, tmp_path: Path) -> Iterator[Site]:
    """One with three objects."""
    found = Site(s3_place, tmp_path / "cache")
    host, port = s3_endpoint.removeprefix("http://").split(":")
    with proxied((host, int(port)), found.choose) as found.endpoint:
        yield found


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
