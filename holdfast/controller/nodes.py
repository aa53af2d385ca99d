"""Membership: who trains, who waits, who is gone.

Spares and vacant ranks are kept as lists, so that no fact costs more than what it changes, however
many nodes the job has.
"""

from bisect import insort
from collections.abc import Collection, Sequence

from holdfast.actions import AnyAction, AskNodes, AssignRank, Dismiss
from holdfast.controller import conditions
from holdfast.controller.state import Node, NodeState, State
from holdfast.counts import count
from holdfast.events import NodeJoined

PROBE_AFTER = 2  # new nodes in a row that failed: the next ones come one by one


def top_up(state: State, reason: str) -> list[AnyAction]:
    """Ask for as many nodes as are missing and not yet asked for."""
    if state.ask_at is not None and state.now < state.ask_at:
        return []
    state.ask_at = None
    missing = state.wanted - len(state.nodes) - state.asked
    if missing <= 0:
        return []
    if state.stillborn >= PROBE_AFTER:  # one shows whether others are of use
        coming = any(node.state is NodeState.JOINING for node in state.nodes.values())
        missing = 0 if state.asked or coming else 1
        if not missing:
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
        why = f"it has {count(event.workers, 'worker')}, the others {state.workers_per_node}"
        state.lost[event.node] = why
        return [Dismiss(node=event.node, reason=why)]
    state.nodes[event.node] = Node(
        node=event.node,
        name=event.name,
        address=event.address,
        workers=event.workers,
        rack=event.rack,
        joined_at=state.now,
    )
    return []


def ready(state: State, node: Node) -> None:
    """The node can start workers: unless it trains already, it waits for a rank from now on."""
    if node.state is NodeState.JOINING:
        if state.limits.checks != "spares":
            state.failed_checks = []  # it has passed, or nobody has checked it
        state.preparing.pop(node.node, None)
        if state.sizing.asked_at is not None:
            state.sizing.arrival_s = state.now - state.sizing.asked_at
            state.sizing.asked_at = state.now if state.asked else None
        if node.ready_at is None:
            node.ready_at, node.in_a_row, state.stillborn = state.now, state.stillborn, 0
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
    due = _due(state) if vacant else {}
    meant = {rank: due[rank] for rank in vacant if rank in due}
    _take(state, meant.values())
    chosen = conditions.soundest_spares(state, len(vacant) - len(meant))
    _take(state, chosen)
    state.vacant = []
    others = iter(chosen)
    return [
        _assign(state, state.nodes[meant.get(rank) or next(others)], rank, again=state.attempt > 0)
        for rank in vacant
    ]


def _due(state: State) -> dict[int | None, str]:
    """Who waits for which rank, of replicas of several nodes."""
    return {state.nodes[n].due: n for n in state.spares} if state.limits.nodes_each > 1 else {}


def _take(state: State, chosen: Collection[str]) -> None:
    taken = set(chosen)
    state.spares = [node for node in state.spares if node not in taken]


def resize(state: State, size: int) -> None:
    """So many node ranks from the next attempt on. Members beyond them wait, first in line, for the
    ranks that are vacant below: they have snapshots. Replicas of several nodes stay together: one
    that is whole takes the place of one that is not."""
    moves = _moves(state, size)
    state.sizing.size = size
    leaving = {to - to % state.limits.nodes_each for to in moves.values()}
    beyond = [
        (rank, node)
        for rank, node in sorted(state.ranks.items())
        if rank >= size or rank - rank % state.limits.nodes_each in leaving
    ]
    for node in state.nodes.values():
        node.due = None
    for rank, name in beyond:
        node = state.nodes[name]
        del state.ranks[rank]
        node.state, node.node_rank, node.due = NodeState.SPARE, None, moves.get(rank)
    state.spares = [*(name for _, name in beyond), *state.spares]
    if state.vacant is not None:
        state.vacant = [rank for rank in range(size) if rank not in state.ranks]


def _moves(state: State, size: int) -> dict[int, int]:
    """The ranks of whole replicas beyond `size`, and those that they get: of replicas below that
    lack a node."""
    each = state.limits.nodes_each
    if each == 1:
        return {}
    firsts = range(0, max(state.ranks, default=-1) + 1, each)
    whole = [f for f in firsts if all(f + place in state.ranks for place in range(each))]
    lacking = [first for first in range(0, size, each) if first not in whole]
    pairs = zip((first for first in whole if first >= size), lacking, strict=False)
    return {first + place: to + place for first, to in pairs for place in range(each)}


def surplus(state: State) -> list[Node]:
    """Nodes that wait although nobody has asked for so many, the last in line first."""
    count = max(0, len(state.nodes) - state.wanted)
    return [state.nodes[node] for node in reversed(state.spares)][:count]


def remove(state: State, node_id: str, why: str) -> Node | None:
    """Strike a node off; its id is remembered, so that it can never come back."""
    state.lost[node_id] = why
    state.faults.pop(node_id, None)
    state.kept_restarts.pop(node_id, None)
    state.health.pop(node_id, None)
    state.preparing.pop(node_id, None)
    state.doubted.pop(node_id, None)
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
    if not state.vacant:
        state.wait_deadline = None  # that was for a store
    del state.ranks[node.node_rank]
    state.sizing.stop_at = None  # a stop that had to wait for its silence tells nothing of others
    insort(state.vacant, node.node_rank)


def step_back(state: State, unready: Sequence[str]) -> None:
    """Members that cannot start workers yet give their ranks to spares that can.

    Their snapshots stay behind, so only as many as copies make up for; else it is better to wait.
    Of replicas the others go on without them, if they are enough.
    """
    slow = [n for n in map(state.nodes.get, unready) if n and n.state is NodeState.MEMBER]
    limits, count = state.limits, len(slow)
    replaceable = not state.instrumented or (state.size > 1 and count <= limits.copies)
    dispensable = (state.size - limits.fewest) // limits.nodes_each if limits.replicas else 0
    if count > len(state.spares) + dispensable or not replaceable:
        return
    for node in slow:
        _vacate(state, node)
        node.state, node.node_rank, node.store = NodeState.JOINING, None, None
        state.tell(f"{node.name} gives up its rank: it cannot start workers yet")


def missing(state: State) -> int:
    """How many node ranks nobody can take yet."""
    return max(0, state.size - len(state.ranks) - len(state.spares))


def is_member(state: State, node_id: str) -> bool:
    """Whether it has a rank."""
    node = state.nodes.get(node_id)
    return node is not None and node.node_rank is not None


def ranks_of(state: State, node: Node) -> range:
    """The worker ranks of a member."""
    assert node.node_rank is not None
    first = node.node_rank * state.workers_per_node
    return range(first, first + state.workers_per_node)


def _assign(state: State, node: Node, rank: int, *, again: bool) -> AssignRank:
    cold, node.warm = not node.warm, True
    node.state, node.node_rank = NodeState.MEMBER, rank
    state.ranks[rank] = node.node
    late = "; its workers were not ready yet" if cold else ""
    took = f"{node.name} takes over node rank {rank}{late}"
    why = took if again else f"first roster: {node.name}"
    return AssignRank(node=node.node, node_rank=rank, reason=why)
