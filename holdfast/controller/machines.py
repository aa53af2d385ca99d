"""Checks of machines that the controller orders: of spares while they wait, and of all members
where attempt after attempt makes no progress and no machine is blamed.

A spare counts as one only once its machine has passed (`conditions.sound_spares`), and one that
fails is replaced before it is needed. What a check finds in a member is a condition of that node
like any other (`conditions.py`), so the ladder weighs it as such.
"""

from holdfast.actions import AnyAction, CheckNodes
from holdfast.controller import conditions
from holdfast.controller.phases import Phase
from holdfast.controller.state import NodeState, State
from holdfast.events import Diagnosed, HealthChanged, NodesChecked, Severity

CONDITION = "failed-checks"


def review(state: State) -> list[AnyAction]:
    """Spares whose machines have not been checked, while the job trains."""
    if state.limits.checks != "spares" or state.phase is not Phase.RUNNING:
        return []
    due = [node for node in map(state.nodes.__getitem__, state.spares) if not node.asked]
    for node in due:
        node.asked = True
    if not due:
        return []
    names = tuple(node.node for node in due)
    return [CheckNodes(nodes=names, reason="spares are checked before they are counted on")]


def resumed(state: State) -> None:
    """Whoever was asked by a former controller may have answered to nobody."""
    for node in state.nodes.values():
        node.asked = node.checked


def check_all(state: State, verdict: Diagnosed, why: str) -> CheckNodes:
    """Of the members; what is done about this verdict is decided once they have answered."""
    state.suspicion = verdict
    members = tuple(sorted(state.ranks.values()))
    return CheckNodes(nodes=members, attempt=verdict.attempt, reason=why)


def check_again(state: State) -> list[AnyAction]:
    """The answer may have been lost with a controller."""
    verdict = state.suspicion
    if verdict is None or verdict.attempt != state.attempt:
        return []
    return [check_all(state, verdict, "machines are checked, and nobody has told what they found")]


def heard(state: State, event: NodesChecked) -> Diagnosed | None:
    """The verdict that has waited for this, if one has; members that failed have a fault now."""
    for node_id, why in event.found.items():
        node = state.nodes.get(node_id)
        if node is None:
            continue
        node.checked = not why
        if node.state is NodeState.MEMBER:
            conditions.remember(state, node, _condition(node_id, why))
    for node in filter(None, map(state.nodes.get, event.missing)):
        node.asked = False  # it is asked again with the next news, not at once
    verdict, waits = state.suspicion, state.phase is Phase.RECOVERING and state.stopped
    if verdict is None or not waits or not event.attempt == verdict.attempt == state.attempt:
        return None
    state.checked = True
    return verdict


def _condition(node: str, why: str) -> HealthChanged:
    return HealthChanged(
        node=node,
        condition=CONDITION,
        severity=Severity.FATAL if why else Severity.OK,
        detail=f"its machine failed its checks: {why}" if why else "",
        advice="run `holdfast check` on that machine",
    )
