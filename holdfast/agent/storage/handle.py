"""The agent's end of its storage process: start it, tell it, hear from it, start it again.

The listening socket, arenas and storage pages are the agent's, so a storage process may die at any
moment without anybody but the log noticing: the next one finds everything where it was.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping

from holdfast.agent import processes
from holdfast.agent.notes import note
from holdfast.agent.storage import protocol
from holdfast.checkpoint.storage_page import StoragePage

FIRST_DELAY_S = 0.1
LAST_DELAY_S = 10.0
STEADY_S = 30.0  # one that lived for this long died of something new
LAST_WORD_S = 1.0


class StorageHandle:
    """One storage process at a time, from `open` to `close`."""

    def __init__(
        self,
        setup: protocol.Setup,
        environment: Mapping[str, str],
        on_news: Callable[[protocol.AnyNews], None],
        address: str = "",
    ) -> None:
        self.address = address  # HOST:PORT, where other nodes find it
        self._setup = setup
        self._storage_pages = [StoragePage(fd) for fd in setup.storage_pages]
        self._environment = environment
        self._on_news = on_news
        self._sock: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._delay = FIRST_DELAY_S
        self._started_at = 0.0
        self._warning: protocol.Warn | None = None
        self._fetches: dict[str, protocol.FetchCompiled] = {}  # under way, by the node asked

    def open(self) -> None:
        """Start it."""
        if self._closed:
            return
        self._started_at = asyncio.get_running_loop().time()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fds = [
            theirs.fileno(),
            self._setup.listener,
            *self._setup.arenas,
            *self._setup.storage_pages,
        ]
        command = [sys.executable, "-P", "-m", "holdfast.agent.storage"]
        self._process = subprocess.Popen(
            [*command, str(theirs.fileno()), str(os.getpid())],
            env=dict(self._environment),
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
        theirs.close()
        self._sock = ours
        asyncio.get_running_loop().add_reader(ours, self._readable)
        self._tell(self._setup)
        if self._warning is not None:
            self._tell(self._warning)
        for fetch in self._fetches.values():
            self._tell(fetch)

    def open_if_wanted(self) -> None:
        """Start it once a worker has something to be kept; a script that tracks nothing does not
        pay for it."""
        if self._process is None and any(
            storage_page.info_count for storage_page in self._storage_pages
        ):
            self.open()

    def open_once(self) -> None:
        """Start it, if there was none so far."""
        if self._process is None:
            self.open()

    @property
    def pid(self) -> int:
        """Its process id; 0 while there is none."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if self._process is not None and running else 0

    def warn(self, warning: protocol.Warn) -> None:
        """Pass a warning on; to the next one, too, should this one die."""
        self._warning = warning
        self._tell(warning)

    def fetch(self, order: protocol.FetchCompiled) -> None:
        """Have it bring compiled code here, also the next one, should this one die; start it if
        there is none."""
        self._fetches[order.name] = order
        if self._process is None:
            self.open()
        else:
            self._tell(order)

    def measure(self, order: protocol.MeasurePeer) -> None:
        """Have it measure a link; start it if there is none. Should it die, nobody answers."""
        self.open_once()
        self._tell(order)

    def reaped(self, death: processes.ProcessExit) -> None:
        """It has ended and was waited for: start another, later and later if that goes on."""
        assert self._process is not None
        self._process.returncode = death.exit_code if death.signal is None else -death.signal
        self._hang_up()
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        if loop.time() - self._started_at > STEADY_S:
            self._delay = FIRST_DELAY_S
        note(f"agent: the storage process has died; restarting it in {self._delay:g} s")
        loop.call_later(self._delay, self.open)
        self._delay = min(2 * self._delay, LAST_DELAY_S)

    def close(self) -> None:
        """End it. Nothing it does is worth waiting for, except that it says in a moment that the
        job does not live any more (`life_sign`)."""
        self._closed = True
        self._hang_up()
        asyncio.get_running_loop().call_later(LAST_WORD_S, self._kill)

    def _kill(self) -> None:
        if self.pid:
            processes.signal_one(self.pid, signal.SIGKILL)

    def _tell(self, word: protocol.AnyOrder) -> None:
        if self._sock is not None:
            with contextlib.suppress(OSError):  # it has just died; `reaped` follows
                protocol.send(self._sock, word)

    def _readable(self) -> None:
        while self._sock is not None:
            try:
                news = protocol.receive_news(self._sock)
            except BlockingIOError:
                return
            except ConnectionResetError:
                news = None
            if news is None:
                self._hang_up()
                return
            if isinstance(news, protocol.CompiledFetched):
                self._fetches.pop(news.name, None)
            self._on_news(news)

    def _hang_up(self) -> None:
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
            self._sock = None
