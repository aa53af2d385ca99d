"""Which node's network is slow or cut off, from links measured around a ring of nodes.

Every node has two links, one with the next node and one with the node before. A link that is slow
has two ends, and either may be the cause; a node is named only if all that it sends, or all that it
receives, is far slower than the links between the others, over both its links. That takes four
nodes: two links at least that it has no part in. Between fewer nothing stands out, and the figures
are only shown. Of a slow link whose ends are not named nobody knows whose fault it is, and a node
both of whose neighbours are named is explained by them. A link that could not be opened counts as
one over which nothing passes; one of which nothing is known, or within one machine, not at all.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median_low
from typing import NamedTuple

from holdfast.counts import count
from holdfast.links import Link, LinkFigures, rate

LEAST = 4  # nodes
SHARE = 1 / 3  # of the median of the links between others: congestion halves, a sick link divides
MANY = 64  # nodes, of which one more or less does not move the median
LINES_MAX = 6  # links that are told

Known = Sequence[tuple[Link, LinkFigures]]


class LinkFinding(NamedTuple):
    """For people, and which nodes are to blame, each with its line."""

    lines: tuple[str, ...] = ()
    blamed: Mapping[str, str] = {}


def judge(links: Iterable[Link]) -> LinkFinding:
    """What follows from the links of a ring."""
    measured = [(link, link.found) for link in links if link.found is not None]
    known = [(link, found) for link, found in measured if not found.same_machine]
    if not known:
        return LinkFinding()
    blamed, usual = dict(_blamed(known)), _usual(known)
    many = len({node for link, _ in known for node in _ends(link)}) >= LEAST
    others = [(link, found) for link, found in known if not blamed.keys() & set(_ends(link))]
    odd = [line for link, found in others if (line := _odd(link, found, usual, many))]
    more = f"{count(len(odd) - LINES_MAX, 'more link')} like these" if len(odd) > LINES_MAX else ""
    lines = (_summary(known), *blamed.values(), *odd[:LINES_MAX], more)
    return LinkFinding(tuple(filter(None, lines)), blamed)


def _blamed(known: Known) -> Iterator[tuple[str, str]]:
    own: dict[str, list[tuple[Link, LinkFigures]]] = defaultdict(list)
    for link, found in known:
        own[link.node].append((link, found))
        own[link.other].append((link, found))
    if len(own) < LEAST:
        return
    of_all = _usual(known)
    named: dict[str, str] = {}
    for node, both in own.items():
        few = len(own) <= MANY
        usual = _usual([one for one in known if node not in _ends(one[0])]) if few else of_all
        if len(both) == 2 and (line := _slow(node, both, usual)):
            named[node] = line
    for node, line in named.items():
        if any(_other(link, node) not in named for link, _ in own[node]):
            yield node, line


def _usual(known: Known) -> float:
    """The median of both directions. Of an even number the lower: nobody is named in doubt."""
    return median_low(_rates(known)) if known else 0.0


def _rates(known: Known) -> list[float]:
    return [one for _, found in known for one in (found.there_bytes_per_s, found.back_bytes_per_s)]


def _ends(link: Link) -> tuple[str, str]:
    return link.node, link.other


def _other(link: Link, node: str) -> str:
    return link.other if node == link.node else link.node


def _slow(node: str, both: Known, usual: float) -> str:
    """In what a node stands out; empty if it does not."""
    ways = [_ways(node, link, found) for link, found in both]
    sent, received = ([way[n] for way in ways] for n in (0, 1))
    others = [_other(link, node) for link, _ in both]
    beside = f"the median between other nodes is {rate(usual)}"
    if all(found.trouble for _, found in both) and usual > 0:
        why = ", ".join(dict.fromkeys(found.trouble for _, found in both))
        return f"{node} and its neighbours {' and '.join(others)} cannot reach each other ({why})"
    for does, figures, way in (("sends", sent, "to"), ("receives", received, "from")):
        if max(figures) < SHARE * usual:
            told = (f"{rate(f)} {way} {o}" for f, o in zip(figures, others, strict=True))
            return f"{node} {does} only {', '.join(told)}, {beside}"
    return ""


def _ways(node: str, link: Link, found: LinkFigures) -> tuple[float, float]:
    """What this end sends and receives."""
    there, back = found.there_bytes_per_s, found.back_bytes_per_s
    return (there, back) if node == link.node else (back, there)


def _odd(link: Link, found: LinkFigures, usual: float, many: bool) -> str:
    """What is to be told of a link by itself."""
    if found.trouble:
        return f"{link.node} cannot reach {link.other} ({found.trouble})"
    there, back = found.there_bytes_per_s, found.back_bytes_per_s
    if not many or min(there, back) >= SHARE * usual:
        return ""
    return f"between {link.node} and {link.other} only {rate(there)}, back {rate(back)}"


def _summary(known: Known) -> str:
    """Of the links over which something passed."""
    good = [one for one in known if not one[1].trouble]
    if not good:
        return ""
    slowest = min(good, key=lambda one: min(_rates([one])))
    least = f"slowest {rate(min(_rates([slowest])))} between {' and '.join(_ends(slowest[0]))}"
    links = f"{count(len(good), 'link')} between machines"
    return f"{links}: median {rate(_usual(good))}, {least}"
