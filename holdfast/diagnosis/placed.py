"""Where ranks that stand out are in the parallel layout: what they have in common, and whom with.

One rank of a thousand says little to a person; that it is the second stage of a pipeline, or that
eight ranks are one whole tensor-parallel group, says where to look.
"""

import math
from collections.abc import Sequence

from holdfast.dimensions import Dimensions
from holdfast.events import in_rows
from holdfast.stacks import in_words


def in_layout(ranks: Sequence[int], dimensions: Dimensions) -> str:
    """A line on these ranks; empty where there are none, or their numbers say as much."""
    size = math.prod(dimensions)
    if not ranks or len(ranks) == size or size == dimensions.data:
        return ""
    places = [dimensions.place(rank) for rank in ranks]
    first = places[0]
    shared = {name: n for name, n in first.items() if all(one[name] == n for one in places)}
    if not shared:
        return ""
    free = [name for name in first if name not in shared]
    who = f"rank{'s' if len(ranks) > 1 else ''} {in_words(in_rows(ranks))}"
    at = ", ".join(f"{name} {number}" for name, number in shared.items())
    if not free:
        return f"layout: {who} is at {at}"
    whole = math.prod(getattr(dimensions, name) for name in free) == len(ranks)
    return f"layout: {who} are {'all ranks' if whole else 'ranks'} at {at}"
