"""What is known of the health of nodes, and what it explains.

A fault is a condition that will not pass by itself. A worker that fails on a node with one, or
that lost its connection while another node has one, is explained by it. An error of the script
stays one, whatever its node looks like.
"""

import msgspec

from holdfast.controller.policies import replace
from holdfast.controller.policies.ladder import ALERTS_S, is_lasting
from holdfast.controller.state import HealthRecord, LeftNode, Node, State
from holdfast.events import Diagnosed, HealthChanged, Severity

CAUSE = "hardware-fault"
RECENT_S = 120.0  # a fault explains what fails on other nodes for so long
# agents repeat what a controller has not acknowledged, with its age; the first time it may have
# been on its way for so long, unnoticed: later a connection is given up
SAME_S = 10.0
KEPT_MAX = 80  # conditions of one node
CONFIDENCE = 0.9
SYMPTOMS = frozenset(("peer-lost", "hang", "worker-aborted"))  # that another node may have caused

UNTOLD = "worker-exit"  # an exit status without a word may be the script's, or anything else


def remember(state: State, node: Node, event: HealthChanged) -> bool:
    """Whether it is a fault now."""
    known, key = state.health.setdefault(node.node, {}), key_of(event)
    if event.severity is Severity.OK:
        _forget(state, node, key)
        return False
    before, at = known.get(key), state.now - event.ago_s
    if before is None and len(known) >= KEPT_MAX:
        return False
    alerts = list(before.alerts) if before is not None else []
    if event.severity is Severity.ALERT:
        others = (alert for alert in alerts if abs(at - alert) > SAME_S)
        alerts = [*(alert for alert in others if alert > at - ALERTS_S), at]
    known[key] = HealthRecord(
        condition=event.condition,
        device=event.device,
        severity=event.severity,
        detail=event.detail,
        advice=event.advice,
        at=at,
        alerts=alerts,
        fault=is_lasting(event.severity, len(alerts)),
    )
    return known[key].fault


def key_of(event: HealthChanged) -> str:
    """Under which a condition is remembered."""
    return f"{event.condition} {event.device}"


def _forget(state: State, node: Node, key: str) -> None:
    """It is over. An alert that is over is remembered, in case that it comes again."""
    known = state.health[node.node]
    before = known.get(key)
    if before is not None and before.alerts and not before.fault:
        known[key] = msgspec.structs.replace(before, severity=Severity.OK)
    else:
        known.pop(key, None)
    if not known:
        del state.health[node.node]


def faults(state: State, node_id: str) -> list[HealthRecord]:
    """What will not pass by itself on this node, in the order in which it began."""
    return [one for one in _lasting(state, node_id) if one.severity is not Severity.LEAVES]


def departure(state: State, node_id: str) -> HealthRecord | None:
    """Why this node, which has no fault, will be taken away."""
    known = _lasting(state, node_id)
    return known[0] if known and not faults(state, node_id) else None


def _lasting(state: State, node_id: str) -> list[HealthRecord]:
    known = state.health.get(node_id)
    if not known:
        return []
    return sorted((one for one in known.values() if one.fault), key=lambda one: one.at)


def is_doubtful(state: State, node_id: str) -> bool:
    """Whether it should not train: it has a fault, or is about to go."""
    return bool(_lasting(state, node_id))


def standing(state: State, node_id: str) -> list[HealthRecord]:
    """All that is so on this node now, the gravest first."""
    known = [one for one in state.health.get(node_id, {}).values() if not one.over]
    return sorted(known, key=lambda one: (not one.fault, one.at))


def sound_spares(state: State) -> int:
    """How many spares are warm, have no fault, have passed their checks, and stay."""
    checks = state.limits.checks == "spares"
    spares = map(state.nodes.__getitem__, state.spares)
    return sum(
        node.warm and (node.checked or not checks) and not is_doubtful(state, node.node)
        for node in spares
    )


def cold_spares(state: State) -> int:
    """How many spares have workers that are not ready yet."""
    return sum(not state.nodes[node].warm for node in state.spares)


def soundest_spares(state: State, count: int) -> list[str]:
    """So many spares, longest waiting first, those that nobody has checked after those that passed,
    those whose workers are not ready after these, those with a fault or about to go last."""
    doubts = {
        n: (is_doubtful(state, n), not state.nodes[n].warm, not state.nodes[n].checked)
        for n in state.spares
    }
    return sorted(state.spares, key=lambda n: doubts[n])[:count]


def retiring(state: State) -> list[str]:
    """Members with a fault, or about to go, for which there are spares without either, in the order
    of their ranks. What they alone have in memory stays behind, so no more of them go at once than
    copies make up for, beside who is missing already."""
    if not state.health:
        return []
    stays = not state.limits.replace_after  # whatever its faults; who goes, goes
    sick = [
        node
        for _, node in sorted(state.ranks.items())
        if (departure(state, node) if stays else is_doubtful(state, node))
    ]
    sick = [n for n in sick if departure(state, n) or not held(state, state.nodes[n])]
    missing = len(state.vacant or ())
    bearable = max(1, state.limits.copies) if state.instrumented else state.size
    return sick[: max(0, min(sound_spares(state), bearable) - missing)]


