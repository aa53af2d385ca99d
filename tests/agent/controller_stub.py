"""A small real controller for tests of the agent: a WebSocket server that speaks `messages`.

It acknowledges every fact, keeps what it heard, and sends what the test tells it to. The agent is a
real process started the way the driver starts it.
"""

import contextlib
import errno
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

from holdfast.compiled_code import CompiledHere
from holdfast.events import NodeReady, Store, WorkerExited
from holdfast.messages import (
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    Ack,
    AgentFact,
    AskStatus,
    EntryTimes,
    EvidenceReply,
    Fact,
    GroupOpened,
    Hello,
    JournalCopy,
    Kept,
    MachineChecked,
    Question,
    Report,
    Stacks,
    Start,
    StatusReply,
    StepRepeated,
    Stop,
    ToAgent,
    Welcome,
    WorkersStarted,
    WorkersStopped,
)
from holdfast.spec import Job
from tests.patience import ENOUGH_S, PATIENCE_S, Patience
from tests.warm import Module

PULSE_S = 0.05
_dice = random.SystemRandom()  # suites that run at the same time share nothing
# Not one of those that the kernel gives to connections: while a controller is away, the connection
# of another test might take its port.
PORTS = range(10_000, int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]))
Found = TypeVar("Found")
Told = (
    Kept | JournalCopy | EvidenceReply | EntryTimes | Stacks | MachineChecked | GroupOpened
    | StepRepeated
)  # fmt: skip
Heard = Hello | Fact | Report | Told | AskStatus | CompiledHere
_decoder = msgspec.msgpack.Decoder(Heard)


def until(look: Callable[[], Found], what: str, deadline_s: float = ENOUGH_S) -> Found:
    """The first true answer of `look`; fails when there is none in time."""
    patience = Patience(deadline_s)
    while not (found := look()):
        assert not patience.is_over, f"not within {deadline_s} s: {what}"
        time.sleep(0.01)
    return found


class Line(ServerConnection):
    """A connection that counts signs of life."""

    pulses = 0

    def process_event(self, event: Frame | Request | Response) -> None:
        """Anything that arrives."""
        if isinstance(event, Frame) and event.opcode is Opcode.PONG:
            self.pulses += 1
        super().process_event(event)


