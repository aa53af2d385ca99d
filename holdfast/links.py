"""Links between nodes of a job: how many bytes a second pass from one node to another, and back.

Agents measure them, diagnosis compares them, and the command line shows them.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

Rate = Annotated[float, Meta(ge=0)]


class LinkFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has found of its way to another one."""

    there_bytes_per_s: Rate = 0.0
    back_bytes_per_s: Rate = 0.0
    same_machine: bool = False  # nothing went over a network
    trouble: Annotated[str, Meta(max_length=300)] = ""  # why nothing could be measured


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """Two nodes by name; `node` has connected. `found` is None where it did not answer in time."""

    node: str
    other: str
    found: LinkFigures | None = None


class LinkReport(msgspec.Struct, frozen=True, kw_only=True):
    """Of a ring of nodes: the slowest links, what follows in words, and whom that names."""

    links: tuple[Link, ...] = ()
    lines: tuple[str, ...] = ()
    slow: dict[str, str] = {}


def rate(bytes_per_s: float) -> str:
    """For people."""
    if bytes_per_s < 1e9:
        return f"{bytes_per_s / 1e6:.3g} MB/s"
    return f"{bytes_per_s / 1e9:.2f} GB/s"
