"""A sign of life of the job in a place of its checkpoints, for other jobs that would use it, too.

The storage process of rank 0's node gives it. That of a node which had rank 0 before may go on: the
job lives just the same. A process that could give none for a while (its machine was suspended, its
storage did not answer) may have been taken for dead; if it then finds another job there, it gives
none any more, because the other one must not be stopped by a job that it has succeeded.
"""

import os
import socket
import threading
import time
from collections.abc import Callable

import msgspec

from holdfast.agent.notes import note
from holdfast.agent.storage import protocol
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.presence import (
    BEAT_S,
    SILENT_S,
    LifeSigned,
    file_of,
    others,
    processes_here,
)
from holdfast.checkpoint.stores import CheckpointStore
from holdfast.errors import Error

FIRST_S = 0.5  # between looks for a rank 0
END_S = 0.8  # for the last word; the agent waits a little longer


class LifeSign:
    """One place, and the thread that writes there."""

    def __init__(self, where: str, sign: LifeSigned, has_rank_0: Callable[[], bool]) -> None:
        self._where = where
        self._sign = sign
        self._has_rank_0 = has_rank_0
        self._store: CheckpointStore | None = None
        self._written = b""
        self._at = 0.0  # time since boot of the last one, with that in which the machine slept
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """From now on, whenever rank 0 is here."""
        self._thread.start()

    def end(self) -> None:
        """Take the file away, if it is as we left it. Takes `END_S` at most."""
        self._over.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        while not self._over.wait(BEAT_S if self._written else FIRST_S):
            if self._has_rank_0():
                self._tried(self._beat)
        if self._written:
            self._tried(self._take_away)

    def _tried(self, act: Callable[[CheckpointStore], None]) -> None:
        """Whoever cannot write here says so when it saves."""
        try:
            if self._store is None:
                self._store = open_store(self._where)
            act(self._store)
        except Error:
            self._store = None

    def _beat(self, store: CheckpointStore) -> None:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        if self._written and now - self._at > SILENT_S / 2 and others(store, self._sign.owner):
            there = f"another job of this name now saves in {self._where}"
            note(f"storage: {there}; this one no longer marks it as in use")
            self._over.set()
            return
        self._sign = msgspec.structs.replace(self._sign, beat=self._sign.beat + 1, at=time.time())
        data = msgspec.json.encode(self._sign)
        store.put(file_of(self._sign.owner), data)
        self._written, self._at = data, now

    def _take_away(self, store: CheckpointStore) -> None:
        name = file_of(self._sign.owner)
        if store.size(name) is not None and store.read(name) == self._written:
            store.remove(name)


def life_signs(setup: protocol.Setup, owner: str, has_rank_0: Callable[[], bool]) -> list[LifeSign]:
    """One for each place that other jobs may use, from now on."""
    shared = (place.where for place in setup.places if not place.own)
    found = [life_sign(where, setup.job, setup.node, owner, has_rank_0) for where in shared]
    for sign in found:
        sign.start()
    return found


def life_sign(
    where: str, job: str, node: str, owner: str, has_rank_0: Callable[[], bool]
) -> LifeSign:
    """That of a job in a place, by this node."""
    sign = LifeSigned(
        job=job,
        owner=owner,
        node=node,
        host=socket.gethostname(),
        processes=processes_here(),
        pid=os.getppid(),  # the agent: it starts another storage process should this one die
        beat=0,
        at=0.0,
    )
    return LifeSign(where, sign, has_rank_0)
