"""A shell without a process: a journal, an engine and connections that remember what they were
told, in one order, and a clock that the test sets."""

from collections.abc import Callable, Sequence

from holdfast.actions import AskNodes, EndJob, Entry, Fence
from holdfast.controller import Controller, Limits, State
from holdfast.events import AnyEvent, Beginning, JobSubmitted, NodeReady, Store
from holdfast.journal import JournalFullError
from holdfast.messages import (
    PROTOCOL,
    Ack,
    AgentFact,
    Fact,
    Hello,
    Keep,
    Kept,
    Leave,
    Question,
    ToAgent,
    Welcome,
)
from holdfast.shell.shell import Settings, Shell

TIMEOUT_S = 5.0
RECONNECT_S = 10.0
TERM = 7
Effect = tuple[str, object]
Done = Callable[[Sequence[AnyEvent]], None]


def hello(node: str = "n", protocol: int = PROTOCOL, obeyed: int = 0, workers: int = 1) -> Hello:
    """What an agent says first."""
    return Hello(
        protocol=protocol, node=node, name=node, address="h", workers=workers, pid=1, attempt=0,
        running=False, obeyed=obeyed,
    )  # fmt: skip


def ready(node: str, store: Store | None = None) -> NodeReady:
    """Its node can start workers."""
    return NodeReady(node=node, store=store or Store("h", sum(node.encode()), True))


class Book:
    """A journal: `entries` are durable, `pending` not yet."""

    def __init__(self, effects: list[Effect]) -> None:
        self.seq = 0
        self.entries: list[Entry] = []
        self.pending: list[Entry] = []
        self.full = False
        self.saves = 0
        self._effects = effects

    def append(self, entry: Entry) -> None:
        self.seq = entry.seq
        self.pending.append(entry)

    def sync(self) -> None:
        if self.full:
            raise JournalFullError(28, "full")
        self._effects += [("durable", type(entry.event).__name__) for entry in self.pending]
        self.entries += self.pending
        self.pending = []

    def save(self, state: State) -> None:
        assert state.now >= 0.0
        self.saves += 1

    # as `Lines`

    def count(self) -> int:
        return len(self.entries) + 1

    def read(self, first: int, limit_bytes: int) -> list[bytes]:
        assert limit_bytes > 0
        return [b"%d\n" % n for n in range(first, self.count())]


class Engine:
    """Supplies what the test says."""

    def __init__(self, effects: list[Effect]) -> None:
        self.removing: dict[str, Done] = {}
        self.at_once = True  # removals are done when they are ordered
        self.full: list[bool] = []
        self.changes = 0
        self.nearby: frozenset[str] = frozenset()
        self._effects = effects

    def make(self, order: AskNodes) -> None:
        self._effects.append(("made", order.count))

    def remove(self, order: Fence, done: Done) -> None:
        self._effects.append(("removed", order.node))
        if self.at_once:
            done(())
        else:
            self.removing[order.node] = done

    def leave(self, order: EndJob) -> Leave:
        return Leave(reason=order.reason, exit_code=0)

    def near(self, node: str) -> bool:
        return node in self.nearby

    def connections_changed(self) -> None:
        self.changes += 1

    def disk_full(self, full: bool) -> None:
        self.full.append(full)

    def status(self) -> bytes:
        return b"{}"


class Wire:
    """A connection to an agent. `end` says how it was closed by the shell, `why` the reason."""

    def __init__(self, node: str, scene: "Scene") -> None:
        self.node = node
        self.sent: list[ToAgent | Question] = []
        self.end = self.why = self.stuck = ""
        self._scene = scene
        self.heard_at = scene.now

    def send(self, message: ToAgent | Question) -> None:
        assert not self.end
        self.sent.append(message)
        self._scene.effects.append((f"{self.node} told", type(message).__name__))

    def ask(self) -> None:
        pass

    def tcp_state(self) -> None:
        return None

    def overdue(self, now: float) -> str:
        assert now >= self.heard_at
        return self.stuck

    def close(self, why: str) -> None:
        self.end, self.why = "closed", why

    def abort(self, why: str) -> None:
        self.end, self.why = "aborted", why

    def told(self, kind: type) -> list[ToAgent | Question]:
        """Messages of a kind."""
        return [message for message in self.sent if isinstance(message, kind)]

    # what its agent does

    def fact(self, seq: int, event: AgentFact) -> None:
        """Tell a fact, and let the shell do what follows."""
        self.heard_at = self._scene.now
        self._scene.shell.fact(self.node, Fact(seq=seq, event=event))
        self._scene.settle()

    def holds(self) -> None:
        """Hold every line of the journal it was sent."""
        for keep in self.told(Keep):
            assert isinstance(keep, Keep)
            held = Kept(seq=keep.first + len(keep.lines) - 1, term=TERM)
            self._scene.shell.answered(self.node, held)
        self._scene.settle()


class Scene:
    """One shell and what is around it. `effects` is everything it did, in order."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        copies: bool = False,
        state: State | None = None,
        existing: Sequence[str] = (),
        first: Beginning | None = None,
        begin: bool = True,
    ) -> None:
        self.now = 100.0
        self.effects: list[Effect] = []
        self.book, self.engine = Book(self.effects), Engine(self.effects)
        self.controller = Controller(limits or Limits(node_count=2), state)
        self.shell = Shell(
            self.controller, self.book, self.engine, Settings(TIMEOUT_S, RECONNECT_S, TERM),
            lambda: self.now, self.book if copies else None,
        )  # fmt: skip
        if begin:
            self.shell.begin(first or JobSubmitted(), existing)
        self.settle()

    @property
    def state(self) -> State:
        """The controller's."""
        return self.controller.state

    def settle(self) -> int:
        """Let the shell do everything it can; in how many steps."""
        steps = 0
        while self.shell.step():
            steps += 1
            assert steps < 10_000, "it never rests"
        return steps

    def connect(self, node: str, obeyed: int = 0) -> Wire:
        """An agent says hello."""
        wire = Wire(node, self)
        self.shell.hello(wire, hello(node, obeyed=obeyed))
        self.settle()
        return wire

    def running(self, *nodes: str) -> list[Wire]:
        """These nodes are connected, and ready."""
        wires = [self.connect(node) for node in nodes]
        for wire in wires:
            wire.fact(1, ready(wire.node))
        return wires

    def wait(self, seconds: float, *lively: Wire) -> None:
        """Time passes, in which only these give signs of life."""
        for _ in range(max(1, round(seconds / 0.25))):
            self.now += min(0.25, seconds)
            for wire in lively:
                wire.heard_at = self.now
            self.shell.look()
            self.settle()

    def events(self, kind: type) -> list[AnyEvent]:
        """What was decided upon and is durable."""
        return [entry.event for entry in self.book.entries if isinstance(entry.event, kind)]


def acked(wire: Wire) -> list[int]:
    """Facts that were acknowledged over it, on connecting or later."""
    return [m.acked if isinstance(m, Welcome) else m.seq for m in wire.sent
            if isinstance(m, Welcome | Ack)]  # fmt: skip
