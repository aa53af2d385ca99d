"""Arithmetic of stretches of time: unions, what two share, what one has alone.

A `Spans` is a list of (begin, end) with begin < end, sorted, that do not touch each other. Whoever
has others calls `united` first. All of it is linear in the number of stretches, once they are
sorted, because a trace has some hundred thousand.
"""

from collections.abc import Iterable, Sequence

Span = tuple[float, float]
Spans = list[Span]


def united(spans: Iterable[Span]) -> Spans:
    """The moments that lie in any of these, which may overlap, be empty, or come in any order."""
    found: Spans = []
    for begin, end in sorted(spans):
        if end <= begin:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def shared(one: Sequence[Span], other: Sequence[Span]) -> Spans:
    """The moments that lie in both."""
    found: Spans = []
    at = also = 0
    while at < len(one) and also < len(other):
        begin, end = max(one[at][0], other[also][0]), min(one[at][1], other[also][1])
        if begin < end:
            found.append((begin, end))
        if one[at][1] < other[also][1]:
            at += 1
        else:
            also += 1
    return found


def without(one: Sequence[Span], other: Sequence[Span]) -> Spans:
    """The moments of one that do not lie in the other."""
    found: Spans = []
    also = 0
    for begin, end in one:
        while also < len(other) and other[also][1] <= begin:
            also += 1
        look = also
        while look < len(other) and other[look][0] < end:
            if begin < other[look][0]:
                found.append((begin, other[look][0]))
            begin = max(begin, other[look][1])
            look += 1
        if begin < end:
            found.append((begin, end))
    return found


def length(spans: Iterable[Span]) -> float:
    """Of all of them together."""
    return sum(end - begin for begin, end in spans)
