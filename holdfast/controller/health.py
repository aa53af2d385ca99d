"""Conditions of nodes: their GPUs, machines and links, as their agents tell them.

What will not pass by itself ends the attempt, and the node gives its rank to a spare that is sound.
Without one training goes on until there is one, or until it fails: a doubtful node is better than
none. Alerts of the network are tolerated once, and count as such a fault when they come twice
within five minutes (ByteRobust, arXiv 2509.16293, does so). Warnings are told; nobody is replaced
for being slow.

A node that is about to be taken away (`Severity.LEAVES`) has no fault: the attempt is stopped at
the end of a step that is in the memory of other nodes, a spare takes its rank, and that is no
failure. Without a spare it trains for as long as it is there.
"""

from holdfast.actions import AnyAction
from holdfast.controller import attempts, choices, conditions, incidents
from holdfast.controller.phases import TRAINING, Phase
from holdfast.controller.policies.ladder import ALERT
from holdfast.controller.policies.situation import Rung, Trouble
from holdfast.controller.state import Node, State
from holdfast.events import COMMON_CONDITIONS, HealthChanged, Keeps, Severity


def changed(state: State, event: HealthChanged) -> list[AnyAction]:
    """Remember what is so now, and act on what will not pass by itself."""
    node = state.nodes.get(event.node)
    if node is None:
        return []
    first = _is_first(state, event)
    lasting = conditions.remember(state, node, event)
    if first:
        told = f"{event.detail} (first seen on {node.name}; no node is replaced for it)"
        state.note(state.max_step or 0, 0, f"{told}: {event.advice}")
    if not (lasting or event.severity is Severity.ALERT):
        return []
    state.tell(f"{node.name}: {event.detail}")
    _tolerate(state, node, event, lasting=lasting)
    return review(state) if lasting else []


def _is_first(state: State, event: HealthChanged) -> bool:
    """Whether this is wrong for all nodes alike, and no node has told it yet."""
    if event.condition not in COMMON_CONDITIONS or event.severity is Severity.OK:
        return False
    key = conditions.key_of(event)
    return not any(key in known for known in state.health.values())


def _tolerate(state: State, node: Node, event: HealthChanged, *, lasting: bool) -> None:
    """Write down that a member trains on with it."""
    if node.node_rank is None or state.phase not in TRAINING:
        return
    trouble = Trouble(cause=ALERT, summary=event.detail, node=node.name, trains=True)
    if lasting and not conditions.faults(state, node.node):
        return  # it is well, and about to go
    if lasting:
        trouble = choices.of_fault(state, node, trains=True)
    chosen = choices.choose(state, trouble)
    if chosen.rung is Rung.CARRY_ON:
        choices.record(state, chosen, trouble, incident=False)


def review(state: State) -> list[AnyAction]:
    """Stop an attempt in which a member has a fault and somebody sound can take its place."""
    state.held_until = None
    if state.phase not in TRAINING:
        return []
    state.held_until = conditions.held_until(state)
    sick = [state.nodes[node] for node in conditions.retiring(state)]
    sick = [node for node in sick if not attempts.all_finished(state, node)]
    first = next((node for node in sick if conditions.faults(state, node.node)), None)
    first = first or next(iter(sick), None)
    if first is None:
        return []
    if conditions.departure(state, first.node) is not None:
        return _hand_over(state, sick)
    fault = conditions.faults(state, first.node)[0]
    incidents.open_for_health(state, first, fault, conditions.CAUSE)
    trouble = choices.of_fault(state, first, trains=True)
    choices.record(state, choices.choose(state, trouble), trouble)
    return attempts.stop(state, Phase.RECOVERING, trouble.summary, state.limits.restart_grace_s)


def _hand_over(state: State, leaving: list[Node]) -> list[AnyAction]:
    """Their ranks, to spares, before they are gone."""
    first = conditions.departure(state, leaving[0].node)
    assert first is not None, "it is about to go"
    why = f"{leaving[0].name} hands over: {first.detail}"
    incidents.open_for_departure(state, [node.name for node in leaving], why)
    runs = state.phase is Phase.RUNNING
    alone = state.size == 1
    keeps: Keeps = "elsewhere" if runs and not alone else ""
    grace_s = state.limits.stop_grace_s
    return attempts.stop(state, Phase.RECOVERING, why, grace_s, keeps=keeps, save=runs and alone)
