"""What must hold after every event. Checked in tests and in simulation, not in production."""

from holdfast.controller.phases import ENDED, Phase
from holdfast.controller.state import IllegalMoveError, NodeState, State

TRAINING = (Phase.STARTING, Phase.RUNNING)


def check(state: State) -> None:
    """Raise `IllegalMoveError` with the story of what broke."""
    for holds, what in _rules(state):
        if not holds:
            raise IllegalMoveError(state, f"invariant broken: {what}")


def _rules(state: State) -> list[tuple[bool, str]]:
    members = {n.node for n in state.nodes.values() if n.state is NodeState.MEMBER}
    by_rank = {n.node_rank: n.node for n in state.nodes.values() if n.node_rank is not None}
    open_incidents = [i for i in state.incidents if i.ended_at is None]
    return [
        (set(state.ranks.values()) == members, "members are the nodes with a rank"),
        (by_rank == state.ranks, "a node rank belongs to one node"),
        (not state.nodes.keys() & state.lost.keys(), "a lost node never comes back"),
        (not (state.phase in TRAINING and state.stopped), "a training attempt is not stopped"),
        (not (state.phase is Phase.WAITING and not state.stopped), "waiting means stopped"),
        (not (state.phase in TRAINING and state.start is None), "training has an order"),
        ((state.phase in ENDED) == (state.outcome is not None), "an ended job has an outcome"),
        (len(state.restarts) <= state.limits.max_restarts, "the cap on restarts holds"),
        (open_incidents in ([], state.incidents[-1:]), "only the last incident may be open"),
        (state.phase is not Phase.RECOVERING or bool(open_incidents), "recovering has an incident"),
        (state.start is None or state.start.attempt == state.attempt, "the order is the newest"),
        (state.asked >= 0, "nodes asked for are counted"),
    ]
