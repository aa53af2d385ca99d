"""A node that sends nothing while the others send: whose network, or whose work, stands still.

Bytes are counted by each node while it is looked at, over its RDMA ports where it has some, else
over its interfaces. Where all are silent that tells nothing: so they are in most hangs, for ranks
that wait in a collective send nothing more. It is a line of evidence and a warning, and blames
nobody: a node may have nothing to send, and beside training others may use the links.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.evidence import LinkKind, Traffic

FEWEST = 3  # nodes, of which most send
SENDS = 1e6  # bytes per second, the median, at least
SILENT = 1e4  # at most: heartbeats, and probes of peers
LISTED_MAX = 4
PLACES: dict[LinkKind, str] = {"rdma": "RDMA ports", "link": "interfaces"}


class Quiet(NamedTuple):
    """Nodes that send nothing, by name, each with what is to be told of it; and a line of evidence,
    empty where nobody stands out."""

    nodes: Mapping[str, str]
    line: str


NOBODY = Quiet({}, "")


def quiet(told: Mapping[str, Sequence[Traffic]]) -> Quiet:
    """Who sends nothing, by what nodes have told, by their names."""
    rows = (_quiet(kind, told) for kind in PLACES)
    return next((found for found in rows if found.line), NOBODY)


def _quiet(kind: LinkKind, told: Mapping[str, Sequence[Traffic]]) -> Quiet:
    rows = [(name, one) for name, all_ in told.items() for one in all_ if one.kind == kind]
    found = {name: one for name, one in rows if one.seconds > 0}
    if len(found) < FEWEST:
        return NOBODY
    sends = {name: one.sent_bytes / one.seconds for name, one in found.items()}
    usual, silent = statistics.median(sends.values()), [n for n in sends if sends[n] <= SILENT]
    if usual < SENDS or not silent:
        return NOBODY
    others = f"; the median of all sent {_rate(usual)}"

    def did(name: str) -> str:
        received = found[name].received_bytes / found[name].seconds
        return f"sent {_rate(sends[name])} and received {_rate(received)} over {PLACES[kind]}"

    most = max(silent, key=sends.__getitem__)
    line = f"network traffic while stacks were taken: {_names(silent)} {did(most)}{others}"
    return Quiet({name: f"it {did(name)}{others}" for name in silent}, line)


def _names(silent: Sequence[str]) -> str:
    more = len(silent) - LISTED_MAX
    return ", ".join(silent[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")


def _rate(bytes_s: float) -> str:
    return f"{bytes_s / 1e6:,.1f} MB/s" if bytes_s >= 1e5 else f"{bytes_s / 1e3:,.1f} kB/s"
