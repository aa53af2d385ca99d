"""Whether another job of the same name is alive in a place: each job shows there that it lives.

The node of a job's rank 0 writes the job's file below `alive/` anew every few seconds, and removes
it when it ends (`agent/storage/life_sign.py`). A job that is about to continue from what lies there
looks at the files of others (`rival`). One that changes belongs to a live job, one that does not
for `SILENT_S` to a job that was killed; it is removed, and at once where the process that it names
would be seen here, and is not. No clock is compared with that of another machine. A live job may
just be ending, so it is given `PATIENCE_S` to do so.

This tells mistakes and prevents none for certain: jobs that look at the same time see nothing of
each other, and one whose storage hangs looks as if it were dead. What each commits is kept apart by
attempt and owner all the same (`checkpoint-fenced`).
"""

import functools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from holdfast.boots import boot_id
from holdfast.checkpoint.stores import CheckpointStore
from holdfast.decoding import known
from holdfast.errors import Error

ALIVE = "alive"
BEAT_S = 5.0  # from one life sign to the next
SILENT_S = 30.0  # without one, and a job is taken to be dead
PATIENCE_S = 60.0  # for a job that is ending: its pods may live this long
LOOK_S = 1.0
_SUFFIX = ".json"
_PIDS = Path("/proc/self/ns/pid")


class LifeSigned(msgspec.Struct, frozen=True, kw_only=True):
    """What a job says in its file. Elsewhere only that it changes is relied on."""

    job: str
    owner: str
    node: str
    host: str
    processes: str  # where `pid` means this process, see `processes_here`
    pid: int  # without which the node is dead
    beat: int
    at: float  # seconds since 1970, on that host


def file_of(owner: str) -> str:
    """The file of a job."""
    return f"{ALIVE}/{owner}{_SUFFIX}"


@functools.cache
def processes_here() -> str:
    """What all have in common that see the same processes under the same numbers; empty if that
    cannot be told."""
    try:
        return f"{boot_id()} {os.readlink(_PIDS)}"
    except OSError:
        return ""


def others(store: CheckpointStore, owner: str) -> dict[str, bytes]:
    """The files of other jobs, by name. Raises `Error` storage-*."""
    return dict(_others(store, owner))


def _others(store: CheckpointStore, owner: str) -> Iterator[tuple[str, bytes]]:
    names = (f"{ALIVE}/{name}" for name in store.list(ALIVE) if name.endswith(_SUFFIX))
    for name in (name for name in names if name != file_of(owner)):
        try:
            yield name, store.read(name)
        except Error as error:
            if error.slug != "storage-missing":
                raise


def rival(
    store: CheckpointStore,
    owner: str,
    *,
    waits: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> str | None:
    """Who else lives here, in words for people; None if nobody does. `waits` is called if that
    takes a while: there are files of others.

    Raises `Error` storage-*.
    """
    begun = clock()
    seen = others(store, owner)
    changed = dict.fromkeys(seen, begun)
    if not all(map(_died_here, seen.values())):
        waits()
    while seen:
        if not any(map(_died_here, seen.values())):
            pause(LOOK_S)
        found, now = others(store, owner), clock()
        changed |= {name: now for name, data in found.items() if data != seen.get(name)}
        for name in [n for n in found if now - changed[n] >= SILENT_S or _died_here(found[n])]:
            store.remove(name)
            del found[name]
        seen = found
        if seen and now - begun >= PATIENCE_S:
            newest = max(seen, key=lambda name: changed[name])
            return _named(seen[newest], f"{store.where}/{newest}")
    return None


def _died_here(data: bytes) -> bool:
    """Whether the process of this node would be seen here, and is not."""
    sign = _read(data)
    near = sign is not None and sign.processes and sign.processes == processes_here()
    return bool(near and sign is not None and not Path(f"/proc/{sign.pid}").exists())


def _named(data: bytes, file: str) -> str:
    sign = _read(data)
    if sign is None:
        return f"{file} is being renewed"
    return f"its node {sign.node} on {sign.host} keeps renewing {file}"


def _read(data: bytes) -> LifeSigned | None:
    try:
        return msgspec.json.decode(data, type=known(LifeSigned))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
