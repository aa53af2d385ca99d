"""A node that sends nothing while the others send: whose network, or whose work, stands still.

Bytes are counted by each node while it is looked at, over its RDMA ports where it has some, else
over its interfaces. Where all are silent that tells nothing: so they are in most hangs, for ranks
that wait in a collective send nothing more. It is a line of evidence and blames nobody: a node may
have nothing to send, and beside training others may use the links.
"""

import statistics
from collections.abc import Mapping, Sequence

from holdfast.evidence import LinkKind, Traffic

FEWEST = 3  # nodes, of which most send
SENDS = 1e6  # bytes per second, the median, at least
SILENT = 1e4  # at most: heartbeats, and probes of peers
LISTED_MAX = 4
PLACES: dict[LinkKind, str] = {"rdma": "RDMA ports", "link": "interfaces"}


def silent(told: Mapping[str, Sequence[Traffic]]) -> str:
    """Who sends nothing, by what nodes have told, by their names; empty where nobody stands out."""
    rows = (_silent(kind, told) for kind in PLACES)
    return next(filter(None, rows), "")


def _silent(kind: LinkKind, told: Mapping[str, Sequence[Traffic]]) -> str:
    rows = [(name, one) for name, all_ in told.items() for one in all_ if one.kind == kind]
    found = {name: one for name, one in rows if one.seconds > 0}
    if len(found) < FEWEST:
        return ""
    sends = {name: one.sent_bytes / one.seconds for name, one in found.items()}
    usual, quiet = statistics.median(sends.values()), [n for n in sends if sends[n] <= SILENT]
    if usual < SENDS or not quiet:
        return ""
    most = max(quiet, key=sends.__getitem__)
    received = found[most].received_bytes / found[most].seconds
    did = f"sent {_rate(sends[most])} and received {_rate(received)} over {PLACES[kind]}"
    said = f"{_names(quiet)} {did}; the median of all sent {_rate(usual)}"
    return f"network traffic while stacks were taken: {said}"


def _names(quiet: Sequence[str]) -> str:
    more = len(quiet) - LISTED_MAX
    return ", ".join(quiet[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")


def _rate(bytes_s: float) -> str:
    return f"{bytes_s / 1e6:,.1f} MB/s" if bytes_s >= 1e5 else f"{bytes_s / 1e3:,.1f} kB/s"
