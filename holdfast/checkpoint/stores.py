"""Where durable checkpoints are kept: a folder, or an object store behind a URL.

Both are one small protocol, so that everything above knows neither; `open_store` picks one. What
both need stands here: the protocol, what a name may be, the errors.

Every failure becomes an `Error` with one of five slugs, because those are the answers a person can
give: make room, give rights, mend the network, correct the place, look for the file.
"""

import re
from contextlib import AbstractContextManager
from typing import Protocol

from holdfast.errors import Error

UNFINISHED = ".part"  # suffix of a file that is being written
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class Upload(Protocol):
    """A file that is being written."""

    def write(self, data: bytes | memoryview) -> None:
        """The next bytes; taken over before this returns."""


class CheckpointStore(Protocol):
    """One place. Names are paths from there with `/`. All methods may be called by any thread.

    Raise `Error`: storage-full, storage-denied, storage-unreachable, storage-missing.
    """

    where: str  # for people

    def list(self, folder: str) -> list[str]:
        """Names of what is in a folder, `""` for the place itself, sorted; [] if there is none."""

    def size(self, name: str) -> int | None:
        """Bytes of a file; None if there is none."""

    def read(self, name: str, at: int = 0, length: int | None = None) -> bytes:
        """The bytes of a file from `at` on, to its end or exactly `length`."""

    def read_into(self, name: str, at: int, target: memoryview) -> None:
        """Fill `target` with the bytes of a file from `at` on."""

    def put(self, name: str, data: bytes) -> None:
        """Write a file at once: when this returns it is durable; never a part of it is seen."""

    def create(self, name: str) -> AbstractContextManager[Upload]:
        """Write a large file. Left without an exception it is durable; with one, as if never
        begun."""

    def remove(self, name: str) -> None:
        """Remove a file, and its folder with the last one. Fine if it is not there."""


def require_name(name: str) -> str:
    """The name itself, if it cannot lead out of its place. Raises ValueError."""
    if not all(_SEGMENT.fullmatch(segment) for segment in name.split("/")):
        raise ValueError(f"{name!r} is not a valid file name in a store")
    return name


def full(where: str, name: str, why: str) -> Error:
    """No room, or a quota is used up."""
    return Error(
        "storage-full",
        f"{where}: no space for {name}",
        why=why,
        help="holdfast checkpoint prune   (or lower `keep`, or add space)",
    )


def denied(where: str, name: str, why: str) -> Error:
    """Somebody has to give rights."""
    return Error(
        "storage-denied",
        f"{where}: access to {name} is denied",
        why=why,
        help="make sure that the account or user of the job may list, read, write and delete there"
        " (of a volume: owner and mode of its root folder; fsGroup where its driver supports it)",
    )


def unreachable(where: str, name: str, why: str) -> Error:
    """It does not answer, or answers with errors."""
    other = "; `endpoint`, or AWS_ENDPOINT_URL, names a server other than Amazon's"
    return Error(
        "storage-unreachable",
        f"{where}: {name} is unreachable",
        why=why,
        help="check that the storage is available; a running job tries again by itself"
        + (other if where.startswith("s3") else ""),
    )


def missing(where: str, name: str, why: str) -> Error:
    """Not there, or not all of it."""
    return Error(
        "storage-missing",
        f"{where}: {name} is missing",
        why=why,
        help=f"holdfast checkpoint list --at {where}",
    )


def unusable(place: str, why: str) -> Error:
    """Not a place at all."""
    return Error(
        "storage-place",
        f"{place} is not a valid checkpoint location",
        why=why,
        help="give a folder, or a URL such as s3://bucket/prefix",
    )
