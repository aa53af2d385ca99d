"""Checks of machines that the controller orders: of spares while they wait, and of all members
where attempt after attempt makes no progress and no machine is blamed.

A spare counts as one only once its machine has passed (`conditions.sound_spares`), and one that
fails is replaced before it is needed. What a check finds in a member is a condition of that node
like any other (`conditions.py`), so the ladder weighs it as such.

What is wrong with an image, a driver or anything else that nodes have in common fails on every
machine, and leaving one after the other ends with none. So before a machine is left, another one
repeats the check that it has failed, beside it: a spare or, where there is no other, a member,
which trains on. Where that one fails likewise, or one before it has and none has passed since, or
where too many have failed, it is not the machine: a spare then stays, warm and not counted, and is
checked again; so it does while nobody has answered.

A member whose network is slow has failed as well, where attempts have failed one after the other.
If it is not replaced then, training is tried with it all the same, and slowness alone stops
nothing: it is a warning from then on. So it is from the beginning where steps had only become
slower.
"""

import re
from collections.abc import Collection

from holdfast.actions import AnyAction, CheckNodes
from holdfast.controller import conditions
from holdfast.controller.phases import Phase
from holdfast.controller.policies import replace
from holdfast.controller.policies.ladder import PUZZLING
from holdfast.controller.state import FailedCheck, Node, NodeState, State, UnclearFailure
from holdfast.counts import count
from holdfast.events import Diagnosed, HealthChanged, NodesChecked, Severity

CONDITION = "failed-checks"
NETWORK, SLOW_NETWORK = "network", "slow-network"  # as a check, and as a condition
AGAIN_S = 600.0  # until spares that have failed and stay are checked again
IN_A_ROW = 2  # machines that have failed, whatever it was: no other one is left
SHARED = "check what the nodes share (storage, network, image)"


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
    if state.limits.checks == "spares":
        state.doubted.clear()


def failed(state: State, node: Node, why: str) -> None:
    """A machine has failed its checks."""
    others = [one for one in state.failed_checks if one.node != node.node]
    others = [one for one in others if state.now - one.at < replace.WINDOW_S]
    state.failed_checks = [*others, FailedCheck(state.now, node.node, node.name, _checks_of(why))]


def _checks_of(why: str) -> tuple[str, ...]:
    """The names of the checks that have failed."""
    return tuple(part.partition(":")[0] for part in why.split("; "))


def compare_with_another(state: State, node: Node, why: str) -> list[AnyAction]:
    """It is not known yet whose fault it is, were others checked at the same time or not: what all
    share may have failed since they passed. Another node is checked for the same, and this one once
    more. Nothing if that was done, or there is none."""
    if state.doubted.pop(node.node, None) is not None:
        return []
    other = _witness(state, node)
    if other is None:
        return []
    state.doubted[node.node] = UnclearFailure(why, other)
    return [_repeated_check(node.node, other, node.name, why)]


def _repeated_check(node: str, other: str, name: str, why: str) -> CheckNodes:
    reason = f"{name} has failed its checks ({why}): does another machine fail the same check?"
    return CheckNodes(nodes=(node, other), beside=_checks_of(why)[0], reason=reason)


def compare_again(state: State) -> list[AnyAction]:
    """What a former controller was told of it is lost."""
    return [
        _repeated_check(node, doubt.witness, state.nodes[node].name, doubt.why)
        for node, doubt in state.doubted.items()
    ]


def unanswered(state: State, event: NodesChecked) -> list[tuple[str, str]]:
    """Nodes that wait and were to repeat a check of theirs beside another one, and have not; and
    what they had found. Those that have passed are in doubt no more."""
    for node in [node for node, why in event.found.items() if not why]:
        state.doubted.pop(node, None)
    missing = [node for node in event.missing if node in state.doubted]
    for node in [node for node in missing if node in state.ranks.values()]:
        del state.doubted[node]  # it trains meanwhile, and goes on
    return [(node, state.doubted[node].why) for node in missing if node in state.doubted]


def _witness(state: State, node: Node) -> str | None:
    """A node that can train, and has failed nothing: a spare, else the member of the last rank."""
    members = [one for _, one in sorted(state.ranks.items(), reverse=True)]
    others = [one for one in [*state.spares, *members] if one != node.node]
    sound = [one for one in others if not conditions.standing(state, one)]
    return next(iter([*sound, *others]), None)


def innocent(state: State, node: Node) -> str:
    """A machine that waits has failed: why it is not to be left for that. Empty if it is, which
    then counts as one of those that may be cordoned."""
    if why := shared(state, node):
        return why
    limit = conditions.cordon(state, node)
    return f"limit of excluded machines reached ({limit})" if limit else ""


def shared(state: State, node: Node) -> str:
    """Why it is probably not this machine's fault that it has failed; empty if it may be."""
    own = next((one for one in state.failed_checks if one.node == node.node), None)
    if own is None:  # another one has passed at the same time
        return ""
    others = [one for one in state.failed_checks if one is not own]
    same = [one for one in others if set(one.checks) & set(own.checks)]
    if set(own.checks) <= {check for one in same for check in one.checks}:
        return f"{same[-1].name} failed the same check, so {SHARED}"
    if len(others) >= IN_A_ROW:
        return f"{len(others)} others failed theirs, so {SHARED}"
    return ""


