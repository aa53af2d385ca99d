"""The storage process: `python -m holdfast.agent.storage FD PARENT`, started by the agent.

One loop looks at all storage pages and cells many times a second, which costs next to nothing while
nothing changes, and leaves the work to threads: checksums, the network and disks do not hold the
interpreter's lock. It is of low priority, dies with its agent, and ends loudly when anything of it
fails: the agent then starts another, which finds everything again.
"""

import contextlib
import ctypes
import os
import platform
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from holdfast import stray_signals
from holdfast.agent import processes
from holdfast.agent.notes import note
from holdfast.agent.storage import link_probe, protocol
from holdfast.agent.storage.changes import CellChanges
from holdfast.agent.storage.compiled_watch import CompiledWatch
from holdfast.agent.storage.copy_sender import CopySender, pool_for
from holdfast.agent.storage.copy_server import CopyServer
from holdfast.agent.storage.life_sign import life_signs
from holdfast.agent.storage.peer_connection import key_of, owner_of
from holdfast.agent.storage.sealing import Sealing
from holdfast.agent.storage.tier_saver import TierSaver, asked, passed
from holdfast.agent.storage.urgent_save import UrgentSave
from holdfast.checkpoint.arena import Arena
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.storage_page import StoragePage, WorkerInfo

LOOK_S = 0.02
LOOK_ANYWAY_S = 0.1  # what was begun may be over, or due again
NICE = 5
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # numbers of the system call
_BEST_EFFORT_LAST = 2 << 13 | 7


def main() -> None:
    """Serve until the agent is gone."""
    processes.die_with_parent(int(sys.argv[2]), signal.SIGKILL)
    stray_signals.outlive(note, signal.SIGHUP)
    for sig in (signal.SIGTERM, signal.SIGINT):  # the agent says when; it may need us to the end
        signal.signal(sig, signal.SIG_IGN)
    threading.excepthook = _die_loudly
    _step_back()
    sock = socket.socket(fileno=int(sys.argv[1]))
    setup = protocol.receive_order(sock)
    if not isinstance(setup, protocol.Setup):
        sys.exit("the agent exited before sending its setup")
    Storage(setup, sock).serve()


