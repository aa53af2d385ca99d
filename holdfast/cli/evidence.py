"""How nodes were when an incident began, as lines for `holdfast why`: pure text.

The ranks that had failed come first; of output that the reader sees anyhow nothing is repeated.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.evidence import NodeEvidence, RankEvidence
    from holdfast.status import Incident


def nodes(incident: "Incident", *, with_output: bool) -> Iterator[str]:
    """`with_output`: also what the rank that is blamed had printed."""
    for node in incident.collected:
        yield f"\n{node.node}:"
        yield from (f"  {line}" for line in node.host)
        for one in node.ranks:
            shown = with_output or one.rank != incident.rank
            yield from (f"  {line}" for line in _rank(one, with_output=shown))
        yield from (f"  {line}" for line in _kernel(node))
    if incident.missing:
        yield f"\nno answer from: {', '.join(incident.missing)}"


def _rank(one: "RankEvidence", *, with_output: bool) -> Iterator[str]:
    told = ", ".join(filter(None, (one.ended, one.page)))
    if told:
        yield f"rank {one.rank}: {told}"
    if one.stacks:
        yield f"rank {one.rank}, all its threads and processes:"
        yield from (f"  {line}" for line in one.stacks)
    if one.native_stack:
        yield f"native stack of rank {one.rank} (innermost frame first):"
        yield from (f"  {line}" for line in one.native_stack)
    if with_output and one.output:
        yield f"rank {one.rank} had printed:"
        yield from (f"  {line}" for line in one.output)


def _kernel(node: "NodeEvidence") -> Iterator[str]:
    if node.kernel_unread:
        yield f"kernel log: not readable: {node.kernel_unread}"
    elif node.kernel:
        yield "kernel log:"
        yield from (f"  {line}" for line in node.kernel)
    else:
        yield "kernel log: nothing"
