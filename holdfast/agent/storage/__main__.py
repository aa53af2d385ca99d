"""The storage process: `python -m holdfast.agent.storage FD PARENT`, started by the agent.

One loop looks at all boards and cells many times a second, which costs next to nothing while
nothing changes, and leaves the work to threads: checksums, the network and disks do not hold the
interpreter's lock. It is of low priority, dies with its agent, and ends loudly when anything of it
fails: the agent then starts another, which finds everything again.
"""

import ctypes
import os
import platform
import select
import signal
import socket
import sys
import threading
from pathlib import Path

from holdfast.agent import processes
from holdfast.agent.storage import words
from holdfast.agent.storage.channel import key_of
from holdfast.agent.storage.keeping import Keeping
from holdfast.agent.storage.pushing import Pushing, pool_for
from holdfast.agent.storage.sealing import Sealing
from holdfast.checkpoint.arena import Arena
from holdfast.checkpoint.board import Board, Roster

LOOK_S = 0.02
NICE = 5
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # numbers of the system call
_BEST_EFFORT_LAST = 2 << 13 | 7


def main() -> None:
    """Serve until the agent is gone."""
    processes.die_with_parent(int(sys.argv[2]), signal.SIGKILL)
    for sig in (signal.SIGTERM, signal.SIGINT):  # the agent says when; it may need us to the end
        signal.signal(sig, signal.SIG_IGN)
    threading.excepthook = _die_loudly
    _step_back()
    sock = socket.socket(fileno=int(sys.argv[1]))
    setup = words.receive_order(sock)
    if not isinstance(setup, words.Setup):
        sys.exit("the agent was gone before it said what to do")
    Storage(setup, sock).serve()


class Storage:
    """Everything this process looks after."""

    def __init__(self, setup: words.Setup, sock: socket.socket) -> None:
        self._sock = sock
        self._listener = socket.socket(fileno=setup.listener)
        self._boards = [Board(fd) for fd in setup.boards]
        arenas = [Arena(fd) for fd in setup.arenas]
        key = key_of(Path(setup.token_file).read_text().strip())
        self._sealing = Sealing(arenas)
        self._keeping = Keeping([Arena(fd) for fd in setup.arenas], self._boards, key)
        pool = pool_for(arenas)
        pairs = zip(arenas, self._boards, strict=True)
        self._pushing = [Pushing(arena, board, key, pool) for arena, board in pairs]
        self._rosters: list[tuple[int, Roster | None]] = [(0, None)] * len(arenas)

    def serve(self) -> None:
        """Until the agent is gone."""
        threading.Thread(target=self._keeping.serve, args=(self._listener,), daemon=True).start()
        while True:
            readable, _, _ = select.select([self._sock], [], [], LOOK_S)
            if readable and not self._obey():
                os._exit(0)
            self._look()

    def _obey(self) -> bool:
        order = words.receive_order(self._sock)
        return order is not None

    def _look(self) -> None:
        self._sealing.look()
        for rank, pushing in enumerate(self._pushing):
            roster = self._roster(rank)
            if roster is not None:
                pushing.look(roster)

    def _roster(self, rank: int) -> Roster | None:
        """What the worker said about itself; read again only when it has said something new."""
        board, (seen, roster) = self._boards[rank], self._rosters[rank]
        count = board.roster_count
        if count != seen or (count and roster is None):
            roster = board.roster()
            self._rosters[rank] = (count, roster)
        return roster


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