class Storage:
    """Everything this process looks after."""

    def __init__(self, setup: protocol.Setup, sock: socket.socket) -> None:
        self._sock = sock
        self._setup = setup
        self._storage_pages = [StoragePage(fd) for fd in setup.storage_pages]
        self._arenas = [Arena(fd) for fd in setup.arenas]
        key = _key(setup)
        self._sealing = Sealing([Arena(fd) for fd in setup.arenas])
        self._compiled = CompiledWatch(setup.compiled, key, self._tell)
        copy_server = CopyServer(
            [Arena(fd) for fd in setup.arenas], self._storage_pages, key, self._compiled.hand_out
        )
        listener = socket.socket(fileno=setup.listener)
        threading.Thread(target=copy_server.serve, args=(listener,), daemon=True).start()
        pool = pool_for(setup.arenas)
        pairs = zip((Arena(fd) for fd in setup.arenas), self._storage_pages, strict=True)
        self._copy_senders = [
            CopySender(arena, storage_page, key, pool) for arena, storage_page in pairs
        ]
        self._tier_savers = [
            TierSaver(place, setup.job, self._storage_pages, self._tell, owner_of(key))
            for place in setup.places
        ]
        self._infos: list[tuple[int, WorkerInfo | None]] = [(0, None)] * len(setup.arenas)
        self._changes = CellChanges(self._arenas)
        self._look_at = 0.0
        self._urgent = UrgentSave()
        self._released: Key | None = None
        self._settled: Key | None = None
        self._asked: dict[Key, int] = {}  # snapshots for durable tiers that are not settled yet

    def serve(self) -> None:
        """Until the agent is gone."""
        self._compiled.start()
        if self._tier_savers:
            threading.Thread(target=self._tell_attempt, daemon=True).start()
        signs = life_signs(self._setup, owner_of(_key(self._setup)), self._has_rank_0)
        while True:
            readable, _, _ = select.select([self._sock], [], [], LOOK_S)
            if readable and not self._obey():
                for sign in signs:
                    sign.end()
                os._exit(0)
            late = self._urgent.waits or time.monotonic() >= self._look_at
            if self._changes.any() or late:
                self._look_at = time.monotonic() + LOOK_ANYWAY_S
                self._look()

    def _tell(self, news: protocol.AnyNews) -> None:
        with contextlib.suppress(OSError):  # the agent is gone, and so are we at once
            protocol.send(self._sock, news)

    def _tell_attempt(self) -> None:
        """The disk of a node says nothing about others, but is better than nothing."""
        self._tell(
            protocol.NewestAttempt(attempt=max(one.newest_attempt() for one in self._tier_savers))
        )

    def _has_rank_0(self) -> bool:
        return any(info is not None and info.rank == 0 for _, info in self._infos)

    def _obey(self) -> bool:
        order = protocol.receive_order(self._sock)
        if isinstance(order, protocol.Warn):
            self._urgent.warn(order)
        if isinstance(order, protocol.FetchCompiled):
            self._compiled.fetch(order)
        if isinstance(order, protocol.MeasurePeer):
            threading.Thread(target=self._measure, args=(order,), daemon=True).start()
        return order is not None

    def _measure(self, order: protocol.MeasurePeer) -> None:
        found = link_probe.measure(order.address, _key(self._setup))
        self._tell(protocol.PeerMeasured(number=order.number, found=found))

    # ── looking ──

    def _look(self) -> None:
        infos = [self._info(rank) for rank in range(len(self._storage_pages))]
        self._sealing.look()
        for sender, info in zip(self._copy_senders, infos, strict=True):
            if info is not None:
                sender.look(info)
        known = [info for info in infos if info is not None]
        if len(known) < len(infos):
            return
        if self._tier_savers:
            self._look_at_tiers(known)
        committed = {one.tier: one.committed for one in self._tier_savers}
        copies = self._setup.copies
        safe = self._urgent.look(self._arenas, self._storage_pages, known, committed, copies)
        if safe is not None:
            self._tell(safe)

    def _info(self, rank: int) -> WorkerInfo | None:
        """What the worker said about itself; read again only when it has said something new."""
        storage_page, (seen, info) = self._storage_pages[rank], self._infos[rank]
        count = storage_page.info_count
        if count != seen or (count and info is None):
            info = storage_page.info()
            self._infos[rank] = (count, info)
        return info

    def _look_at_tiers(self, infos: Sequence[WorkerInfo]) -> None:
        for saver in self._tier_savers:
            saver.look(self._arenas, infos)
        attempt = infos[0].attempt
        present = {key: tiers for key, tiers in self._asked.items() if key.attempt == attempt}
        self._asked = present | asked(self._arenas, attempt)
        released = passed(self._asked, {one.tier: one.read for one in self._tier_savers})
        if released is not None and released != self._released:
            self._released = released
            for storage_page in self._storage_pages:
                storage_page.release(released)
        settled = passed(self._asked, {one.tier: one.settled for one in self._tier_savers})
        if settled is not None:
            self._asked = {key: tiers for key, tiers in self._asked.items() if key > settled}
            self._settle(settled)

    def _settle(self, key: Key) -> None:
        if key != self._settled:
            self._settled = key
            self._tell(protocol.Settled(attempt=key.attempt, step=key.step))


def _key(setup: protocol.Setup) -> bytes:
    return key_of(Path(setup.token_file).read_text().strip())


def _step_back() -> None:
    """Training comes first, on the processor and on disks."""
    os.nice(NICE)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, 1, 0, _BEST_EFFORT_LAST)


def _die_loudly(args: threading.ExceptHookArgs) -> None:
    threading.__excepthook__(args)
    os._exit(1)


if __name__ == "__main__":
    main()
