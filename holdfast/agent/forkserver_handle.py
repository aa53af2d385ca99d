"""The agent's end of its forkserver: start it, ask it, hear from it.

Requests are written at once and never waited for; answers come as callbacks of the event loop. One
object is one life of a forkserver: when it is gone, `on_gone` is called once and the object is of
no more use. One that is killed is gone for us as soon as the kernel begins to take it apart, which
takes a tenth of a second and more: what it forked dies with it in any case.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping

from holdfast.agent import fork_protocol, processes
from holdfast.agent.child_stderr import ChildStderr
from holdfast.agent.end_watch import watch_end
from holdfast.end_lock import EndLock


class ForkserverHandle:
    """One forkserver process and the socket to it."""

    def __init__(
        self,
        environment: Mapping[str, str],
        on_reply: Callable[[fork_protocol.AnyReply], None],
        on_gone: Callable[[], None],
    ) -> None:
        self._on_reply = on_reply
        self._on_gone = on_gone
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd, lock = theirs.fileno(), EndLock.create()
        self._stderr = ChildStderr()
        command = [sys.executable, "-P", "-m", "holdfast.agent.forkserver"]
        # Its own group: what kills the agent's whole group leaves it the moment to clean up.
        self._process = subprocess.Popen(
            [*command, str(fd), str(os.getpid()), str(lock)],
            env=dict(environment),
            pass_fds=[fd, lock],
            stdin=subprocess.DEVNULL,
            stderr=self._stderr.theirs,
            process_group=0,
        )
        theirs.close()
        self._end_lock = EndLock.of(lock)
        self._stderr.read()
        self._death: processes.ProcessExit | None = None
        self._gone = False  # by itself
        self.ready = False
        self.replaced = False  # it has said itself that another is needed
        asyncio.get_running_loop().add_reader(self._sock, self._readable)

    @property
    def pid(self) -> int:
        """Process id of the forkserver."""
        return self._process.pid

    def prepare(self, program: fork_protocol.Program, preload: fork_protocol.Preload) -> None:
        """Have it load everything; `Ready` comes back, or `Unfit`."""
        self._send(fork_protocol.Prepare(program=program, preload=preload))

    def fork(self, order: fork_protocol.Fork, fds: list[int]) -> None:
        """Have it make a child; `Forked` or `Failed` comes back, later `Died`."""
        self._send(order, fds)

    def signal(self, id_: int, sig: int) -> None:
        """Have it signal a child and its process group."""
        self._send(fork_protocol.Signal(id=id_, signal=sig))

    def _send(self, request: fork_protocol.AnyRequest, fds: list[int] | None = None) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # on_gone follows
            fork_protocol.send(self._sock, request, fds)

    def _readable(self) -> None:
        while True:
            try:
                reply = fork_protocol.receive_reply(self._sock)
            except BlockingIOError:
                return
            except ConnectionResetError:
                reply = None
            if reply is None:
                self._is_gone()
                return
            self._on_reply(reply)

    def has_loaded(self) -> None:
        """It can fork now."""
        self.ready = True
        watch_end(self._end_lock, self._look)

    def _look(self) -> None:
        """Its lock is free."""
        if self._sock.fileno() >= 0 and (ends := processes.ending_of(self.pid)) is not None:
            self._death = ends
            self._is_gone()

    def _is_gone(self) -> None:
        self._hang_up()
        self.kill()
        self._gone = True
        if self.ready or not self.running:
            self._on_gone()

    def _hang_up(self) -> None:
        asyncio.get_running_loop().remove_reader(self._sock)
        self._sock.close()

    def reaped(self, death: processes.ProcessExit) -> None:
        """Its process has ended and was waited for. What it has told before counts, and its orphans
        are adopted, before they are waited for: nobody else would know how they ended."""
        self._death = death
        self._process.returncode = death.exit_code if death.signal is None else -death.signal
        if self._sock.fileno() >= 0:
            self._readable()
        elif self._gone and not self.ready:
            self._on_gone()  # only now it is known how it ended

    @property
    def ending(self) -> str:
        """How it ended, or ends; empty while that is not known: it is before orphans are reaped."""
        return "" if self._death is None else self._death.words

    @property
    def last_words(self) -> str:
        """Why it ended, if it said that; else how."""
        return self._stderr.last_words() or self.ending

    @property
    def running(self) -> bool:
        """Whether its process has not been reaped yet."""
        return self._process.returncode is None

    def kill(self) -> None:
        """End it by force; what it forked dies with it."""
        if self.running:
            processes.signal_one(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Hang up: it kills every group it started and ends."""
        if self._sock.fileno() >= 0:
            self._hang_up()
