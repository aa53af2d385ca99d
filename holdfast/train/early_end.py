"""Ending the loop early, for all ranks at the same step, where there are no snapshots.

With snapshots ranks meet anyway, and tell each other there (`snapshots`). Without Holdfast they
tell each other at every step: a small all-reduce that is opened at the end of one step and read at
the end of the next, so that nobody waits for it.
"""

import torch
import torch.distributed as dist


class EarlyEnd:
    """Whether some rank wants the loop to end."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        """`group` is None where there are no other ranks."""
        self._group = group
        self._asked = False
        self._open: tuple[dist.Work, torch.Tensor] | None = None

    def ask(self) -> None:
        """The loop is to end. May be called by any rank."""
        self._asked = True

    def step_done(self) -> bool:
        """Whether the loop ends with the step that is complete now, the same on all ranks."""
        if self._group is None:
            return self._asked
        ended = self._read()
        if not ended:
            said = torch.tensor(int(self._asked), dtype=torch.int32)
            work = dist.all_reduce(said, dist.ReduceOp.MAX, group=self._group, async_op=True)
            assert work is not None
            self._open = work, said
        return ended

    def close(self) -> None:
        """The loop has ended: the next one is asked anew."""
        self._read()
        self._asked = False

    def _read(self) -> bool:
        if self._open is None:
            return False
        work, said = self._open
        self._open = None
        work.wait()
        return bool(said.item())
