"""Numbers that go bad in a simulated world: what is true of them, and who watches what follows.

At some step the state of an attempt becomes useless: one rank's loss is NaN there, all others' a
step later. Its workers take no snapshot after that step, as real ones do, and one of that step may
have been taken. Who goes on from it has bad numbers from its first step on; who is told to go back
below some step, or restores what an attempt has left that had bad numbers, looks at what it
restores, and leaves what is bad.
"""

from collections.abc import Sequence

from holdfast.actions import Entry, StartAttempt, StopAttempt
from holdfast.checkpoint.choose import Snapshot
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.lineage import is_bad
from holdfast.controller.numerics import NEAR_STEPS
from holdfast.events import Broken, NumbersBroke, Quantity, ReplicasDiffer
from holdfast.messages import Start
from holdfast.simulation.memory import NodeMemory


class BadNumbers:
    """The attempts whose state went bad, and from which step on."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[int, int | None]] = {}  # attempt → step, rank (None: all)

    def strike(self, attempt: int, step: int, rank: int | None) -> None:
        """From this step on it is bad; `rank` sees it first."""
        self._since.setdefault(attempt, (step, rank))

    def forget(self, attempt: int) -> None:
        """The number is given to another attempt."""
        self._since.pop(attempt, None)

    def struck(self, attempt: int) -> bool:
        """Whether this attempt's state goes bad, or did."""
        return attempt in self._since

    def last_snapshot(self, attempt: int, step: int) -> int:
        """The newest step up to this one after which a snapshot may have been taken."""
        return min(step, self._since[attempt][0]) if attempt in self._since else step

    def is_bad(self, key: Key) -> bool:
        """Whether a snapshot holds bad numbers."""
        return key.attempt in self._since and key.step >= self._since[key.attempt][0]

    def seen_by(self, attempt: int, rank: int, step: int) -> int | None:
        """The first bad step that this rank has noticed at `step`; None: none yet."""
        if attempt not in self._since:
            return None
        since, first = self._since[attempt]
        mine = since if first in (None, rank) else since + 1
        return mine if step >= mine else None

    def restorable(self, held: Sequence[NodeMemory], order: Start) -> list[NodeMemory]:
        """What ranks may go on from, of what they hold."""
        below, told = order.restore_below, dict(order.bad_steps)

        def counts(key: Key) -> bool:
            searched = below is not None or key.attempt in told
            if is_bad(key, told) or (below is not None and key.step >= below):
                return False
            return not (searched and self.is_bad(key))

        return [one.only(counts) for one in held]


def broken(step: int | None, ago_s: float) -> Broken | None:
    """What a page says of it."""
    if step is None:
        return None
    return Broken(step=step, what=Quantity.LOSS, value="nan", ago_s=max(0.0, ago_s))


class FiniteNumbers:
    """What is known to be no numbers is not gone on from."""

    def __init__(self) -> None:
        self._told: dict[
            int, tuple[int, int]
        ] = {}  # attempt → bad step, and the entry that says so
        self._checked = 0  # newest attempt that was started
        self._steps: dict[int, int] = {}  # attempt → bad step, also while it is stopped anyhow

    def journaled(self, entry: Entry) -> str:
        """What is known, and where the next attempt is told to go on."""
        event = entry.event
        stops = any(isinstance(action, StopAttempt) for action in entry.actions)
        if isinstance(event, NumbersBroke) and event.attempt == self._checked:
            step = min(event.broke.step, self._steps.get(event.attempt, event.broke.step))
            self._steps[event.attempt] = step
        if isinstance(event, NumbersBroke) and stops:
            self._told.setdefault(event.attempt, (event.broke.step, entry.seq))
        elif isinstance(event, ReplicasDiffer) and stops:
            self._told.setdefault(event.attempt, (event.agreed + 1, entry.seq))
        for action in entry.actions:
            if isinstance(action, StartAttempt) and action.attempt > self._checked:
                before, self._checked = self._checked, action.attempt
                return self._started(before, action)
        return ""

    def _started(self, before: int, order: StartAttempt) -> str:
        if before not in self._told:
            return ""
        step, below = self._told[before][0], order.restore_below
        well = below is not None and below <= step
        return "" if well else f"attempt {order.attempt} is told {below} after a bad step {step}"

    def resumed(self, attempt: int, found: Snapshot | None, bad: bool) -> str:
        """An attempt goes on from this snapshot."""
        if found is None or not bad or found.key.attempt not in self._told:
            return ""
        key = found.key
        return (
            f"attempt {attempt} resumes from step {key.step} of attempt {key.attempt}: not finite"
        )

    def repeated(self) -> bool:
        """Whether it came again where it had been, so that the job may end."""
        last = [*self._steps.values()][-2:]
        return len(last) == 2 and last[1] <= last[0] + NEAR_STEPS

    def forget(self, after: int) -> None:
        """Later entries are lost."""
        self._told = {a: told for a, told in self._told.items() if told[1] <= after}
