"""Checks of machines that the controller orders: of spares while they wait, and of all members
where attempt after attempt makes no progress and no machine is blamed.

A spare counts as one only once its machine has passed (`conditions.sound_spares`), and one that
fails is replaced before it is needed. What a check finds in a member is a condition of that node
like any other (`conditions.py`), so the ladder weighs it as such.

What is wrong with an image, a driver or anything else that nodes have in common fails on every
machine, and leaving one after the other ends with none. So where a machine fails a check that the
one before it failed, and none has passed since, or where too many have failed, it is not the
machine: a spare then stays, warm and not counted, and is checked again.
"""

from holdfast.actions import AnyAction, CheckNodes
from holdfast.controller import conditions
from holdfast.controller.phases import Phase
from holdfast.controller.policies import replace
from holdfast.controller.state import FailedCheck, Node, NodeState, State
from holdfast.events import Diagnosed, HealthChanged, NodesChecked, Severity

CONDITION = "failed-checks"
AGAIN_S = 600.0  # until spares that have failed and stay are checked again
IN_A_ROW = 2  # machines that have failed, whatever it was: no other one is left


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


def recheck(state: State) -> None:
    """It is time for those that have failed and stay."""
    if state.recheck_at is not None and state.now >= state.recheck_at:
        state.recheck_at = None
        for node in state.nodes.values():
            node.asked = node.asked and not _has_failed(state, node)


def resumed(state: State) -> None:
    """Whoever was asked by a former controller may have answered to nobody."""
    for node in state.nodes.values():
        node.asked = node.checked


def failed(state: State, node: Node, why: str) -> None:
    """A machine has failed its checks."""
    others = [one for one in state.failed_checks if one.node != node.node]
    others = [one for one in others if state.now - one.at < replace.WINDOW_S]
    check = why.partition(":")[0]
    state.failed_checks = [*others, FailedCheck(state.now, node.node, node.name, check)]


def innocent(state: State, node: Node) -> str:
    """A machine that waits has failed: why it is not to be left for that. Empty if it is, which
    then counts as one of those that may be cordoned."""
    if why := _shared(state, node):
        return why
    limit = conditions.cordon(state, node)
    return f"of the machines that this job may leave, {limit}" if limit else ""


def _shared(state: State, node: Node) -> str:
    """Why it is probably not this machine's fault that it has failed; empty if it may be."""
    own = next((one for one in state.failed_checks if one.node == node.node), None)
    if own is None:  # another one has passed at the same time
        return ""
    others = [one for one in state.failed_checks if one is not own]
    if same := [one for one in others if one.check == own.check]:
        return f"{same[-1].name} has failed the same check, so look at what nodes share"
    if len(others) >= IN_A_ROW:
        return f"{len(others)} others have failed theirs, so look at what nodes share"
    return ""


def keep(state: State, node: Node, why: str, reason: str) -> None:
    """A spare has failed, and not for its machine: it stays, and does not count."""
    known = _has_failed(state, node)
    conditions.remember(state, node, _condition(node.node, why, Severity.WARN))
    state.recheck_at = state.recheck_at or state.now + AGAIN_S
    if not known:
        again = f"it does not count as a spare, and is checked again every {AGAIN_S / 60:.0f} min"
        tell(state, f"spare {node.name} has failed its checks ({why}) and stays: {reason}; {again}")


def _has_failed(state: State, node: Node) -> bool:
    return any(one.condition == CONDITION for one in conditions.standing(state, node.node))


def tell(state: State, what: str) -> None:
    """Write down what has become of a node that does not train."""
    state.note(state.max_step or 0, 0, what)


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
    """The verdict that has waited for this, if one has; members that failed have a fault now,
    unless most have, or others have failed likewise."""
    found = {n: why for n, why in event.found.items() if n in state.nodes}
    _compare(state, found)
    for node in filter(None, map(state.nodes.get, event.missing)):
        node.asked = False  # it is asked again with the next news, not at once
    verdict, waits = state.suspicion, state.phase is Phase.RECOVERING and state.stopped
    if verdict is None or not waits or not event.attempt == verdict.attempt == state.attempt:
        return None
    state.checked = True
    return verdict


def _compare(state: State, found: dict[str, str]) -> None:
    """What machines have found at the same time. Where one passes, a failure is another's own."""
    passes = not all(found.values())
    state.failed_checks = [] if passes else state.failed_checks
    for node, why in ((state.nodes[node_id], why) for node_id, why in found.items()):
        node.checked = not why
        if why and not passes:
            failed(state, node, why)
        elif not why and node.state is NodeState.SPARE and _has_failed(state, node):
            tell(state, f"spare {node.name} has passed its checks and counts again")
    members = {node: why for node, why in found.items() if node in state.ranks.values()}
    bad = {node: why for node, why in members.items() if why}
    if not (len(bad) > 1 and 2 * len(bad) > len(members)):
        bad = {node: why for node, why in bad.items() if _shared(state, state.nodes[node])}
    if bad:
        count = f"{len(bad)} of {len(members)} machines that train and were checked have failed"
        told = next(iter(bad.values()))
        tell(state, f"{count}, and none is left for that: look at what nodes share ({told})")
    for node_id, why in found.items():
        if not why or (node_id in members and node_id not in bad):
            conditions.remember(state, state.nodes[node_id], _condition(node_id, why))


def _condition(node: str, why: str, severity: Severity = Severity.FATAL) -> HealthChanged:
    return HealthChanged(
        node=node,
        condition=CONDITION,
        severity=severity if why else Severity.OK,
        detail=f"its machine failed its checks: {why}" if why else "",
        advice="run `holdfast check` on that machine",
    )
