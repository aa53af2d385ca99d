"""Where the training loop stands, whether it is to end early, and whether its state is sound.

Any rank may ask for the end; the loop ends on all of them at the step at whose meeting they learn
of it. In the same way they learn that some rank's numbers are not finite.
"""

from collections.abc import Callable, Mapping

from holdfast.train.exchange import Agreed


class LoopPosition:
    """Known to all ranks, but for what this one has asked."""

    def __init__(self) -> None:
        self.completed = 0
        self.total = 0
        self.ranks_before: int | None = None
        """How many ranks have left the state that was restored; None: none was."""
        self.skipped = 0
        """Batches that were left out on the way here."""
        self.asked_end = False
        """Whether this rank wants the loop to end."""
        self.ended = False
        """Whether all ranks know that some rank wants the loop to end."""
        self.stopping = False
        """Whether all ranks know that the job is to stop, or that some node is about to go."""
        self.numbers_bad: Callable[[int], bool] = lambda _step: False
        """Whether this rank's numbers up to this step, or newer ones, are not finite."""
        self.unsound = False
        """Whether all ranks know that those of some rank are not, or that replicas differ."""
        self.apart = False
        """Whether replicas are not the same after the step under way: an outer one comes later."""
        self.held = False
        """Whether all ranks know of some snapshot that all can get."""
        self.replicas_differ = False
        """Whether all ranks know that parameters which should be the same are not."""
        self.hold_s = 0.0
        """How long all stand still after the next urgent snapshot, with which the attempt ends."""

    def ask_end(self) -> None:
        """The loop is to end, on all ranks, once they have met. May be called by any of them."""
        self.asked_end = True

    def learn(self, agreed: Agreed) -> None:
        """What all ranks know now."""
        self.stopping |= bool(agreed.urgent)
        self.hold_s = agreed.hold_ms / 1000 or self.hold_s
        self.unsound = bool(agreed.unsound) or self.replicas_differ
        if agreed.end:
            self.ended, self.total = True, self.completed

    def kept(self) -> dict[str, int]:
        """What a snapshot has of it."""
        kept = {"ended": int(self.ended), "skipped": self.skipped}
        return {name: number for name, number in kept.items() if number}

    def restored(self, kept: Mapping[str, int], *, elsewhere: bool) -> None:
        """A snapshot had this; `elsewhere`: of another job, which ended or not."""
        self.ended = not elsewhere and bool(kept.get("ended"))
        self.skipped = kept.get("skipped", 0)

    def close(self) -> None:
        """The loop is over; another one is asked to end anew."""
        self.ended = self.asked_end = False
