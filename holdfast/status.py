"""What you get: the shapes behind every `--json` and, later, the API.

Fields are only ever added. Times are seconds since the epoch (UTC), durations end in `_s`.
"""

import msgspec


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One node as the controller sees it. `rank` is its node rank, None unless it trains."""

    name: str
    state: str
    rank: int | None
    node: str  # unique id of this life of the node
    pids: tuple[int, ...] = ()  # its workers by local rank, on that node


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `holdfast status`."""

    job: str
    phase: str
    attempt: int
    step: int | None
    ettr: float
    nodes: tuple[NodeStatus, ...]
    incidents_count: int
    restarts_count: int
    waiting_for: str | None
    started_at: float
    wall_s: float
    loss: float | None = None
    step_time_s: float | None = None
    snapshot_step: int | None = None  # newest snapshot that all ranks have
    snapshot_every: int | None = None  # steps between snapshots
    controller: str = "alive"  # or "starting", "away" (died, job may go on), "ended"
    outcome: str | None = None
    why: str | None = None  # one sentence: why it is in this phase


class ActionTaken(msgspec.Struct, frozen=True, kw_only=True):
    """One thing Holdfast did about an incident."""

    at: float
    action: str
    reason: str


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """From the first evidence of a fault until training was productive again (`ended_at`)."""

    id: int
    cause: str
    summary: str  # one sentence for a person
    node: str  # name of the node
    rank: int | None
    attempt: int
    step: int | None
    started_at: float
    ended_at: float | None
    lost_s: float
    steps_lost: int
    bill: dict[str, float]  # bucket → seconds; sums to lost_s
    actions: tuple[ActionTaken, ...]
    also_failed: int = 0  # ranks that failed after, as a consequence
    exit_code: int | None = None
    signal: int | None = None
    error_type: str | None = None
    traceback: str | None = None
    log: str | None = None  # path of the log of the rank that failed first


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `holdfast goodput`. `buckets` sum to `wall_s` to the millisecond."""

    job: str
    wall_s: float
    ettr: float
    ettr_1h: float
    buckets: dict[str, float]
    observed: bool  # False: no steps reported, so all the time its workers ran counts as productive
