"""What nodes were found to be like when an incident began: kept with it, and small.

Lines for people, already masked: what a worker had printed last, what its progress page said, how
its node was, and what the kernel had logged.
"""

from typing import Literal

import msgspec

LinkKind = Literal["rdma", "link"]


class RankEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """One worker. `page` is empty where the script reports nothing."""

    rank: int
    ended: str = ""  # how; empty: it lived, or its end was not known yet
    page: str = ""
    output: tuple[str, ...] = ()  # its last lines
    stacks: tuple[str, ...] = ()  # of a hang: its threads, and those of its processes
    native_stack: tuple[str, ...] = ()  # of one that hung: frames of C, too, the innermost first


class NodeEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """One node, with those of its workers that had failed first or stand for the others."""

    node: str  # name
    ranks: tuple[RankEvidence, ...] = ()
    host: tuple[str, ...] = ()  # memory, load, disks, GPUs
    kernel: tuple[str, ...] = ()  # its log since shortly before the incident
    kernel_unread: str = ""  # why the log could not be read


class PeerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where another node listens."""

    node: str  # name
    host: str
    port: int


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What the links of a node have carried while it was looked at."""

    kind: LinkKind
    sent_bytes: int
    received_bytes: int
    seconds: float


class PeerReach(msgspec.Struct, frozen=True, kw_only=True):
    """Whether another node was reached: `trouble` says why not, empty if it was."""

    node: str  # name
    trouble: str = ""
