"""What a profile says: where the step of a rank went, and how one is asked for.

Worker, agent, controller and command line all speak of it, so it is here and not with those who
take one. Seconds are wall time. The parts of a step are disjoint and sum to it: a moment in which
kernels run beside communication counts as compute, because nobody waits for the communication then.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

STEPS_MAX = 50  # of one profile: a trace of more is too large to be looked at
RANKS_MAX = 16
AUTOMATIC = "attempt-"  # how the id of a profile begins that the controller wants itself
TRACE_PART_BYTES = 512_000  # of one message, and of one ConfigMap with what is around it
PART_NAMES = ("compute", "communication", "copies", "snapshots", "data", "idle")
SNAPSHOT = "holdfast::snapshot"  # how a trace names what a worker does for a snapshot

ProfileId = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,62}\Z")]
# whoever tells them is not to be trusted with a path, nor with a command that people paste
TracePath = Annotated[
    str, Meta(pattern=r"^(profiles/[a-z0-9][a-z0-9-]{0,62}/rank-[0-9]{1,7}\.json\.gz)?\Z")
]
NodeLabel = Annotated[str, Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?\Z", max_length=253)]


class ProfileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Profile so many whole steps of these ranks, and of the `slowest` one."""

    id: ProfileId
    steps: Annotated[int, Meta(ge=1, le=STEPS_MAX)] = 5
    ranks: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=RANKS_MAX)] = ()
    slowest: bool = False


class StepParts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one step, on average. Their sum is the step.

    `compute`: a kernel runs; without a GPU: an operator of PyTorch does. `communication`: of the
    rest, collectives run; this is what is exposed. `copies`: of the rest, the script has memory
    copied to or from a device, or set. `snapshots`: of the rest, Holdfast copies the training
    state. `data`: of the rest, the loop waits for its next batch. `idle`: nothing of these, so
    Python, the launch of kernels, or a wait that leaves no trace.
    """

    compute: float = 0.0
    communication: float = 0.0
    copies: float = 0.0
    snapshots: float = 0.0
    data: float = 0.0
    idle: float = 0.0

    @property
    def step_s(self) -> float:
        """All of them."""
        return float(sum(getattr(self, part) for part in PART_NAMES))

    def share(self, part: str) -> float:
        """Of the step, 0 to 1; 0 of a step that took no time."""
        value: float = getattr(self, part)
        return value / self.step_s if self.step_s > 0 else 0.0


class TopKernel(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel or operator, of all profiled steps: how often it ran, and how long together,
    without what it called."""

    name: str
    part: str
    count: int
    total_s: float


class RankProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Of one rank. `why`: there is none, for this reason."""

    rank: int
    why: str = ""
    node: NodeLabel = ""
    first_step: int = 0
    steps: int = 0
    parts: StepParts = StepParts()
    communication_s: float = 0.0  # of a step, exposed or not
    overlap: float | None = None  # share of communication beside compute; None: there was none
    device: Literal["cuda", "cpu", ""] = ""  # of what the parts tell
    top: tuple[TopKernel, ...] = ()
    events: int = 0  # in the trace
    trace: TracePath = ""  # its file, relative to the job's folder
    stalled_s: float = 0.0  # in which the rank set up the profiler and wrote its trace


class StepsSlowed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Fact: steps of the attempt have taken longer for some minutes than they used to. `slower`:
    by this share, of a token where tokens are logged; the others are seconds of a step."""

    attempt: int
    step: int
    slower: float
    step_s: float
    usual_s: float


class StepsProfiled(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Fact: what a profile that the controller wanted has found, in a sentence for `rank`; `ranks`
    are the figures. Answers `ProfileSteps`."""

    attempt: int
    step: int
    told: str
    rank: int = 0
    ranks: "tuple[RankProfile, ...]" = ()


class TakeProfile(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Controller to agent: profile these ranks of yours, of this attempt, from the end of step
    `after` on. Answered by `ProfileTaken` with the same `id`, within `within_s`."""

    id: ProfileId
    attempt: int
    ranks: tuple[int, ...]
    steps: Annotated[int, Meta(ge=1, le=STEPS_MAX)]
    after: int = 0
    within_s: float = 120.0


class ProfileTaken(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to controller: answer to `TakeProfile`."""

    id: str
    found: tuple[RankProfile, ...]


class TakeTracePart(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Controller to agent: hand out this trace of yours from `offset` on. Answered by `TracePart`
    with the same two."""

    trace: TracePath
    offset: Annotated[int, Meta(ge=0)] = 0


class TracePart(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A part of a trace as it was kept, compressed; `size` is that of all of it. `why`: there is
    none, for this reason."""

    trace: str
    offset: int
    size: int = 0
    data: bytes = b""
    why: str = ""


class TracePartRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`holdfast profile` of a job in a cluster: this part of a trace of the node with this name.
    `id` is another one for each time that it is asked."""

    id: ProfileId
    node: NodeLabel
    part: TakeTracePart


class AskProfile(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`holdfast profile`: answered by `ProfileReply`, once all ranks have answered or were given
    up."""

    wish: ProfileRequest


class ProfileReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One entry for each rank, in their order. `refused`: why there is none at all; `slowest` is
    the rank that was meant by that word."""

    ranks: tuple[RankProfile, ...] = ()
    refused: str = ""
    slowest: int | None = None
    world_size: int = 0
