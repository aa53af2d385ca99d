"""What ranks have, bit for bit: replicas that should be alike, and steps that are repeated so that
their ends can be compared.
"""

import msgspec


class ReplicaDigest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one rank has of parameters that `count` ranks, `first` the lowest of them, should hold
    bit for bit alike and do not. Told once for each attempt."""

    step: int  # completed steps after which that was seen
    agreed: int  # after which all replicas, compared like this, were last the same
    digest: int
    first: int
    count: int
    ago_s: float = 0.0  # since the step `agreed` was over


class StepsToRepeat(msgspec.Struct, frozen=True, kw_only=True):
    """A step that groups of nodes repeat, from the newest checkpoint before it: `isolate` divides
    the members until the bad ones are known; else all repeat it twice, and then once more with
    `others` in the place of as many of them."""

    step: int
    unit: int = 1  # nodes of one data-parallel replica; a group consists of whole ones
    isolate: bool = True
    others: tuple[str, ...] = ()  # nodes
    id: str = ""  # of the wish that asks for it; empty: the controller does
    by: str = ""
