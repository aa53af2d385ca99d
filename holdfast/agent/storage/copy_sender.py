"""Sending the private parts of this node's ranks to those that keep copies of them.

For each rank the newest snapshot that is whole, sealed and of this attempt is offered to every
peer; only when all of them have it does the rank's storage page say so. A peer that is away is
tried again until a newer snapshot takes its place. Training may overwrite a cell while it is sent:
then the checksum at the other end does not match, nothing is kept, and the newer snapshot is next.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from holdfast.agent.notes import note
from holdfast.agent.storage.copy_server import CopyAnswer, CopyOffer
from holdfast.agent.storage.peer_connection import BLOCK_BYTES, PeerConnection, StrangerError, dial
from holdfast.checkpoint.arena import Arena, Cell, CellHeader, StatePart
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.storage_page import Peer, StoragePage, WorkerInfo
from holdfast.checkpoint.tiers import SnapshotFlag

RETRY_S = 0.2  # after a failure; doubled each time
RETRY_MAX_S = 5.0


class CopyCandidate(NamedTuple):
    """A snapshot that may be sent, and the older one that peers must keep meanwhile."""

    key: Key
    cell: Cell
    keep: Key | None


def newest(arena: Arena, info: WorkerInfo) -> CopyCandidate | None:
    """The newest whole private part of this attempt that is to be copied by us, once sealed.

    The rank's other cell holds what all ranks could go back to: peers keep it, too.
    """
    held = {h.key: (h, cell) for cell in arena.cells(StatePart.PRIVATE) if (h := cell.header())}
    ours = [
        key for key, (h, _) in held.items() if h.flags & SnapshotFlag.COPY and _belongs(h, info)
    ]
    if not ours:
        return None
    *older, key = sorted(ours)
    cell = held[key][1]
    if key.attempt != info.attempt or cell.sealed() is None:
        return None
    return CopyCandidate(key, cell, older[-1] if older else info.parent)


def _belongs(header: CellHeader, info: WorkerInfo) -> bool:
    return header.attempt == info.attempt or header.key == info.parent


class CopySender:
    """What has been sent of one rank to whom. `look` is called often and never waits."""

    def __init__(
        self, arena: Arena, storage_page: StoragePage, key: bytes, pool: ThreadPoolExecutor
    ) -> None:
        self._arena = arena
        self._storage_page = storage_page
        self._key = key
        self._pool = pool
        self._lock = threading.Lock()
        self._attempt = 0
        self._connections: dict[Peer, PeerConnection] = {}
        self._busy: set[Peer] = set()
        self._has: dict[Peer, Key] = {}
        self._pause: dict[Peer, tuple[float, float]] = {}  # not before, and how long next time

    def look(self, info: WorkerInfo) -> None:
        """Send what is new to those who are not being sent anything just now."""
        found = newest(self._arena, info) if info.peers else None
        if found is None:
            return
        with self._lock:
            self._begin(info)
            lacking = [peer for peer in info.peers if self._has.get(peer) != found.key]
            if not lacking and self._storage_page.newest_copied != found.key:
                self._storage_page.copied(found.key)
            now = time.monotonic()
            ready = [p for p in lacking if p not in self._busy and self._due(p, now)]
            self._busy.update(ready)
        for peer in ready:
            self._pool.submit(self._push, peer, info, found)

    def _begin(self, info: WorkerInfo) -> None:
        """Peers may have changed with the attempt, be it behind the same address."""
        if info.attempt == self._attempt:
            return
        self._attempt = info.attempt
        self._has.clear()
        self._pause.clear()
        for peer in self._connections.keys() - self._busy - set(info.peers):
            self._hang_up(peer)

    def _due(self, peer: Peer, now: float) -> bool:
        return now >= self._pause.get(peer, (0.0, 0.0))[0]

    def _push(self, peer: Peer, info: WorkerInfo, found: CopyCandidate) -> None:
        known = peer in self._connections
        try:
            kept, why = self._offer(peer, info, found)
        except (OSError, StrangerError) as error:
            self._hang_up(peer)
            kept, why = False, "" if known else str(error)  # it may only have been idle too long
        with self._lock:
            self._busy.discard(peer)
            if kept:
                self._has[peer] = found.key
                self._pause.pop(peer, None)
            elif why:
                self._later(peer, why)

    def _later(self, peer: Peer, why: str) -> None:
        """Said once, not at every try."""
        _, last = self._pause.get(peer, (0.0, 0.0))
        if not last:
            note(f"storage: no copy to rank {peer.rank} at {peer.address}: {why}; trying again")
        wait = min(2 * last, RETRY_MAX_S) or RETRY_S
        self._pause[peer] = (time.monotonic() + wait, wait)

    def _offer(self, peer: Peer, info: WorkerInfo, found: CopyCandidate) -> tuple[bool, str]:
        """Whether the peer now has it, else why not; no reason where it was overtaken."""
        header, checksum = found.cell.header(), found.cell.sealed()
        if header is None or checksum is None or header.key != found.key:
            return False, ""
        connection = self._connections.get(peer)
        if connection is None:
            connection = self._connections[peer] = dial(peer.address, self._key)
        offer = CopyOffer(
            attempt=info.attempt,
            local_rank=peer.local_rank,
            header=tuple(header),
            checksum=checksum,
            keep=found.keep,
        )
        connection.say(offer)
        answer = connection.hear(CopyAnswer)
        if answer.word == "send":
            found.cell.reserve(header.payload_bytes, touch=False)
            payload = found.cell.payload[: header.payload_bytes]
            for at in range(0, len(payload), BLOCK_BYTES):
                connection.send(payload[at : at + BLOCK_BYTES])
            answer = connection.hear(CopyAnswer)
        return answer.word == "kept", self._reason(found, answer)

    def _reason(self, found: CopyCandidate, answer: CopyAnswer) -> str:
        header = found.cell.header()
        overtaken = header is None or header.key != found.key
        if answer.word == "damaged" and overtaken:
            return ""
        return answer.why or f"it arrived {answer.word}"

    def _hang_up(self, peer: Peer) -> None:
        connection = self._connections.pop(peer, None)
        if connection is not None:
            connection.close()


def pool_for(ranks: Sequence[object]) -> ThreadPoolExecutor:
    """Threads for sending: each rank to two peers at a time."""
    return ThreadPoolExecutor(2 * len(ranks), thread_name_prefix="push")
