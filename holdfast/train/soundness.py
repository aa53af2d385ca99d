"""Whether a restored state can be trained on: no parameter and no optimizer holds a NaN.

Looked at only after a failure that is to be left behind, because reading everything takes its time.
A loss turns NaN a step after the parameters did, so the snapshot before it may be unusable.
Infinite values are no sign: masks are made of them.
"""

from collections.abc import Iterator, Mapping

import torch

from holdfast.train.load_failure import FailureKind, LoadFailure
from holdfast.train.tracked import Tracked, Tree


def nan_in(shared: Tree, private: Tree, tracked: Tracked) -> LoadFailure | None:
    """The first NaN in the state of a module or an optimizer of this rank."""
    state = shared if tracked.replicated else private
    for name in (*tracked.modules, *tracked.optimizers):
        for path, leaf in _leaves(state.get(name), name):
            if leaf.is_floating_point() and bool(leaf.isnan().any()):
                return LoadFailure(FailureKind.DAMAGED, f"{path} contains NaN")
    return None


def _leaves(tree: object, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(tree, torch.Tensor):
        yield path, tree
    elif isinstance(tree, Mapping | list | tuple):
        items = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
        for key, value in items:
            yield from _leaves(value, f"{path}.{key}")
