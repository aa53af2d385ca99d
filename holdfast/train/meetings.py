"""When all ranks meet, and what this one says there.

They meet at every step that may end with a snapshot, and about once a second besides; all compute
the same. They do so a step after a snapshot, too, to learn whether it is whole everywhere, and a
step after parameters were looked at (`replicas`).
"""

from holdfast.checkpoint.tiers import Tier
from holdfast.errors import Error
from holdfast.train.cadence import Cadence
from holdfast.train.capture import Capture
from holdfast.train.exchange import Agreed, Exchange
from holdfast.train.in_use import SnapshotsInUse
from holdfast.train.loop import LoopPosition
from holdfast.train.replicas import ReplicaChecks
from holdfast.train.save_requests import SaveRequests


class Meetings:
    """One after the other; one that is open goes on beside training until it is closed."""

    def __init__(
        self,
        exchange: Exchange | None,
        cadence: Cadence,
        loop: LoopPosition,
        in_use: SnapshotsInUse,
        requests: SaveRequests,
        capture: Capture,
        replicas: ReplicaChecks,
    ) -> None:
        """`exchange` is None where there are no other ranks."""
        self._exchange = exchange
        self._cadence = cadence
        self._loop = loop
        self._in_use = in_use
        self._requests = requests
        self._capture = capture
        self.replicas = replicas
        self._mine = Agreed()
        self._besides: list[int] = []
        self.last = 0
        """Completed steps at the last meeting."""
        self.unmet = False
        """Whether there has been no meeting since the newest snapshot."""
        self.owed = False
        """Whether a snapshot that was due waits for its turn (`gradients`)."""

    def due(self, completed: int) -> bool:
        """Whether all ranks meet at the end of this step."""
        due = self._cadence.due(completed, self._in_use.step, self._loop.total)
        asked = self._requests.waiting or self.owed
        asked |= self._loop.asked_end and self._exchange is None  # others do not know of it
        taken = self.last == self._in_use.step or self.replicas.wait(completed - 1)
        if self._loop.apart:  # no snapshot is taken now, and links may be thin
            due = asked = False
        return due or asked or taken or completed - self.last >= self._cadence.meet_every

    def open(self, completed: int, *, clean: bool = False, over: bool = False) -> None:
        """Begin the meeting of this step. `clean`: the turn is to end without pending gradients,
        for all that is known now. `over`: the step is over on all ranks: its state counts."""
        if self._exchange is None or not self._exchange.fence_open:
            self._mine = self._say(completed, clean)
            self._besides = self.replicas.say(completed - (not over))
        if self._exchange is not None:
            self._exchange.open_fence(self._mine, self._besides)

    def close(self) -> Agreed:
        """Wait for all ranks; what they know now. They have the newest snapshot whole.

        Raises `Error` (ranks-apart).
        """
        agreed = self._exchange.pass_fence() if self._exchange is not None else self._mine
        if not agreed.together:
            raise Error(
                "ranks-apart",
                f"ranks are at different steps: {-agreed.minus_step} and {agreed.step}",
                why="a snapshot is of one step on all ranks",
                help="call run.checkpoint() on every rank, and give steps() the same total",
            )
        self.unmet = False
        return agreed

    def _say(self, completed: int, clean: bool) -> Agreed:
        """What this rank has to say at the meeting of this step. Of its numbers those of the step
        before are waited for, whose state is the newest snapshot at most; the GPU works on."""
        in_use, cadence, requests = self._in_use, self._cadence, self._requests
        saving = bool(in_use.saving())
        tiers = frozenset[Tier]() if saving else requests.due(completed, cadence.cost_us / 1e6)
        urgent = requests.urgent()
        carried, keep = (0, 0) if clean else self._capture.gradients.say(urgent=urgent)
        return Agreed(
            step=completed,
            minus_step=-completed,
            private_bytes=self._capture.private_bytes,
            cost_us=cadence.cost_us,
            step_us=cadence.step_us,
            pending=int(in_use.copy_pending()),
            blocked=int(not in_use.has_room(pending=False)),
            stuck=int(not in_use.has_room(pending=True)),
            urgent=int(urgent),
            saving=int(saving),
            local=int(Tier.LOCAL in tiers),
            shared=int(Tier.SHARED in tiers),
            archive=int(Tier.ARCHIVE in tiers),
            milestone=int(any(requests.is_milestone(tier, completed) for tier in tiers)),
            torn=int(self.unmet and self._capture.spoiled),
            carried=carried,
            keep=keep,
            end=int(self._loop.asked_end),
            unsound=int(self._loop.numbers_bad(completed - 1)),
            hold_ms=requests.hold_ms() if urgent else 0,
        )
