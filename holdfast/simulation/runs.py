"""Workers as they are: those of an attempt on one node (`NodeWorkers`), and all of it (`Group`)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from holdfast.checkpoint.key import Key
from holdfast.events import WorkerError
from holdfast.messages import Start
from holdfast.simulation.memory import NodeMemory
from holdfast.simulation.referees import AWAY
from holdfast.simulation.slowness import Slow
from holdfast.simulation.tempo import Tempo

SYMPTOM = WorkerError(
    type="torch.distributed.DistBackendError", message="Connection closed by peer [10.0.0.1]:29400"
)
BUG = WorkerError(type="ValueError", message="a bad sample", file="train.py", line=41)


@dataclass(frozen=True)
class Death:
    """How a worker ended."""

    exit_code: int | None
    signal: int | None = None
    error: WorkerError | None = None
    forkserver: str = ""  # how its forkserver had died before


KILLED = Death(None, 9)
ORPHANED = Death(None, 9, forkserver="signal 9")
CRASHED = Death(None, 11)
DONE = Death(0)
BROKEN_LINK = Death(1, None, SYMPTOM)
BUGGY = Death(1, None, BUG)
STARVED = Death(1, None, AWAY)


class NodeAgent(Protocol):
    """The agent of a node, as its workers see it."""

    node: str
    alive: bool
    memory: dict[int, NodeMemory]  # by local rank; lost with the node
    slow: Slow | None
    drags: float  # by which its network makes everything slower
    stalls_until: float  # its network carries nothing

    def worker_died(self, run: "NodeWorkers", rank: int, death: Death) -> None:
        """One of its workers has ended by itself."""

    def news(self) -> None:
        """Its workers have reached a milestone."""

    def leaves(self, run: "NodeWorkers") -> None:
        """Its workers have taken the snapshot that they were to end with."""

    def holds_store(self, port: int) -> bool:
        """Whether the rendezvous store on this port is alive and unused."""


class Stall(NamedTuple):
    """The network carries nothing, and all wait."""

    since: float
    until: float


NO_STALL = Stall(-math.inf, -math.inf)


@dataclass(eq=False)
class NodeWorkers:
    """The workers of one attempt on one node."""

    host: NodeAgent
    group: "Group"
    ranks: range
    alive: list[int]
    started_at: float
    arrived_at: float | None = None
    last: dict[int, int] = field(default_factory=dict)  # rank → its last step, once it is broken
    told_until: tuple[int, int] = (0, 0)  # collectives: by the last answer but one, and the last


class Inheritance(NamedTuple):
    """What an attempt goes on from."""

    restored: Key | None = None
    in_place: bool = False  # it lay where it is used
    used: int = 0  # samples, by then


ANEW = Inheritance()


@dataclass
class Farewell:
    """A snapshot that an attempt is to end with."""

    asked: set[int] = field(default_factory=set)  # first ranks of the nodes that have been told
    kept: int = 0  # its step, once all have it; 0: they have not


@dataclass(eq=False)
class Group:
    """One attempt as a whole. Times are virtual seconds; None: not yet."""

    order: Start
    runs: dict[int, NodeWorkers] = field(default_factory=dict)  # by node rank
    origin: Inheritance = ANEW
    joined_at: float | None = None
    restored_at: float | None = None
    first_at: float | None = None  # end of the first step
    broken_at: float | None = None
    dies_of: Death = BROKEN_LINK  # once it is broken
    waits: bool = False  # once it is broken nobody fails by itself: they wait for who left
    hung: int | None = None  # this rank hangs, and the others wait for it
    last_step: int = 0  # it leaves its loop after this one; 0: not yet known
    tempo: Tempo | None = None  # from its first step on
    farewell: Farewell = field(default_factory=Farewell)
    planned: list[tuple[int, "Happening"]] = field(default_factory=list)  # at the end of a step
    stall: Stall = NO_STALL

    @property
    def attempt(self) -> int:
        """Its number."""
        return self.order.attempt

    @property
    def restored(self) -> Key | None:
        """The snapshot that it goes on from."""
        return self.origin.restored

    @property
    def world_size(self) -> int:
        """How many ranks it has."""
        return self.order.node_count * self.order.workers_per_node

    @property
    def lives(self) -> bool:
        """Whether any of its workers is alive."""
        return any(run.alive for run in self.runs.values())

    @property
    def started_at(self) -> float:
        """When the first of its workers were started."""
        return min(run.started_at for run in self.runs.values())

    @property
    def forgotten(self) -> bool:
        """Whether nobody is left who knows of it: its number may be given to another one."""
        return not any(run.host.alive for run in self.runs.values())

    @property
    def inherited_step(self) -> int:
        """Steps that were done when this attempt took over."""
        return self.restored.step if self.restored else 0


Happening = Callable[[Group], None]
