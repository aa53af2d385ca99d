"""Replicas of parameters that differ: silent corruption, on some rank or other.

The attempt is stopped, and the next one goes on from what was saved after the last step at which
all were the same. The node of a rank that differs from the majority is treated like one whose
device has failed: forgiven once. What the attempt did since they last agreed counts as not done.
"""

from holdfast.actions import AnyAction
from holdfast.controller import attempts, choices, incidents, numerics
from holdfast.controller.phases import TRAINING, Phase
from holdfast.controller.policies.situation import Trouble
from holdfast.controller.state import State
from holdfast.events import Ranks, ReplicasDiffer, each_of

LISTED_MAX = 8  # rows of ranks, and groups of them, that are named


def differ(state: State, event: ReplicasDiffer) -> list[AnyAction]:
    """While an attempt is stopped for another reason it limits what may be gone on from, too."""
    if event.attempt != state.attempt or state.phase not in (*TRAINING, Phase.RECOVERING):
        return []
    below = state.corrupt_step = event.agreed + 1
    numerics.forget_from(state, below)
    state.restore_below = min(below, state.restore_below or below)
    state.poison_step = max(event.step, state.poison_step or 0)
    why = _story(state, event)
    incidents.open_for_replicas(state, event, why, [_line(state, one) for one in _shown(event)])
    incidents.note(state, "RollBack", f"only what was saved before step {below} is restored")
    if state.phase is Phase.RECOVERING:
        return []
    trouble = Trouble(cause="corruption", summary=why, trains=True, bad_step=below)
    choices.record(state, choices.choose(state, trouble), trouble)
    return attempts.stop(state, Phase.RECOVERING, why, state.limits.restart_grace_s)


def _story(state: State, event: ReplicasDiffer) -> str:
    when = f"after step {event.step}; all were the same after step {event.agreed}"
    if event.ranks:
        most = _listed(event.alike[0])
        who = f"{_listed(event.ranks)} on {_nodes(state, event.ranks)}"
        return f"Parameters of {who} differ from those of {most} {when}"
    everybody = tuple(row for ranks in event.alike for row in ranks)
    majority = "no majority: two ranks differ" if event.compared == 2 else "no majority"
    return f"Parameters of {_listed(everybody)} differ {when}; {majority}"


def _shown(event: ReplicasDiffer) -> tuple[Ranks, ...]:
    return event.alike[:LISTED_MAX]


def _line(state: State, ranks: Ranks) -> str:
    count = sum(1 for _ in each_of(ranks))
    alike = "have the same parameters" if count > 1 else "differs from all others"
    return f"{_listed(ranks)} on {_nodes(state, ranks)}: {alike}"


def _listed(ranks: Ranks) -> str:
    rows = [str(a) if a == b else f"{a}-{b}" for a, b in ranks]
    more = f" and {len(rows) - LISTED_MAX} more ranges" if len(rows) > LISTED_MAX else ""
    single = len(ranks) == 1 and ranks[0][0] == ranks[0][1]
    return f"rank{'' if single else 's'} {', '.join(rows[:LISTED_MAX])}{more}"


def _nodes(state: State, ranks: Ranks) -> str:
    numbers = dict.fromkeys(rank // state.workers_per_node for rank in each_of(ranks))
    known = (state.nodes.get(state.ranks.get(number, "")) for number in numbers)
    names = [node.name for node in known if node is not None]
    more = f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else ""
    return ", ".join(names[:LISTED_MAX]) + more
