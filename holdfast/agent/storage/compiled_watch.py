"""Compiled code of this node in its storage process: looked at now and then, handed out, fetched.

A compiler writes many files, some of them piece by piece. What lies there is told of once two looks
have found the same, so that nobody is sent where a compiler is at work. Fetches come one after the
other, in a thread of their own.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from holdfast import compiled_code
from holdfast.agent.storage import protocol
from holdfast.agent.storage.compiled_exchange import fetch, hand_out
from holdfast.agent.storage.peer_connection import PeerConnection
from holdfast.compiled_code import CompiledFile

LOOK_S = 5.0


class CompiledWatch:
    """Of one folder; an empty name: of none."""

    def __init__(self, folder: str, key: bytes, tell: Callable[[protocol.AnyNews], None]) -> None:
        self._folder, self._key, self._tell = Path(folder), key, tell
        self._exists = bool(folder)
        self._orders: queue.SimpleQueue[protocol.FetchCompiled] = queue.SimpleQueue()
        self._seen: tuple[CompiledFile, ...] = ()
        self._told = ""

    def start(self) -> None:
        """Begin to look, and to fetch what is ordered."""
        if self._exists:
            for act in (self._watch, self._fetch):
                threading.Thread(target=act, daemon=True).start()

    def hand_out(self, connection: PeerConnection) -> None:
        """To a node that has connected for it. Raises `OSError`."""
        if self._exists:
            hand_out(connection, self._folder, compiled_code.machine())

    def fetch(self, order: protocol.FetchCompiled) -> None:
        """Bring here what another node has, after what was ordered before."""
        self._orders.put(order)

    def look(self) -> None:
        """Tell of what lies there, if that is other than before and nobody writes."""
        now = compiled_code.listed(self._folder)
        still, self._seen = now == self._seen, now
        stamp = compiled_code.stamp(now)
        if still and stamp != self._told:
            self._told = stamp
            self._tell(protocol.CompiledSeen(stamp=stamp))

    def _watch(self) -> None:
        while True:
            with contextlib.suppress(OSError):  # a disk that is sick is found out elsewhere
                self.look()
            time.sleep(LOOK_S)

    def _fetch(self) -> None:
        while True:
            order = self._orders.get()
            came = fetch(order.address, self._key, self._folder, compiled_code.machine())
            self._tell(
                protocol.CompiledFetched(
                    name=order.name,
                    count=came.count,
                    size=came.size,
                    seconds=came.seconds,
                    why=came.why,
                )
            )
