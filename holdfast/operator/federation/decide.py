"""Which cluster is to run the job: a pure function of what was seen of each, and of the clock.

Clusters are asked in order. One that does not place all nodes in time has to let go, and has done
so for certain, before the next is asked. A cluster that cannot be reached for long is lost: the job
goes on elsewhere, and what may still run there is removed as soon as it can be reached, before
anything else is done there. So two clusters run the job only while nobody can reach one of them;
checkpoints of the older term are not for the newer one to continue from.

Silence everywhere is our own: then nothing is decided, and no time counts.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

GAP_S = 60.0  # between two looks; after a longer one what was silent before is asked anew


class Role(StrEnum):
    """What a cluster is to the job."""

    NEW = "new"  # nothing is known of it yet
    IDLE = "idle"  # nothing of the job is there
    OFFERED = "offered"  # the job is there and waits for machines
    RUNS = "runs"
    LEAVING = "leaving"  # the job is being removed there
    LOST = "lost"  # it cannot be reached, and the job may run there


class Terms(NamedTuple):
    """What the job file says of a cluster."""

    max_wait_s: float | None
    lost_after_s: float


class Seen(NamedTuple):
    """What was seen of a cluster just now; nothing else is known of one that is not `reachable`."""

    reachable: bool
    there: bool = False  # anything of the job that makes pods, or is one
    made: bool = False  # everything that makes pods
    admitted: bool = False  # all its nodes have a machine
    controlled: bool = False  # its controller answers
    outcome: str | None = None
    refused: str | None = None  # why the job cannot be made there


class Standing(msgspec.Struct, frozen=True):
    """A cluster's role, since when, and since when it has been silent or without a controller."""

    role: Role = Role.NEW
    since: float = 0.0
    silent_since: float | None = None


class FederationState(msgspec.Struct, frozen=True):
    """All that is remembered, on disk before it takes effect. Times are seconds since the epoch."""

    standings: tuple[Standing, ...]
    term: int = 0  # grows with each offer
    next: int = 0  # the cluster that is asked next
    outcome: str | None = None
    at: float = 0.0  # of the last decision


class Offer(NamedTuple):
    """Make the job in this cluster."""

    cluster: int
    term: int


class Withdraw(NamedTuple):
    """Remove everything of the job from this cluster."""

    cluster: int


Order = Offer | Withdraw
BUSY = (Role.OFFERED, Role.RUNS, Role.LEAVING)


def decide(
    state: FederationState, seen: Sequence[Seen], terms: Sequence[Terms], now: float
) -> tuple[FederationState, list[Order]]:
    """The next state, and what to do. An order is given until it is seen to be carried out."""
    if not any(one.reachable for one in seen):
        quiet = tuple(msgspec.structs.replace(s, silent_since=None) for s in state.standings)
        return msgspec.structs.replace(state, standings=quiet, at=now), []
    if now - state.at > GAP_S:
        heard = tuple(msgspec.structs.replace(s, silent_since=None) for s in state.standings)
        state = msgspec.structs.replace(state, standings=heard)
    standings = _one_only(
        [
            s if state.outcome and s.role is Role.RUNS else _moved(s, one, term, now)
            for s, one, term in zip(state.standings, seen, terms, strict=True)
        ]
    )
    outcome = state.outcome or _outcome(standings, seen)
    ask = _next(state, standings, seen)
    found = msgspec.structs.replace(
        state, standings=tuple(standings), outcome=outcome, next=ask, at=now
    )
    if outcome is None and not any(s.role in BUSY for s in standings):
        found = _offered(found, seen, now)
    return found, _orders(found, seen)


def over(state: FederationState) -> bool:
    """Whether the job has ended and nothing of it can still run anywhere."""
    unsafe = (Role.LEAVING, Role.LOST)
    return state.outcome is not None and not any(s.role in unsafe for s in state.standings)


def _moved(was: Standing, seen: Seen, terms: Terms, now: float) -> Standing:
    """One cluster's standing after a look at it."""
    alive = seen.reachable and (seen.controlled or seen.outcome is not None)
    well = alive if was.role is Role.RUNS else seen.reachable
    silent = None if well else (now if was.silent_since is None else was.silent_since)
    gone = silent is not None and now - silent >= terms.lost_after_s
    role = _role(was, seen, terms, now, gone=gone)
    since = was.since if role is was.role else now
    return Standing(role, since, silent if role is was.role else None)


def _role(was: Standing, seen: Seen, terms: Terms, now: float, *, gone: bool) -> Role:
    match was.role:
        case Role.NEW:
            return (Role.OFFERED if seen.there else Role.IDLE) if seen.reachable else Role.LOST
        case Role.LOST:
            return (Role.LEAVING if seen.there else Role.IDLE) if seen.reachable else Role.LOST
        case Role.LEAVING if seen.reachable:
            return Role.LEAVING if seen.there else Role.IDLE
        case Role.IDLE:
            return Role.LEAVING if seen.there else Role.IDLE
        case Role.RUNS | Role.OFFERED if seen.outcome is not None:
            return Role.RUNS
        case _ if gone:
            return Role.LEAVING if seen.reachable else Role.LOST
        case Role.OFFERED if seen.reachable:
            if seen.admitted:
                return Role.RUNS
            late = terms.max_wait_s is not None and now - was.since >= terms.max_wait_s
            return Role.LEAVING if late or seen.refused else Role.OFFERED
        case role:
            return role


def _one_only(standings: list[Standing]) -> list[Standing]:
    """At the start the job may be found in several clusters: it stays where it is furthest."""
    having = [i for i, s in enumerate(standings) if s.role in (Role.RUNS, Role.OFFERED)]
    if len(having) < 2:
        return standings
    kept = min(having, key=lambda i: (standings[i].role is not Role.RUNS, i))
    return [
        msgspec.structs.replace(s, role=Role.LEAVING) if i in having and i != kept else s
        for i, s in enumerate(standings)
    ]


def _outcome(standings: Sequence[Standing], seen: Sequence[Seen]) -> str | None:
    return next(
        (one.outcome for s, one in zip(standings, seen, strict=True)
         if s.role is Role.RUNS and one.outcome is not None),
        None,
    )  # fmt: skip


def _next(state: FederationState, standings: Sequence[Standing], seen: Sequence[Seen]) -> int:
    """After a refusal the one behind it; after a loss the first again."""
    for i, (was, is_) in enumerate(zip(state.standings, standings, strict=True)):
        if was.role is Role.OFFERED and is_.role is Role.LEAVING:
            return (i + 1) % len(seen)
        if was.role is Role.RUNS and is_.role in (Role.LEAVING, Role.LOST):
            return 0
    return state.next


def _offered(state: FederationState, seen: Sequence[Seen], now: float) -> FederationState:
    """Ask the next cluster that can be asked, if there is one."""
    count = len(seen)
    for i in ((state.next + step) % count for step in range(count)):
        if state.standings[i].role is Role.IDLE and seen[i].reachable:
            standings = list(state.standings)
            standings[i] = Standing(Role.OFFERED, now)
            return msgspec.structs.replace(
                state, standings=tuple(standings), term=state.term + 1, next=i
            )
    return state


def _orders(state: FederationState, seen: Sequence[Seen]) -> list[Order]:
    found: list[Order] = []
    for i, (standing, one) in enumerate(zip(state.standings, seen, strict=True)):
        if standing.role is Role.LEAVING and one.reachable:
            found.append(Withdraw(i))
        if standing.role is Role.OFFERED and one.reachable and not one.made:
            found.append(Offer(i, state.term))
    return found