class StubController:
    """The controller's side: `heard` grows, `orders` go to the agent that is connected."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = secrets.token_hex(8)
        self.hellos: list[Hello] = []
        self.facts: dict[int, AgentFact] = {}
        self.deliveries: list[int] = []  # every seq as it came, also those seen before
        self.reports: list[Report] = []
        self.heard: list[AgentFact | Report] = []  # in the order of arrival
        self.answers: list[Told] = []
        self.compiled: list[CompiledHere] = []
        self.outcome: str | None = None  # of the job, for those who ask
        self.asked_count = 0
        self.port = 0  # once open, and when it opens again
        self.known = True
        self.acknowledging = True
        self._hellos_before = 0
        self._socket: ServerConnection | None = None
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        (folder / "token").write_text(self.token)

    def open(self, *, same_port: bool = False) -> None:
        """Listen, and publish where."""
        self._hellos_before = len(self.hellos)
        self._server = self._serve(self.port if same_port else _dice.choice(PORTS))
        while self._server is None and not same_port:
            self._server = self._serve(_dice.choice(PORTS))
        assert self._server is not None, f"port {self.port} is free"
        self.port = port = self._server.socket.getsockname()[1]
        fresh = self.folder / "controller.new"
        fresh.write_text(json.dumps({"host": "127.0.0.1", "port": port, "pid": os.getpid()}))
        fresh.replace(self.folder / "controller.json")
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def _serve(self, port: int) -> Server | None:
        try:
            return serve(
                self._talk, "127.0.0.1", port, max_size=MAX_MESSAGE_BYTES, create_connection=Line
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return None

    def close(self) -> None:
        """Vanish: the port closes and every connection is cut."""
        if self._server is not None:
            self._server.shutdown()
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.socket.shutdown(2)
            assert self._thread is not None
            self._thread.join()
            self._server = None

    def _talk(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        assert socket.request.headers["Authorization"] == f"Bearer {self.token}"
        self._socket = socket
        with contextlib.suppress(Exception):
            for data in socket:
                self._hear(_decoder.decode(data))  # type: ignore[arg-type]

    def _hear(self, message: Heard) -> None:
        match message:
            case Hello():
                self.hellos.append(message)
                welcome = Welcome(
                    protocol=PROTOCOL, acked=len(self.facts), known=self.known, pulse_s=PULSE_S
                )
                self.send(welcome)
            case Fact(seq=seq, event=event):
                self.deliveries.append(seq)
                if seq not in self.facts:
                    self.facts[seq] = event
                    self.heard.append(event)
                if self.acknowledging:
                    self.send(Ack(seq=seq))
            case Report():
                self.reports.append(message)
                self.heard.append(message)
            case AskStatus():
                self.asked_count += 1
                self.send(StatusReply(status=json.dumps({"outcome": self.outcome}).encode()))
            case CompiledHere():
                self.compiled.append(message)
            case answer:
                self.answers.append(answer)

    def send(self, message: ToAgent | Question | StatusReply) -> None:
        """To the agent that is connected."""
        assert self._socket is not None
        self._socket.send(msgspec.msgpack.encode(message))

    @property
    def pulses(self) -> int:
        """Signs of life of the agent that is connected."""
        return self._socket.pulses if isinstance(self._socket, Line) else 0

    def lives(self, what: str) -> None:
        """Wait for a few more signs of life."""
        before = self.pulses
        until(lambda: self.pulses > before + 3, what)

    def of_kind(self, kind: type[Found]) -> list[Found]:
        """Facts of a kind, in order."""
        return [event for event in list(self.facts.values()) if isinstance(event, kind)]

    def wait_for(self, kind: type[Found], count: int = 1, **fields: object) -> Found:
        """The `count`-th fact of this kind with these fields."""

        def look() -> list[Found]:
            found = [
                event
                for event in self.of_kind(kind)
                if all(getattr(event, name) == value for name, value in fields.items())
            ]
            return found[count - 1 : count]

        return until(look, f"{kind.__name__} {fields or ''} among {self.facts}")[0]

    # ── what every test does ──

    def connected(self) -> None:
        """Wait until the agent has said hello since the stub controller opened."""
        until(lambda: len(self.hellos) > self._hellos_before, "the agent connects")

    def ready(self) -> Store:
        """Wait for the node; its store."""
        return self.wait_for(NodeReady).store

    def start(self, attempt: int = 1, store: Store | None = None, **fields: Any) -> None:
        """Order an attempt on this one node."""
        order = Start(
            attempt=attempt,
            node_rank=0,
            node_count=1,
            workers_per_node=self.hellos[-1].workers,
            store=store or self.ready(),
            redo_until=fields.pop("redo_until", 0),
            restarts=attempt - 1,
        )
        self.send(msgspec.structs.replace(order, **fields))

    def started(self, attempt: int = 1) -> tuple[int, ...]:
        """Wait until the workers run; their pids."""
        return self.wait_for(WorkersStarted, attempt=attempt).pids

    def exited(self, attempt: int = 1, rank: int = 0) -> WorkerExited:
        """Wait for the death of a rank."""
        return self.wait_for(WorkerExited, attempt=attempt, rank=rank)

    def stop(
        self, attempt: int = 1, grace_s: float = PATIENCE_S, *, look: bool = False
    ) -> WorkersStopped:
        """Order the end of an attempt and wait for it."""
        self.send(Stop(attempt=attempt, grace_s=grace_s, look=look))
        return self.wait_for(WorkersStopped, attempt=attempt)


class AgentProcess:
    """A real agent, and what it left in the job's folder; `fresh`: of interpreters of its own."""

    def __init__(self, folder: Path, name: str = "node-0", *, fresh: bool = False) -> None:
        self.folder = folder
        self.node = f"{name}-{secrets.token_hex(4)}"
        self.home = folder / "nodes" / name
        self.home.mkdir(parents=True, exist_ok=True)
        words = ["--job-dir", str(folder), "--node", self.node, "--name", name]
        with (self.home / "agent.log").open("ab") as log:
            how: dict[str, Any] = {
                "stdin": subprocess.DEVNULL,
                "stdout": log,
                "stderr": log,
                "start_new_session": True,
                "env": {**os.environ, "HOLDFAST_NODE": self.node},
            }
            module = "holdfast.agent"
            self.process = (
                subprocess.Popen([sys.executable, "-P", "-m", module, *words], **how)
                if fresh
                else Module(module, words, **how)
            )

    def log(self, rank: int = 0, attempt: int = 1) -> str:
        """Output of a rank so far."""
        path = self.folder / "logs" / f"attempt-{attempt}" / f"rank-{rank}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def words(self) -> str:
        """The agent's own log."""
        return (self.home / "agent.log").read_text()

    def family(self) -> list[int]:
        """Live processes that carry the node's id."""
        needle = f"HOLDFAST_NODE={self.node}".encode()
        return [pid for pid in _pids() if needle in _read(pid, "environ") and is_alive(pid)]

    def forkserver(self) -> int:
        """The pid of the forkserver."""
        return self._child(b"holdfast.agent.forkserver")

    def storage(self) -> int:
        """The pid of the storage process."""
        return self._child(b"holdfast.agent.storage")

    def _child(self, module: bytes) -> int:
        children = (pid for pid in self.family() if parent_of(pid) == self.process.pid)
        (found,) = (pid for pid in children if module in _read(pid, "cmdline"))
        return found

    def ended(self) -> int:
        """Wait for the end; the exit status."""
        return self.process.wait(PATIENCE_S)

    def end(self) -> None:
        """Kill all of it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    stat = _read(pid, "stat").rpartition(b")")[2].split()
    return bool(stat) and stat[0] not in (b"Z", b"X")


def parent_of(pid: int) -> int:
    """Its parent, 0 if it is gone."""
    stat = _read(pid, "stat").rpartition(b")")[2].split()
    return int(stat[1]) if stat else 0


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


@contextlib.contextmanager
def running(
    folder: Path, source: str = "", *, fresh: bool = False, **job: Any
) -> Iterator[tuple[StubController, AgentProcess]]:
    """A stub controller and an agent for a job that runs `source` (or what `job` says)."""
    folder.mkdir(parents=True, exist_ok=True)
    if source:
        (folder / "script.py").write_text(source)
        job = {"script": str(folder / "script.py"), **job}
    plain = {"name": "test", "workdir": str(folder), "workers_per_node": 1, "framework": "command"}
    (folder / "job.json").write_text(Job.model_validate({**plain, **job}).model_dump_json())
    controller = StubController(folder)
    controller.open()
    agent = AgentProcess(folder, fresh=fresh)
    try:
        yield controller, agent
    finally:
        agent.end()
        controller.close()