def keep(state: State, node: Node, why: str, reason: str) -> None:
    """A spare has failed, and not for its machine: it stays, and does not count."""
    known = _has_failed(state, node)
    conditions.remember(state, node, _condition(node.node, why, Severity.WARN))
    state.recheck_at = state.recheck_at or state.now + AGAIN_S
    if not known:
        again = f"it is not used as a spare, and is checked again every {AGAIN_S / 60:.0f} min"
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
    return [check_all(state, verdict, "machine checks were not reported; checking again")]


def heard(state: State, event: NodesChecked) -> Diagnosed | None:
    """The verdict that has waited for this, if one has; members that failed have a fault now,
    unless most have, or others have failed likewise."""
    found = {n: why for n, why in event.found.items() if n in state.nodes}
    passes = not all(found.values())
    unclear = [node for node in found if is_unclear(state, event, node)]
    _compare(state, _without_witnesses(state, found), unclear, passes=passes)
    for node in filter(None, map(state.nodes.get, event.missing)):
        node.asked = False  # it is asked again with the next news, not at once
    verdict, waits = state.suspicion, state.phase is Phase.RECOVERING and state.stopped
    if verdict is None or not waits or not event.attempt == verdict.attempt == state.attempt:
        return None
    state.checked = True
    return verdict


def _without_witnesses(state: State, found: dict[str, str]) -> dict[str, str]:
    """Members that have repeated a check while they train are no worse for how that ended; one that
    failed likewise counts for the one that is doubted."""
    asked = {n: d for n, d in state.doubted.items() if d.witness in state.ranks.values()}
    for node, doubt in asked.items():
        if alike(found.get(doubt.witness, ""), found.get(node, "")):
            failed(state, state.nodes[doubt.witness], found[doubt.witness])
    told = {doubt.witness for doubt in asked.values()}
    return {node: why for node, why in found.items() if node not in told}


def alike(one: str, other: str) -> bool:
    """Whether two machines have found the same, whatever they have counted."""
    told = [set(re.sub(r"\d+", "", why).split("; ")) for why in (one, other) if why]
    return len(told) == 2 and bool(told[0] & told[1])


def is_unclear(state: State, event: NodesChecked, node_id: str) -> bool:
    """Whether a member has failed that was asked as a spare, so that no other one was at once."""
    doubt = state.doubted.get(node_id)
    compared = doubt is not None and doubt.witness in event.found
    compared = compared or any(one.witness == node_id for one in state.doubted.values())
    alone = not (event.attempt or event.told or compared)
    return alone and bool(event.found[node_id]) and node_id in state.ranks.values()


def compare_member(state: State, node: Node, why: str, *, unclear: bool) -> list[AnyAction]:
    """It is given up for what it has found only once another machine has told that it does not fail
    likewise."""
    if unclear and shared(state, node):
        return []
    asked = unclear or node.node in state.doubted
    return compare_with_another(state, node, why) if asked else []


def _compare(
    state: State, found: dict[str, str], unclear: Collection[str], *, passes: bool
) -> None:
    """What machines have found at the same time. Where one passes, a failure is another's own."""
    state.failed_checks = [] if passes else state.failed_checks
    for node, why in ((state.nodes[node_id], why) for node_id, why in found.items()):
        node.checked = not why
        if why and not passes:
            failed(state, node, why)
        elif not why and node.state is NodeState.SPARE and _has_failed(state, node):
            tell(state, f"spare {node.name} has passed its checks and is used again")
    members = {node: why for node, why in found.items() if node in state.ranks.values()}
    bad = {node: why for node, why in members.items() if why}
    if not (len(bad) > 1 and 2 * len(bad) > len(members)):
        bad = {node: why for node, why in bad.items() if shared(state, state.nodes[node])}
    if bad:
        of, told = count(len(members), "member"), next(iter(bad.values()))
        tell(state, f"of {of} checked, {len(bad)} failed ({told}), so none is replaced: {SHARED}")
    for node_id, why in found.items():
        if not why or (node_id in members and node_id not in bad and node_id not in unclear):
            slow = _checks_of(why) == (NETWORK,)
            node, own, links = state.nodes[node_id], "" if slow else why, why if slow else ""
            conditions.remember(state, node, _condition(node_id, own))
            if node_id in members:  # links of others are measured only where somebody asks
                fails = state.fruitless >= PUZZLING
                grave = Severity.FATAL if fails else Severity.WARN
                conditions.remember(state, node, _slow_network(node_id, links, grave))


def tolerate(state: State) -> None:
    """What follows from checks has been decided: training goes on with those that are only slow."""
    for node_id in state.ranks.values():
        for one in conditions.faults(state, node_id):
            if one.condition == SLOW_NETWORK:
                told = _slow_network(node_id, one.detail, Severity.WARN)
                conditions.remember(state, state.nodes[node_id], told)


def _slow_network(node: str, why: str, severity: Severity) -> HealthChanged:
    return HealthChanged(
        node=node,
        condition=SLOW_NETWORK,
        severity=severity if why else Severity.OK,
        detail=why,
        advice="check its interface, cable and switch port" if why else "",
    )


def _condition(node: str, why: str, severity: Severity = Severity.FATAL) -> HealthChanged:
    return HealthChanged(
        node=node,
        condition=CONDITION,
        severity=severity if why else Severity.OK,
        detail=f"its machine failed its checks: {why}" if why else "",
        advice="run `holdfast check` on that machine",
    )
