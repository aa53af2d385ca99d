"""What the agent and its forkserver say to each other over one Unix socket.

One message per packet (SOCK_SEQPACKET), JSON, with file descriptors beside it where a child needs
them. Children are known by an id that the agent chose before the fork, so that the news of a death
can never arrive before the agent knows whose it is, and no process id is ever used after it was
reaped.
"""

import socket
from enum import StrEnum
from pathlib import Path

import msgspec

PACKET_BYTES = 1 << 20
FDS_MAX = 8


class ChildKind(StrEnum):
    """What a forked child does."""

    RUN = "run"  # run the script at once
    WAIT = "wait"  # wait for a rank on the control socket, then run the script
    EXEC = "exec"  # become another program
    STORE = "store"  # host the rendezvous store of one attempt


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers run: exactly one of `script`, `module` and `command`."""

    script: str | None = None
    module: str | None = None
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    workdir: str = "."
    instrument: bool = False  # count the steps of its optimizers
    integrate: bool = False  # keep the state of trainers that we know
    env: dict[str, str] = {}  # what was set by an update
    root: str = ""  # folder of its code
    origin: str = ""  # that of the version that the job was started with
    stamp: tuple[tuple[str, int, int], ...] = ()  # of its files, where workers run it ahead

    def path_entry(self) -> str:
        """What Python puts first on `sys.path` for it; empty for a command."""
        if self.script is not None:
            return str(Path(self.workdir, self.script).resolve().parent)
        return self.located(str(Path(self.workdir).absolute())) if self.module else ""

    def located(self, entry: str, loaded: str = "") -> str:
        """Where this version has what `sys.path` names for another one, whose folder is `loaded`;
        the entry itself if it has no such folder."""
        path = Path(entry).resolve()
        if not self.root or not entry or path.is_relative_to(self.root):
            return entry
        for root in (loaded, self.origin):
            if root and path.is_relative_to(root):
                moved = Path(self.root, path.relative_to(root))
                return str(moved) if moved.is_dir() else entry
        return entry


class Preload(msgspec.Struct, frozen=True, kw_only=True):
    """What is loaded before workers are forked."""

    framework: tuple[str, ...] = ()  # without which nothing works: never left out
    modules: tuple[str, ...] = ()
    imports: bool = False  # also what the script imports first, as far as that is installed
    without: tuple[str, ...] = ()  # of all these; known to be unfit


class ForkserverRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The root of what the agent asks."""


class Prepare(ForkserverRequest, frozen=True, kw_only=True):
    """First message: load what every worker needs. Answered by `Ready`, or by `Unfit`."""

    program: Program
    preload: Preload


class Fork(ForkserverRequest, frozen=True, kw_only=True):
    """Make a child. `fds` names the descriptors sent along.

    Answered by `Forked` or `ForkFailed`.
    """

    id: int
    kind: ChildKind
    env: dict[str, str] = {}
    program: Program | None = None  # None: what was prepared
    fds: tuple[str, ...] = ()
    address: str = ""  # STORE: where to listen
    ports: tuple[int, ...] = (0,)  # STORE: the first that is free is taken; 0: any


class Signal(ForkserverRequest, frozen=True, kw_only=True):
    """Send a signal to a child and its process group; nothing happens if it is gone."""

    id: int
    signal: int


class ForkserverReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The root of what the forkserver answers."""


class Ready(ForkserverReply, frozen=True, kw_only=True):
    """Everything is loaded; children can be forked."""


class Importing(ForkserverReply, frozen=True, kw_only=True):
    """This module, which can be done without, is imported next."""

    module: str


class Unfit(ForkserverReply, frozen=True, kw_only=True):
    """These modules, by name and why, must not be loaded ahead; the forkserver ends."""

    modules: dict[str, str]


class Forked(ForkserverReply, frozen=True, kw_only=True):
    """The child runs."""

    id: int
    pid: int


class ForkFailed(ForkserverReply, frozen=True, kw_only=True):
    """The child could not be made."""

    id: int
    why: str


class Died(ForkserverReply, frozen=True, kw_only=True):
    """The child was reaped and its process group killed. `at` is monotonic."""

    id: int
    exit_code: int | None
    signal: int | None
    at: float


AnyRequest = Prepare | Fork | Signal
AnyReply = Ready | Importing | Unfit | Forked | ForkFailed | Died

_requests = msgspec.json.Decoder(AnyRequest)
_replies = msgspec.json.Decoder(AnyReply)


def send(sock: socket.socket, message: AnyRequest | AnyReply, fds: list[int] | None = None) -> None:
    """Send one message with its descriptors. OSError if the other side is gone."""
    socket.send_fds(sock, [msgspec.json.encode(message)], fds or [])


def receive_request(sock: socket.socket) -> tuple[AnyRequest, list[int]] | None:
    """The next request and its descriptors; None once the agent is gone.

    They stay open over an exec: a script that starts itself again keeps them.
    """
    data, fds, _, _ = socket.recv_fds(sock, PACKET_BYTES, FDS_MAX)
    return (_requests.decode(data), list(fds)) if data else None


def receive_reply(sock: socket.socket) -> AnyReply | None:
    """The next reply; None once the forkserver is gone. BlockingIOError if there is none yet."""
    data = sock.recv(PACKET_BYTES, socket.MSG_DONTWAIT)
    return _replies.decode(data) if data else None
