"""Which machines compute other bits than most: digests of a check on the same kind of device.

Each of them may give the same wrong result each time, so that by itself it passes.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping

LEAST = 3  # that have computed the same, of which more than half agree: of two nobody is right


def outvoted(computed: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Node → why it is one. `computed` has digests by node, and `CHECK: KIND OF DEVICE`."""
    results = defaultdict[str, dict[str, str]](dict)
    for node, digests in computed.items():
        for what, digest in digests.items():
            results[what][node] = digest
    found: dict[str, str] = {}
    for what, by_node in sorted(results.items()):
        (usual, count), *_ = Counter(by_node.values()).most_common(1)
        if len(by_node) >= LEAST and 2 * count > len(by_node):
            why = f"{what}: its result differs from that of {count} of {len(by_node)} nodes"
            for node in [node for node, digest in by_node.items() if digest != usual]:
                found.setdefault(node, why)
    return found
