"""New nodes, and those of them that fail: others are asked for ever later, and not for ever.

What ends a new node before it can train (an image that does not start, memory that does not
suffice, a machine that is bad) most often ends the next one, too. So each that has died early in a
row makes the next be asked for later, as a kubelet does with containers that crash. Where the job
cannot go on without more nodes, a few in a row end that, unless another image is on its way, which
the next ones have; a job that trains lacks only its spares, and goes on asking, slowly.
"""

from holdfast.actions import AnyAction, Outcome
from holdfast.controller import attempts, machines, nodes, sizes, versions
from holdfast.controller.phases import Phase
from holdfast.controller.policies import restart
from holdfast.controller.state import Node, NodeState, State
from holdfast.events import NodeJoined

MAX_STILLBORN = 3  # new nodes in a row that failed: asking for more will not help
YOUNG_S = 60.0  # a spare that does not last for longer has failed as a new node


def joined(state: State, event: NodeJoined) -> list[AnyAction]:
    """A node has registered, which may not fit."""
    actions = nodes.join(state, event)
    if not actions:
        return []
    return [*actions, *_new_node_failed(state, f"a node is incompatible: {actions[0].reason}")]


def stillborn(state: State, why: str) -> list[AnyAction]:
    """A node that never registered is gone."""
    state.asked = max(0, state.asked - 1)
    return _new_node_failed(state, f"a node died before it registered: {why}")


def gone(state: State, node: Node, why: str, *, planned: bool) -> list[AnyAction]:
    """A node that had registered is; another one is asked for, unless it is too early for that."""
    ready_at = node.ready_at
    old = ready_at is not None and state.now - ready_at >= YOUNG_S
    if planned or old or node.state is NodeState.MEMBER:
        return nodes.top_up(state, f"{node.name} was lost: {why}")
    if node.joined_at < state.node_failed_at:
        return nodes.top_up(state, why)  # it came with the one before, and goes with it
    state.stillborn = max(state.stillborn, node.in_a_row)
    early = (
        "before it was ready" if ready_at is None else f"{state.now - ready_at:.0f} s after that"
    )
    return _new_node_failed(state, f"{node.name} died {early}: {why}")


def _new_node_failed(state: State, why: str) -> list[AnyAction]:
    """A new node has failed. A few in a row mean that others would fail as well."""
    state.stillborn += 1
    state.node_failed_at = state.now
    if state.phase is Phase.CLOSING:
        return []
    in_vain = state.stillborn >= MAX_STILLBORN and not versions.image_comes(state)
    if in_vain and lacks_nodes(state):
        return without_more(state, f"replacement nodes keep failing: {why}")
    wait_s = restart.next_node_s(state.stillborn)
    if wait_s:
        state.ask_at = state.now + wait_s
        state.held_back = f"{state.stillborn} new nodes in a row failed, the last: {why}"
        machines.tell(state, f"{state.held_back}; the next is asked for in {wait_s:g} s")
    return nodes.top_up(state, why)


def lacks_nodes(state: State) -> bool:
    """Whether the next attempt cannot begin without more of them."""
    return state.phase is Phase.WAITING and nodes.missing(state) > 0


def without_more(state: State, why: str) -> list[AnyAction]:
    """Train on with the nodes that there are, if these are enough."""
    if sizes.shrinks(state, alone=why):
        return attempts.try_start(state)
    return attempts.end(state, Outcome.GAVE_UP, why)
