"""Which checks there are, in which processes they run, and how long each process may take."""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec

HOST = "holdfast.checks.host"
DEVICES = "holdfast.checks.devices"
RANKS = "holdfast.checks.ranks"
TOOLS = "holdfast.checks.tools"
DISK = "disk "  # names of checks of a disk begin with it
FILE_PREFIX = ".holdfast-check-"
MIB = 1 << 20


class CheckOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a process that checks is told, as JSON in its only argument."""

    check: str = ""  # of several that the module has
    bytes: int = 0
    file: str = ""
    deadline_s: float = 60.0


class CheckGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One process and the checks that it is to answer for."""

    names: tuple[str, ...]
    module: str
    order: CheckOrder

    @property
    def leaves(self) -> tuple[Path, ...]:
        """Files that it removes itself unless it is killed."""
        return (Path(self.order.file),) if self.order.file else ()


def groups(places: Sequence[str], *, quick: bool) -> list[CheckGroup]:
    """Everything there is to check, in order; `quick` leaves out what takes longer than seconds.

    `places` are folders in which files are written, read and removed.
    """
    found = [
        _host("clock"),
        _host("shared memory"),
        _host("memory", (64 if quick else 512) * MIB),
        *(_disk(place, (8 if quick else 64) * MIB) for place in places),
        CheckGroup(
            names=("matmul", "device memory", "model step"),
            module=DEVICES,
            order=CheckOrder(bytes=(256 if quick else 4096) * MIB, deadline_s=90.0),
        ),
    ]
    if quick:
        return found
    return [
        *found,
        CheckGroup(
            names=("model step of 2 ranks", "all-reduce", "neighbour"),
            module=RANKS,
            order=CheckOrder(bytes=32 * MIB, deadline_s=90.0),
        ),
        _tool("dcgmi diag", 180.0),
        _tool("nccl-tests", 120.0),
    ]


def nearest_folder(place: str) -> str:
    """The folder, or the nearest above it that exists: it is on the same disk, unless a mount is
    missing."""
    folder = Path(place).absolute()
    return str(next(path for path in (folder, *folder.parents) if os.path.isdir(path)))


def _host(check: str, size: int = 0) -> CheckGroup:
    order = CheckOrder(check=check, bytes=size, deadline_s=60.0)
    return CheckGroup(names=(check,), module=HOST, order=order)


def _disk(place: str, size: int) -> CheckGroup:
    file = os.path.join(place, f"{FILE_PREFIX}{secrets.token_hex(4)}")
    order = CheckOrder(check="disk", bytes=size, file=file, deadline_s=60.0)
    return CheckGroup(names=(f"{DISK}{place}",), module=HOST, order=order)


def _tool(name: str, deadline_s: float) -> CheckGroup:
    order = CheckOrder(check=name, deadline_s=deadline_s)
    return CheckGroup(names=(name,), module=TOOLS, order=order)
