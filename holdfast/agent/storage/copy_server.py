"""Keeping copies for ranks of other nodes: a server that writes into the arenas of this node.

A copy lands in a cell beside the one that its owner still counts on, and becomes whole last, after
its checksum has matched: whatever dies in between, the older copy is untouched. One thread for each
connection; strangers are few, short-lived and cost one thread each at most.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence

import msgspec

from holdfast.agent.notes import note
from holdfast.agent.storage import link_probe
from holdfast.agent.storage.peer_connection import (
    BLOCK_BYTES,
    COMPILED,
    LINKS,
    SILENCE_S,
    PeerConnection,
    StrangerError,
    admit,
)
from holdfast.checkpoint.arena import STRIDE, Arena, Cell, CellHeader, StatePart
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.seal import Seal
from holdfast.checkpoint.storage_page import StoragePage
from holdfast.errors import Error

STRANGERS_MAX = 32  # connections at a time that have not shown yet who they are
IDLE_S = 600.0


class CopyOffer(msgspec.Struct, frozen=True, kw_only=True):
    """A copy to be kept: the header of its cell, its seal, and what must not be given up for it."""

    attempt: int  # of the sender, not of the snapshot
    local_rank: int  # whose arena is to take it
    header: tuple[int, ...]
    checksum: int
    keep: Key | None = None


class CopyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """To an offer: `send` it, it is `kept` (already), or why it is refused. And after the payload:
    it is `kept`, or arrived `damaged`."""

    word: str
    why: str = ""


class CopyServer:
    """Copies that this node takes. One writer at a time for each arena. `hand_out` answers those
    that have come for compiled code."""

    def __init__(
        self,
        arenas: Sequence[Arena],
        storage_pages: Sequence[StoragePage],
        key: bytes,
        hand_out: Callable[[PeerConnection], None],
    ) -> None:
        self._arenas = arenas
        self._storage_pages = storage_pages
        self._key = key
        self._hand_out = hand_out
        self._locks = [threading.Lock() for _ in arenas]
        self._strangers = threading.Semaphore(STRANGERS_MAX)

    def serve(self, listener: socket.socket) -> None:
        """Take connections for ever, each in a thread of its own."""
        while True:
            try:
                sock, _ = listener.accept()
            except OSError as error:  # out of descriptors, or the other side was quicker
                note(f"storage: no connection: {error}")
                continue
            if not self._strangers.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(target=self._talk, args=(sock,), daemon=True).start()

    def _talk(self, sock: socket.socket) -> None:
        with sock:
            connection = self._admitted(sock)
            if connection is None:
                return
            with contextlib.suppress(OSError):  # it hung up, or must
                if connection.purpose == COMPILED:
                    self._hand_out(connection)
                    return
                if connection.purpose == LINKS:
                    link_probe.answer(connection)
                    return
                while True:
                    self._take_one(connection)

    def _admitted(self, sock: socket.socket) -> PeerConnection | None:
        try:
            return admit(sock, self._key)
        except (OSError, StrangerError):
            return None
        finally:
            self._strangers.release()

    def _take_one(self, connection: PeerConnection) -> None:
        connection.patience(IDLE_S)
        offer = connection.hear(CopyOffer)
        connection.patience(SILENCE_S)
        header = _header_of(offer)
        if header is None or not 0 <= offer.local_rank < len(self._arenas):
            raise ConnectionError("invalid offer")
        if (why := self._refusal(offer)) is not None:
            connection.say(CopyAnswer(word="refused", why=why))
            return
        with self._locks[offer.local_rank]:
            self._take(connection, offer, header, self._arenas[offer.local_rank])

    def _refusal(self, offer: CopyOffer) -> str | None:
        """Writers of a past attempt may not touch what the present one relies on."""
        info = self._storage_pages[offer.local_rank].info()
        if info is not None and offer.attempt < info.attempt:
            return f"attempt {offer.attempt} is over: this is attempt {info.attempt}"
        return None

    def _take(
        self, connection: PeerConnection, offer: CopyOffer, header: CellHeader, arena: Arena
    ) -> None:
        held = arena.find(StatePart.BUDDY, header.key, header.rank)
        if held is not None and held.sealed() == offer.checksum and held.intact():
            connection.say(CopyAnswer(word="kept"))
            return
        cell = arena.target_for(header.rank, offer.keep)
        try:
            cell.reserve(header.payload_bytes)
        except (Error, OSError) as error:
            connection.say(CopyAnswer(word="refused", why=f"no room: {error}"))
            return
        cell.begin()
        connection.say(CopyAnswer(word="send"))
        if _receive(connection, cell, header) != offer.checksum:
            cell.discard()
            connection.say(CopyAnswer(word="damaged"))
            return
        cell.commit(header, offer.checksum)
        connection.say(CopyAnswer(word="kept"))


def _receive(connection: PeerConnection, cell: Cell, header: CellHeader) -> int:
    """Fill the cell; the checksum of what came, taken while each block is still in the cache."""
    payload, digest = cell.payload[: header.payload_bytes], Seal()
    for at in range(0, len(payload), BLOCK_BYTES):
        block = payload[at : at + BLOCK_BYTES]
        connection.receive(block)
        digest.update(block)
    return digest.intdigest()


def _header_of(offer: CopyOffer) -> CellHeader | None:
    try:
        header = CellHeader(*offer.header)
    except TypeError:
        return None
    sizes = header.data_bytes, header.index_bytes
    return header if all(0 <= size < STRIDE // 4 for size in sizes) else None
