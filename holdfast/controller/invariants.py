"""What must hold after every event. Checked in tests and in simulation, not in production.

Rules that cost the same for any job are checked after every event. Those that look at every node or
incident are checked by `check` each time, and by `Watch` once in as many events as there are nodes,
so that watching a large job costs as little per event as watching a small one.
"""

from holdfast.controller.phases import ENDED, TRAINING, Phase
from holdfast.controller.state import IllegalMoveError, NodeState, State
from holdfast.versions import Version

OFTEN = 1000  # events between two complete checks, at least

Rule = tuple[bool, str]


def check(state: State) -> None:
    """Raise `IllegalMoveError` with the story of what broke."""
    _hold(state, _cheap(state))
    _hold(state, _complete(state))


class Watch:
    """Checks one job as it goes on; it counts the events until the next complete check."""

    def __init__(self) -> None:
        self._left = 0

    def check(self, state: State) -> None:
        """To be called after every event. Raises `IllegalMoveError` as `check` does."""
        _hold(state, _cheap(state))
        self._left -= 1
        if self._left <= 0:
            _hold(state, _complete(state))
            self._left = max(OFTEN, len(state.nodes), len(state.incidents))


def _hold(state: State, rules: tuple[Rule, ...]) -> None:
    for holds, what in rules:
        if not holds:
            raise IllegalMoveError(state, f"invariant broken: {what}")


def _cheap(state: State) -> tuple[Rule, ...]:
    phase, before_last = state.phase, state.incidents[-2:-1]
    closed = not before_last or before_last[0].ended_at is not None
    trains, limits = phase in TRAINING, state.limits
    there = limits.whole(len(state.ranks) + len(state.spares))
    waits = phase is Phase.WAITING and limits.fewest <= there < state.size and state.attempt > 0
    return (
        (not (trains and state.stopped), "a training attempt is not stopped"),
        (phase is not Phase.WAITING or state.stopped, "waiting means stopped"),
        (not trains or state.start is not None, "training has an order"),
        ((phase in ENDED) == (state.outcome is not None), "an ended job has an outcome"),
        (len(state.restarts) <= state.limits.max_restarts, "the cap on restarts holds"),
        (closed, "only the last incident may be open"),
        (
            phase is not Phase.RECOVERING or state.open_incident is not None,
            "recovering has an incident",
        ),
        (state.start is None or state.start.attempt == state.attempt, "the order is the newest"),
        (state.asked >= 0, "nodes asked for are counted"),
        (not (waits and limits.replicas), "replicas do not wait for a lost one"),
        (limits.fewest <= state.size <= limits.most, "the size is within its bounds"),
        (state.size == limits.whole(state.size), "replicas are whole"),
        (limits.fewest <= state.target <= limits.most, "so is what is aimed at"),
        (state.start is None or not trains or state.start.node_count == state.size, "all train"),
        (
            state.start is None or not trains or _runs(state.start.version, state.version),
            "the version in use trains",
        ),
    )


def _complete(state: State) -> tuple[Rule, ...]:
    by_state: dict[NodeState, set[str]] = {s: set() for s in NodeState}
    for node in state.nodes.values():
        by_state[node.state].add(node.node)
    by_rank = {n.node_rank: n.node for n in state.nodes.values() if n.node_rank is not None}
    every = range(state.size)
    vacant = [r for r in every if r not in state.ranks]
    still_open = [i for i in state.incidents[:-1] if i.ended_at is None]
    return (
        (set(state.ranks.values()) == by_state[NodeState.MEMBER], "members are those with a rank"),
        (by_rank == state.ranks, "a node rank belongs to one node"),
        (sorted(state.spares) == sorted(by_state[NodeState.SPARE]), "spares are those that wait"),
        (vacant == (list(every) if state.vacant is None else state.vacant), "vacancies are known"),
        (not state.nodes.keys() & state.lost.keys(), "a lost node never comes back"),
        (state.health.keys() <= state.nodes.keys(), "health is told of nodes that live"),
        (not still_open, "only the last incident may be open"),
    )


def _runs(trains: Version, used: Version) -> bool:
    """Another image is used by nodes that come, and stops no attempt."""
    return trains == used or trains.only_image_of(used)
