"""The tiers of durable checkpoints, and what is to become of a snapshot."""

from enum import IntEnum, IntFlag


class Tier(IntEnum):
    """Where durable copies are kept, the quickest first."""

    LOCAL = 0
    SHARED = 1
    ARCHIVE = 2


class SnapshotFlag(IntFlag):
    """What is to become of a snapshot; the same on all ranks. Stored in the header of its cells."""

    LOCAL = 1 << Tier.LOCAL
    SHARED = 1 << Tier.SHARED
    ARCHIVE = 1 << Tier.ARCHIVE
    URGENT = 8  # a node is about to go: before anything else, without any limit of bandwidth
    COPY = 16  # private parts go to the ranks that keep copies, by way of the storage processes
