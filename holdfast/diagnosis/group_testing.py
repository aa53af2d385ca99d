"""Which node is bad, where it only shows in a group: dual-phase testing (ByteRobust).

A fault that comes only at scale passes every check of one machine. So the step is repeated by
groups of nodes, each a smaller copy of the job: tensor and pipeline parallelism as they are, less
data parallelism. In phase one node x is in group x // m, in phase two in group x mod n, where m is
the size of a group and n their number. A bad node makes its group fail in both, and with m ≤ n two
such groups share one node at most. Several bad nodes leave as many suspects as failed groups
cross: these are tested in a further round, each among nodes that are known to be good.

Nothing is remembered here: `next_step` says from the groups that were tried what is to be tried
next, so a controller that comes back goes on where it was (arXiv 2509.16293, section on replay).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isqrt
from typing import NamedTuple

Group = tuple[str, ...]  # nodes, in the order of their ranks


class TryGroups(NamedTuple):
    """Groups that have no node in common, to be tried at the same time."""

    groups: tuple[Group, ...]


class Located(NamedTuple):
    """What is known at the end. `sure`: each of them is bad; else one of them is, at least."""

    nodes: tuple[str, ...]
    sure: bool
    text: str


def next_step(nodes: Sequence[str], unit: int, failed: Mapping[Group, bool]) -> TryGroups | Located:
    """What is to be tried, or what was found. `unit` is how many nodes one data-parallel replica
    takes, `failed` says of each group that was tried whether it failed. Raises ValueError unless
    the nodes are whole replicas."""
    size, count = shape(len(nodes), unit)
    if count < 2:
        return Located(tuple(nodes), False, f"{len(nodes)} nodes cannot be divided")
    phases = (
        tuple(tuple(nodes[x : x + size]) for x in range(0, len(nodes), size)),
        tuple(tuple(nodes[b::count]) for b in range(count)),
    )
    for groups in phases:
        if untried := tuple(group for group in groups if group not in failed):
            return TryGroups(untried)
    bad = [[set(group) for group in groups if failed[group]] for groups in phases]
    suspects = [node for node in nodes if all(any(node in g for g in groups) for groups in bad)]
    if not all(bad):
        return _not_again([group for groups in bad for group in groups])
    if max(map(len, bad)) == 1 == len(suspects):
        return _found(suspects, size)
    return _further(nodes, suspects, size, failed)


def shape(nodes: int, unit: int) -> tuple[int, int]:
    """Nodes of a group and number of groups: groups as large as two of different phases may be that
    share one node at most. Raises ValueError."""
    if unit < 1 or nodes < 1 or nodes % unit:
        raise ValueError(f"{nodes} nodes are not whole replicas of {unit} nodes each")
    if unit == 1:  # groups may differ by one
        size = isqrt(nodes)
        return size, -(-nodes // size)
    replicas = nodes // unit
    fits = [k for k in range(1, replicas + 1) if replicas % k == 0 and k * unit <= replicas // k]
    size = max(fits, default=1) * unit
    return size, nodes // size


def _further(
    nodes: Sequence[str], suspects: Sequence[str], size: int, failed: Mapping[Group, bool]
) -> TryGroups | Located:
    """Each suspect among nodes that are good: those are in a group that did not fail."""
    good = [node for node in nodes if node not in suspects]
    if len(good) < size - 1:
        told = f"{_names(suspects)} cannot be told apart: too few nodes are known to be good"
        return Located(tuple(suspects), False, told)
    for wave in _waves(suspects, good, size):
        if untried := tuple(group for group in wave if group not in failed):
            return TryGroups(untried)
    tried = [group for wave in _waves(suspects, good, size) for group in wave]
    found = [group[0] for group in tried if failed[group]]
    return _found(found, size) if found else _not_again([set(suspects)])


def _waves(suspects: Sequence[str], good: Sequence[str], size: int) -> Iterator[tuple[Group, ...]]:
    """As many at the same time as there are good nodes for."""
    others = size - 1
    at_once = len(good) // others if others else len(suspects)
    for first in range(0, len(suspects), at_once):
        wave = suspects[first : first + at_once]
        yield tuple(
            (suspect, *good[place * others : (place + 1) * others])
            for place, suspect in enumerate(wave)
        )


def _found(nodes: Iterable[str], size: int) -> Located:
    found = tuple(nodes)
    does, was = ("fails", "it was") if len(found) == 1 else ("fail", "they were")
    return Located(found, True, f"{_names(found)} {does} in every group of {size} {was} tried in")


def _not_again(groups: Sequence[set[str]]) -> Located:
    """Not one fault that comes each time."""
    if not groups:
        return Located((), True, "no group failed: the fault did not recur at this size")
    among = tuple(sorted({node for group in groups for node in group}))
    return Located(
        among, False, "a group failed once and its nodes did not in others: intermittent"
    )


def _names(nodes: Iterable[str]) -> str:
    return ", ".join(nodes)
