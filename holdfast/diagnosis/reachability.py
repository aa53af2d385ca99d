"""Who cannot reach whom, from a connection tried from some nodes to some others.

A node that several others cannot reach, or that cannot reach them, is where the trouble lies; a
single pair that cannot talk while others can is a link, and nobody is blamed for it. A network that
has come apart into groups is told as that. A refused connection is an answer: the way there works,
and nobody listens at the moment.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.evidence import PeerReach

LINKS_MAX = 6  # that are told
NAMES_MAX = 6  # in one line
FEW = 2  # bad links below which a node is not to blame

Links = dict[str, set[str]]  # node → others


class ReachFinding(NamedTuple):
    """What was found, for people, and which nodes are to blame, the worst first, each with its
    line."""

    lines: tuple[str, ...]
    blamed: Mapping[str, str]


def judge(looks: Mapping[str, Iterable[PeerReach]]) -> ReachFinding | None:
    """What the nodes tell that were asked, by name. None: everybody could reach everybody."""
    found = {asker: list(told) for asker, told in looks.items()}
    tried = [(a, b) for a, told in found.items() for b in told]
    failed = [(a, b) for a, b in tried if b.trouble]
    if not failed:
        return None
    bad, all_ = _links(failed), _links(tried)
    good = {node: others - bad.get(node, set()) for node, others in all_.items()}
    groups = _groups(good)
    why = _why(failed)
    if len(all_) > FEW and all(len(group) == 1 for group in groups):
        return ReachFinding((f"no node that was asked can reach another one ({why})",), {})
    if len(groups) > 1 and len(groups[1]) > 1:
        told = "; ".join(_names(group) for group in groups)
        return ReachFinding((f"network partition: {told} ({why})",), {})
    blamed = {node: _of_node(node, tried) for node in _worst(bad, all_)}
    links = [(a, b) for a, b in failed if a not in blamed and b.node not in blamed]
    lines = [*blamed.values(), *(_of_link(a, b, tried) for a, b in links[:LINKS_MAX])]
    return ReachFinding(tuple(lines), blamed)


def _links(tried: Iterable[tuple[str, PeerReach]]) -> Links:
    """Both ways: a link of which one direction fails is unusable."""
    found: Links = {}
    for asker, told in tried:
        found.setdefault(asker, set()).add(told.node)
        found.setdefault(told.node, set()).add(asker)
    return found


def _groups(good: Links) -> list[set[str]]:
    """Nodes that can reach each other, perhaps by others; the largest group first."""
    left, groups = set(good), []
    while left:
        group, new = set[str](), {min(left)}
        while new:
            group |= new
            new = {other for node in new for other in good.get(node, ())} - group
        groups.append(group)
        left -= group
    return sorted(groups, key=lambda group: (-len(group), min(group)))


def _worst(bad: Links, all_: Links) -> list[str]:
    """Nodes that explain several bad links: those that are cut off, and one that stands out."""
    found: list[str] = []
    while bad:
        order = sorted(bad, key=lambda node: (-len(bad[node]), node))
        first, count = order[0], len(bad[order[0]])
        known = all_[first] - set(found)
        next_count = len(bad[order[1]]) if len(order) > 1 else 0
        alone = count > next_count and 2 * count > len(known)
        if count < FEW or not (bad[first] >= known or alone):
            break
        found.append(first)
        bad = {n: rest for n, others in bad.items() if n != first and (rest := others - {first})}
    return found


def _of_node(node: str, tried: Sequence[tuple[str, PeerReach]]) -> str:
    inward = [(asker, told) for asker, told in tried if told.node == node]
    outward = [(asker, told) for asker, told in tried if asker == node]
    lost_in = [one for one in inward if one[1].trouble]
    lost_out = [one for one in outward if one[1].trouble]
    if len(lost_in) >= len(lost_out):
        who = _share([asker for asker, _ in lost_in], len(inward))
        return f"{who} cannot reach {node} ({_why(lost_in)})"
    whom = _share([told.node for _, told in lost_out], len(outward))
    return f"{node} cannot reach {whom} ({_why(lost_out)})"


def _share(names: Sequence[str], count: int) -> str:
    return f"{len(names)} of {count} nodes" if count > NAMES_MAX else _names(names)


def _of_link(asker: str, told: PeerReach, tried: Sequence[tuple[str, PeerReach]]) -> str:
    line = f"{asker} cannot reach {told.node} ({told.trouble})"
    others = sum(1 for a, b in tried if b.node == told.node and a != asker and not b.trouble)
    return f"{line}; {others} {'other' if others == 1 else 'others'} can" if others else line


def _why(failed: Sequence[tuple[str, PeerReach]]) -> str:
    return ", ".join(dict.fromkeys(told.trouble for _, told in failed))


def _names(nodes: Iterable[str]) -> str:
    names = sorted(nodes)
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more
