"""What the ranks of this node have saved before: chunks that did not change are not written again.

At the first save of an attempt its lineage is written down, which is also what fences older ones;
and what an earlier attempt has left in the place is found again.
"""

from holdfast.checkpoint import catalog, save
from holdfast.checkpoint.manifest import Lineage, ParentSnapshot, RankPart
from holdfast.checkpoint.storage_page import WorkerInfo
from holdfast.checkpoint.stores import CheckpointStore


class PreviousParts:
    """`parts` are those of the last committed checkpoint, by rank."""

    def __init__(self, fresh: str, count: int, owner: str) -> None:
        """`fresh` is the word under which the job began anew, `count` the ranks of a node, `owner`
        what tells the job from others of its name."""
        self._fresh = fresh
        self._owner = owner
        self._count = count
        self._begun = 0  # newest attempt whose lineage is written down
        self.parts: dict[int, RankPart] = {}

    def begin(self, store: CheckpointStore, info: WorkerInfo) -> None:
        """Once an attempt: write down what it went on from. Raises `Error` checkpoint-fenced,
        storage-*."""
        if self._begun >= info.attempt:
            return
        parent = None if info.parent is None else ParentSnapshot(*info.parent)
        save.begin(
            store,
            Lineage(attempt=info.attempt, parent=parent, fresh=self._fresh, owner=self._owner),
        )
        for rank in self._missing(info):
            part = catalog.previous_part(store, rank)
            if part is not None and part.world_size == info.world_size:
                self.parts[rank] = part
        self._begun = info.attempt

    def _missing(self, info: WorkerInfo) -> list[int]:
        first = info.rank - info.rank % info.local_world_size
        ranks = range(first, first + self._count)
        return [rank for rank in ranks if rank not in self.parts]
