"""Who keeps the copies of whose private state, and which losses of nodes that covers. Pure.

Each copy is one shift for all ranks: so many nodes on, and so many places on within the node. A
shift gives every rank exactly one copy to keep, whatever its size, and needs no table. Of all
shifts those are taken that lead out of the owner's parallel groups for the most ranks: what takes a
whole group (a pipeline's nodes, a rack that one data-parallel group fills) then leaves the
copies. Where nothing leads out, and where no groups are given, it is the same place on the next
nodes.
"""

from collections.abc import Iterator, Sequence
from math import comb

NODES_TRIED = 64  # how far away a copy may be: further ones are no better
RANKS_TRIED = 4096  # a layout repeats itself long before


def copy_holders(
    world_size: int,
    local_world_size: int,
    groups: Sequence[Sequence[int]] = (),
    copies: int = 1,
) -> tuple[tuple[int, ...], ...]:
    """For each rank those that keep a copy of its private part, on as many different nodes.

    `groups` are the tensor, pipeline and data parallel groups as tuples of ranks. There are never
    more holders than other nodes: none at all on a single node.
    """
    nodes = world_size // local_world_size
    members = _members(world_size, groups)
    shifts: list[tuple[int, int]] = []
    for _ in range(min(copies, nodes - 1)):
        used = {ahead for ahead, _ in shifts}
        free = [s for s in _shifts(nodes, local_world_size) if s[0] not in used]
        shifts.append(_best(free, members, local_world_size))
    return tuple(
        tuple(_shifted(rank, shift, world_size, local_world_size) for shift in shifts)
        for rank in range(world_size)
    )


def _shifts(nodes: int, local: int) -> Iterator[tuple[int, int]]:
    """Nodes on, places on; the nearest first."""
    for ahead in range(1, min(nodes, NODES_TRIED + 1)):
        for across in range(local):
            yield ahead, across


def _shifted(rank: int, shift: tuple[int, int], world_size: int, local: int) -> int:
    node, place = divmod(rank, local)
    return (node + shift[0]) * local % world_size + (place + shift[1]) % local


def _members(world_size: int, groups: Sequence[Sequence[int]]) -> list[set[int]]:
    """For each rank the numbers of the groups it is in."""
    found: list[set[int]] = [set() for _ in range(world_size)]
    for number, group in enumerate(groups):
        for rank in group if len(group) > 1 else ():
            found[rank].add(number)
    return found


def _best(
    shifts: Sequence[tuple[int, int]], members: Sequence[set[int]], local: int
) -> tuple[int, int]:
    """The first shift that leads fewest ranks into one of their own groups."""
    best, least = shifts[0], len(members) + 1
    for shift in shifts:
        inside = _inside(shift, members, local, least)
        if inside < least:
            best, least = shift, inside
        if least == 0:
            break
    return best


def _inside(shift: tuple[int, int], members: Sequence[set[int]], local: int, enough: int) -> int:
    """How many ranks share a group with the one this shift leads to, counted up to `enough`."""
    count, world_size = 0, len(members)
    for rank in range(min(world_size, RANKS_TRIED)):
        holder = _shifted(rank, shift, world_size, local)
        count += not members[rank].isdisjoint(members[holder])
        if count >= enough:
            break
    return count


def survival(nodes: int, copies: int, losses: int) -> float:
    """Probability that `losses` nodes lost at once leave every state somewhere in memory.

    With m = copies + 1 holders of each state, at most m - 1 losses are always survived. Beyond that
    GEMINI (Wang et al., SOSP 2023, section 4.2) bounds the probability from below by
    1 - S·C(N-m, k-m)/C(N, k), S being the number of different sets of holders: all sets of k lost
    nodes that take a whole set of holders are counted, some of them twice. Its groups of m have
    S = N/m; holders by shifts, as here, have S = N (N/2 where two nodes keep each other's).
    """
    holders = min(copies, nodes - 1) + 1
    if losses < holders:
        return 1.0
    if losses >= nodes:
        return 0.0
    sets = 1 if holders == nodes else nodes
    fatal = sets * comb(nodes - holders, losses - holders)
    return max(0.0, 1.0 - fatal / comb(nodes, losses))