def held(state: State, node: Node | None) -> str:
    """Why no node, or not this one, is left for what it is blamed for: others were, just before."""
    recent = _recent_removals(state)
    most = replace.removals_most(state.limits.node_count)
    if len(recent) >= most:
        return f"{len(recent)} nodes were removed in the last hour, the limit for this job"
    if node is None or not node.rack:
        return ""
    there = sum(1 for one in recent if one.rack == node.rack)
    rack = there + sum(1 for other in state.nodes.values() if other.rack == node.rack)
    if there >= max(replace.REMOVALS_OF_RACK_MIN, replace.most_of_rack(rack)):
        return f"nodes removed from {node.rack} in the last hour: {there}; check that rack"
    return ""


def held_s(state: State, node: Node | None) -> float:
    """Until the first of those that keep this node does so no more."""
    recent = _recent_removals(state)
    if node is not None and len(recent) < replace.removals_most(state.limits.node_count):
        recent = [one for one in recent if one.rack == node.rack]
    return recent[0].at + replace.REMOVALS_S - state.now if recent else 0.0


def kept(state: State) -> dict[str, list[float]]:
    """Members that were to be left and stayed, and the restarts within an hour that this led to."""
    since = state.now - replace.REMOVALS_S
    recent = {n: [at for at in times if at > since] for n, times in state.kept_restarts.items()}
    return {node: times for node, times in recent.items() if times}


def _recent_removals(state: State) -> list[LeftNode]:
    since = state.now - replace.REMOVALS_S + replace.ROUNDING_S
    return [one for one in state.removals if one.at > since]


def removed(state: State, node: Node) -> None:
    """It is left because it is blamed."""
    state.removals = [*_recent_removals(state), LeftNode(state.now, node.rack)]


def held_until(state: State) -> float | None:
    """When a member that has a fault, and for which a spare waits, may be left; None if none is
    held back."""
    sick = [node for node in state.health if state.nodes[node].node_rank is not None]
    kept = any(faults(state, node) and held(state, state.nodes[node]) for node in sick)
    if not (kept and state.limits.replace_after and sound_spares(state)):
        return None
    return min(one.at for one in _recent_removals(state)) + replace.REMOVALS_S


def cordon(state: State, node: Node) -> str:
    """A node is given up for its faults: whether its machine is cordoned for everybody. Empty if it
    is; else why not: too many were within a day, of this job or of this rack."""
    recent = replace.recent(state.cordoned, state.now)
    there = replace.recent(state.cordoned_there.get(node.rack, []), state.now)
    rack = sum(1 for other in state.nodes.values() if other.rack == node.rack) + len(there)
    state.cordoned = recent
    if len(recent) >= replace.cordons_most(state.limits.node_count):
        return f"{len(recent)} cordoned within a day"
    if node.rack and len(there) >= replace.most_of_rack(rack):
        return f"{len(there)} of {node.rack} cordoned within a day, so check what that rack shares"
    state.cordoned = [*recent, state.now]
    if node.rack:
        state.cordoned_there[node.rack] = [*there, state.now]
    return ""


def explained(state: State, verdict: Diagnosed) -> Diagnosed:
    """The verdict, unless a fault of a node explains the failure better; then the incident gets the
    conditions of that node as well."""
    incident = state.open_incident
    if incident is None:
        return verdict
    if incident.cause == CAUSE:
        node, summary = _opened_for(state), incident.summary
    elif (node := _faulty(state, verdict)) is not None:
        first = verdict.summary.rstrip(".")
        summary = f"{node.name}: {faults(state, node.node)[0].detail} (first seen: {first})"
    else:
        return verdict
    if node is not None:
        incident.health = _told(state, node)
    return msgspec.structs.replace(
        verdict,
        cause=CAUSE,
        summary=summary,
        confidence=CONFIDENCE,
        rank=_rank_of(state, node, verdict.rank),
        user_error=False,
        environment=False,
        final=False,
        signature=None,
    )


def _rank_of(state: State, node: Node | None, failed: int | None) -> int | None:
    """A rank of this node, the one that failed if it is there; None if it is no member any more:
    whoever else failed did so because of it."""
    if node is None or node.node_rank is None:
        return None
    own = _member_of(state, failed) is node
    return failed if own else node.node_rank * state.workers_per_node


def _opened_for(state: State) -> Node | None:
    """The node for whose fault the attempt was stopped; it may have given up its rank meanwhile."""
    name = state.incidents[-1].node
    return next((node for node in state.nodes.values() if node.name == name), None)


def _faulty(state: State, verdict: Diagnosed) -> Node | None:
    """The member whose fault explains a failure: the one that is blamed or, where it only lost its
    connection to others, the one with the newest fault."""
    told = verdict.user_error and verdict.cause != UNTOLD
    told &= not replace.blames_machine(verdict.cause)  # what is known of one outweighs what repeats
    if told or verdict.final or state.bad_step is not None or not state.health:
        return None
    own = _member_of(state, verdict.rank)
    if own is not None and faults(state, own.node):
        return own
    if verdict.cause not in SYMPTOMS:
        return None
    members = (node for node in state.ranks.values() if faults(state, node))
    recent = [(faults(state, node)[-1].at, node) for node in members]
    at, newest = max(recent, default=(0.0, ""))
    return state.nodes[newest] if newest and state.now - at < RECENT_S else None


def _member_of(state: State, rank: int | None) -> Node | None:
    if rank is None or not state.workers_per_node:
        return None
    return state.nodes.get(state.ranks.get(rank // state.workers_per_node, ""))


def _told(state: State, node: Node) -> list[str]:
    """What is so on a node, for people."""
    return [
        f"{node.name}, {one.severity}, {state.now - one.at:.1f} s ago: {one.detail}; {one.advice}"
        for one in standing(state, node.node)
    ]
