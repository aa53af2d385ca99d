"""The process that has everything loaded and forks all workers of a node.

`python -m holdfast.agent.forkserver FD PARENT LOCK` is started by the agent. It imports torch and
the other preloads once, says `Ready`, and then forks a child for each `Fork`. A child leaves the
loop, unwinds to the top of this module and becomes the worker there, so that the interpreter ends
the way it would had the script been started by hand.

It stays single-threaded, because only the forking thread lives on in a child; a module that would
leave a thread behind is done without (`preloading`). It dies with its agent: at the end of the
socket, or by the death signal, it kills every group it started.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType

from holdfast import stray_signals
from holdfast.agent import child, fork_protocol, preloading, processes
from holdfast.agent.notes import note
from holdfast.end_lock import EndLock

_HELD_BACK = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}


def main() -> None:
    """Serve until the agent is gone; in a forked child, become what was asked for."""
    parent = int(sys.argv[2])
    processes.die_with_parent(parent, signal.SIGTERM)
    stray_signals.outlive(note, signal.SIGHUP)
    EndLock.of(int(sys.argv[3])).hold()
    born = Forkserver(socket.socket(fileno=int(sys.argv[1]))).serve()
    if born is not None:
        child.become(born)


class Forkserver:
    """Children by id, and the two things it listens to: the agent and its own signals.

    Every id in `_pids` is a child that has not been reaped, so its number is safe to signal.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pids: dict[int, int] = {}
        self._program = fork_protocol.Program()
        self._asked_to_end = False
        self._wake, self._wake_write = socket.socketpair()

    def serve(self) -> child.ForkedChild | None:
        """Prepare, then fork on request. Returns only in a child; the server itself exits."""
        first = fork_protocol.receive_request(self._sock)
        if first is None or not isinstance(first[0], fork_protocol.Prepare):
            sys.exit("the agent exited before sending its setup")
        self._program = first[0].program
        if unfit := prepare(first[0], self._tell_import):
            self._tell(fork_protocol.Unfit(modules=unfit))
            os._exit(0)
        self._listen_to_signals()
        self._tell(fork_protocol.Ready())
        while not self._asked_to_end:
            readable, _, _ = select.select([self._sock, self._wake], [], [])
            if self._wake in readable:
                self._wake.recv(4096)
            self._report_deaths()
            if self._sock in readable and (born := self._next_request()):
                return born
        self._kill_all()
        os._exit(0)

    def _tell_import(self, module: str) -> None:
        self._tell(fork_protocol.Importing(module=module))

    def _listen_to_signals(self) -> None:
        """Only now: a preloaded module may have set handlers of its own."""
        self._wake.setblocking(False)
        self._wake_write.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _only_wake)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, _signal: int, _frame: FrameType | None) -> None:
        self._asked_to_end = True

    def _next_request(self) -> child.ForkedChild | None:
        try:
            received = fork_protocol.receive_request(self._sock)
        except ConnectionResetError:
            received = None
        if received is None:
            self._asked_to_end = True
            return None
        match received:
            case (fork_protocol.Fork() as order, fds):
                return self._fork(order, fds)
            case (fork_protocol.Signal(id=id_, signal=sig), _):
                if id_ in self._pids:
                    processes.signal_group(self._pids[id_], sig)
        return None

    def _fork(self, order: fork_protocol.Fork, fds: list[int]) -> child.ForkedChild | None:
        """Fork; in the child, everything that belongs to the server is closed."""
        server = os.getpid()
        _flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
        try:
            pid = os.fork()
        except OSError as error:
            self._tell(fork_protocol.ForkFailed(id=order.id, why=str(error)))
            pid = -1
        if pid == 0:
            for sock in (self._sock, self._wake, self._wake_write):
                sock.close()
            named = dict(zip(order.fds, fds, strict=True))
            program = order.program or self._program
            return child.ForkedChild(order, named, program, server, self._program.root)
        self._note_child(order.id, pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
        for fd in fds:
            os.close(fd)
        return None

    def _note_child(self, id_: int, pid: int) -> None:
        if pid < 0:
            return
        with contextlib.suppress(OSError):  # the child does it too: whoever is first
            os.setpgid(pid, pid)
        self._pids[id_] = pid
        self._tell(fork_protocol.Forked(id=id_, pid=pid))

    def _report_deaths(self) -> None:
        ids = {pid: id_ for id_, pid in self._pids.items()}
        for death in processes.reap(ids.__contains__):
            if death.pid in ids:
                id_ = ids[death.pid]
                del self._pids[id_]
                self._tell(
                    fork_protocol.Died(
                        id=id_, exit_code=death.exit_code, signal=death.signal, at=death.at
                    )
                )

    def _tell(self, reply: fork_protocol.AnyReply) -> None:
        try:
            fork_protocol.send(self._sock, reply)
        except OSError:
            self._asked_to_end = True

    def _kill_all(self) -> None:
        for pid in self._pids.values():
            processes.signal_group(pid, signal.SIGKILL)
        _flush()


def prepare(order: fork_protocol.Prepare, on_import: Callable[[str], None]) -> dict[str, str]:
    """Load what every worker needs; returns what has to be done without, and why."""
    _go_to(order.program)
    began = time.monotonic()
    if unfit := preloading.load(order.program, order.preload, on_import):
        return unfit
    gc.collect()
    gc.freeze()  # shared pages are not written to by the collector of a child
    threads = len(os.listdir("/proc/self/task"))
    took = time.monotonic() - began
    note(f"forkserver: ready after {took:.2f} s, {threads} threads")
    return {}


def _go_to(program: fork_protocol.Program) -> None:
    """Working folder and `sys.path` as the script will find them."""
    try:
        os.chdir(program.workdir)
    except OSError as error:
        note(f"forkserver: working folder: {error}")
    entry = program.path_entry()
    if entry and not os.environ.get("PYTHONSAFEPATH"):  # -P was for what we import ourselves
        sys.path.insert(0, entry)
    sys.path[:] = map(program.located, sys.path)


def _only_wake(_signal: int, _frame: FrameType | None) -> None:
    """The wake-up socket does the work."""


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


if __name__ == "__main__":
    main()
