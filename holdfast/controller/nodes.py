"""Membership: who trains, who waits, who is gone.

Spares and vacant ranks are kept as lists, so that no fact costs more than what it changes, however
many nodes the job has.
"""

from bisect import insort
from collections.abc import Sequence

from holdfast.actions import AnyAction, AskNodes, AssignRank, Dismiss
from holdfast.controller import conditions
from holdfast.controller.state import Node, NodeState, State
from holdfast.events import NodeJoined


def top_up(state: State, reason: str) -> list[AnyAction]:
    """Ask for as many nodes as are missing and not yet asked for."""
    missing = state.wanted - len(state.nodes) - state.asked
    if missing <= 0:
        return []
    state.sizing.asked_at = state.sizing.asked_at or state.now
    state.asked += missing
    return [AskNodes(count=missing, reason=reason)]


def join(state: State, event: NodeJoined) -> list[AnyAction]:
    """Take a new node in, unless it cannot work with the others."""
    if event.node in state.nodes or event.node in state.lost:
        return []
    state.asked = max(0, state.asked - 1)
    state.workers_per_node = state.workers_per_node or event.workers
    if event.workers != state.workers_per_node:
        why = f"it has {event.workers} workers, the others {state.workers_per_node}"
        state.lost[event.node] = why
        return [Dismiss(node=event.node, reason=why)]
    state.stillborn = 0
    state.nodes[event.node] = Node(
        node=event.node,
        name=event.name,
        address=event.address,
        workers=event.workers,
        rack=event.rack,
    )
    return []


def ready(state: State, node: Node) -> None:
    """The node can start workers: unless it trains already, it waits for a rank from now on."""
    if node.state is NodeState.JOINING:
        state.unfit, node.preparing = 0, ""
        if state.sizing.asked_at is not None:
            state.sizing.arrival_s = state.now - state.sizing.asked_at
            state.sizing.asked_at = state.now if state.asked else None
        node.state = NodeState.SPARE
        state.spares.append(node.node)


def void_stores(state: State) -> None:
    """Nobody knows which stores have been used: each node that waits is to offer another one."""
    for node in state.nodes.values():
        node.store = None
        if node.state is NodeState.SPARE:
            node.state = NodeState.JOINING
    state.spares.clear()


def fill_ranks(state: State) -> list[AnyAction]:
    """Give vacant node ranks to spares, longest waiting first, once there are enough of them."""
    if missing(state):
        return []
    vacant = range(state.size) if state.vacant is None else state.vacant
    state.times.moved = state.times.moved or bool(vacant)
    chosen = conditions.soundest_spares(state, len(vacant))
    taken = set(chosen)
    state.spares = [node for node in state.spares if node not in taken]
    state.vacant = []
    return [
        _assign(state, state.nodes[node], rank, again=state.attempt > 0)
        for rank, node in zip(vacant, chosen, strict=True)
    ]


def resize(state: State, size: int) -> None:
    """So many node ranks from the next attempt on. Members beyond them wait, first in line, for the
    ranks that are vacant below: they have snapshots."""
    state.sizing.size = size
    beyond = [node for rank, node in sorted(state.ranks.items()) if rank >= size]
    for node in map(state.nodes.__getitem__, beyond):
        assert node.node_rank is not None, "it was found by its rank"
        del state.ranks[node.node_rank]
        node.state, node.node_rank = NodeState.SPARE, None
    state.spares = [*beyond, *state.spares]
    if state.vacant is not None:
        state.vacant = [rank for rank in range(size) if rank not in state.ranks]


def surplus(state: State) -> list[Node]:
    """Nodes that wait although nobody has asked for so many, the last in line first."""
    count = max(0, len(state.nodes) - state.wanted)
    return [state.nodes[node] for node in reversed(state.spares)][:count]


def remove(state: State, node_id: str, why: str) -> Node | None:
    """Strike a node off; its id is remembered, so that it can never come back."""
    state.lost[node_id] = why
    state.faults.pop(node_id, None)
    state.health.pop(node_id, None)
    node = state.nodes.pop(node_id, None)
    if node is None:
        return None
    if node.node_rank is not None:
        _vacate(state, node)
    elif node.state is NodeState.SPARE:
        state.spares.remove(node_id)
    state.tell(f"{node.name} removed: {why}")
    return node


def _vacate(state: State, node: Node) -> None:
    assert node.node_rank is not None, "a member has a rank"
    assert state.vacant is not None, "a rank was given out, so vacant ranks are counted"
    del state.ranks[node.node_rank]
    insort(state.vacant, node.node_rank)


def step_back(state: State, unready: Sequence[str]) -> None:
    """Members that cannot start workers yet give their ranks to spares that can.

    Their snapshots stay behind, so only as many as copies make up for; else it is better to wait.
    Of replicas the others go on without them, if they are enough.
    """
    slow = [n for n in map(state.nodes.get, unready) if n and n.state is NodeState.MEMBER]
    limits, count = state.limits, len(slow)
    replaceable = not state.instrumented or (state.size > 1 and count <= limits.copies)
    dispensable = state.size - limits.fewest if limits.replicas else 0
    if count > len(state.spares) + dispensable or not replaceable:
        return
    for node in slow:
        _vacate(state, node)
        node.state, node.node_rank, node.store = NodeState.JOINING, None, None
        state.tell(f"{node.name} gives up its rank: it cannot start workers yet")


def missing(state: State) -> int:
    """How many node ranks nobody can take yet."""
    return max(0, state.size - len(state.ranks) - len(state.spares))


def ranks_of(state: State, node: Node) -> range:
    """The worker ranks of a member."""
    assert node.node_rank is not None
    first = node.node_rank * state.workers_per_node
    return range(first, first + state.workers_per_node)


def _assign(state: State, node: Node, rank: int, *, again: bool) -> AssignRank:
    node.state, node.node_rank = NodeState.MEMBER, rank
    state.ranks[rank] = node.node
    why = f"{node.name} takes over node rank {rank}" if again else f"first roster: {node.name}"
    return AssignRank(node=node.node, node_rank=rank, reason=why)
