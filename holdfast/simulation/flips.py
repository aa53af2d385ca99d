"""Bits that flip in the parameters of one rank, and who is told of that.

Ranks compare what they have every so many steps, and after each step that ends with a snapshot;
they know the result a step later, all at once, and keep no snapshot that was taken since they were
last the same. That is what `train/replicas.py` does, with steps for bits.
"""

from typing import NamedTuple

from holdfast.digests import ReplicaDigest

SOUND, FLIPPED = 0x5EED, 0xBAD  # digests


class Flip(NamedTuple):
    """In one attempt: `rank` has other parameters from step `step` on; seen after step `seen`."""

    rank: int
    step: int
    agreed: int
    seen: int
    ranks: int  # that compare

    @property
    def known(self) -> int:
        """The step after which all ranks know it."""
        return self.seen + 1

    def digest(self, rank: int, ago_s: float) -> ReplicaDigest:
        """What a rank tells then, so long after all were last the same."""
        return ReplicaDigest(
            step=self.seen,
            agreed=self.agreed,
            digest=FLIPPED if rank == self.rank else SOUND,
            first=0,
            ago_s=ago_s,
            count=self.ranks,
        )


class Flips:
    """Those of all attempts; at most one each. `every` steps ranks compare, and at snapshots."""

    def __init__(self, every: int, snapshot_every: int) -> None:
        self._every, self._snapshot_every = every, snapshot_every
        self._flips: dict[int, Flip] = {}  # by attempt

    def strike(self, attempt: int, rank: int, step: int, inherited: int, count: int) -> Flip:
        """From this step on."""
        looks = self._last(step - 1, inherited), self._next(step, inherited)
        self._flips[attempt] = flip = Flip(rank, step, *looks, count)
        return flip

    def _last(self, step: int, inherited: int) -> int:
        """The newest look up to this step; what an attempt begins with is looked at, too."""
        snapshots = step - (step - inherited) % self._snapshot_every
        return max(inherited, step - step % self._every, snapshots)

    def _next(self, step: int, inherited: int) -> int:
        return min(step + -step % self._every, step + (inherited - step) % self._snapshot_every)

    def of(self, attempt: int) -> Flip | None:
        """What has struck this attempt."""
        return self._flips.get(attempt)

    def forget(self, attempt: int) -> None:
        """The number is given to another attempt."""
        self._flips.pop(attempt, None)

    def last_snapshot(self, attempt: int, step: int) -> int:
        """The newest step up to this one of which a snapshot may have been kept."""
        flip = self._flips.get(attempt)
        return min(step, flip.agreed) if flip is not None and step >= flip.step else step
