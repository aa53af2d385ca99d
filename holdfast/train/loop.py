"""Where the training loop stands, and whether it is to end early.

Any rank may ask for the end; the loop ends on all of them at the step at whose meeting they learn
of it.
"""

from holdfast.train.exchange import Agreed


class LoopPosition:
    """Known to all ranks, but for what this one has asked."""

    def __init__(self) -> None:
        self.completed = 0
        self.total = 0
        self.asked_end = False
        """Whether this rank wants the loop to end."""
        self.ended = False
        """Whether all ranks know that some rank wants the loop to end."""
        self.stopping = False
        """Whether all ranks know that the job is to stop, or that some node is about to go."""

    def ask_end(self) -> None:
        """The loop is to end, on all ranks, once they have met. May be called by any of them."""
        self.asked_end = True

    def learn(self, agreed: Agreed) -> None:
        """What all ranks know now."""
        self.stopping |= bool(agreed.urgent)
        if agreed.end:
            self.ended, self.total = True, self.completed

    def close(self) -> None:
        """The loop is over; another one is asked to end anew."""
        self.ended = self.asked_end = False
