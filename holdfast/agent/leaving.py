"""A signal asks this node to leave: what it alone has goes elsewhere first; asked again, at once.

The rest of the job goes on, so its memory counts as elsewhere. A node whose cloud has said when its
machine goes, and that nobody has relieved by then, leaves by itself while there is time to save.
"""

import asyncio
import time

from holdfast.agent.attempts import Attempts
from holdfast.agent.cloud_notices.provider import MetadataWatch
from holdfast.agent.notes import note
from holdfast.agent.parts import NodeParts

AHEAD_S = 5.0  # of the grace time, for the processes of the node to end
RELIEF_S = 5.0  # for the controller to have a spare take over, however little time is left


class Leaving:
    """What a signal to the agent does."""

    def __init__(
        self,
        parts: NodeParts,
        attempts: Attempts,
        *,
        has_tiers: bool,
        announced: MetadataWatch | None = None,
    ) -> None:
        self._parts = parts
        self._attempts = attempts
        self._has_tiers = has_tiers
        self.asked = asyncio.Event()
        """Set with the first signal, and never cleared."""
        self._announced = announced
        self._heard_at: float | None = None

    def ask(self, grace_s: float) -> None:
        """Somebody wants this node."""
        end, saves = self._parts.end, self._parts.saves
        run, again = self._attempts.shown, self.asked.is_set()
        self.asked.set()
        worth = self._has_tiers or (run is not None and run.order.node_count > 1)
        can = run is not None and run.stop_at is None and saves.can(run.order.attempt)
        if again or not (can and worth) or end.begun:
            end.ask(grace_s)
        else:
            self._parts.tasks.start(self._save_and_end(grace_s))

    def look(self, now: float) -> None:
        """Whether this is the time to go; `now` is the wall clock, in which clouds say it."""
        goes_at = self._announced.leaves_at if self._announced is not None else None
        if goes_at is None:
            self._heard_at = None
            return
        self._heard_at = now if self._heard_at is None else self._heard_at
        grace_s = self._parts.job.recovery.stop_grace_s
        due = max(self._heard_at + RELIEF_S, goes_at - grace_s - AHEAD_S)
        if now < due or self.asked.is_set() or self._parts.end.begun:
            return
        note(f"agent: its machine goes in {goes_at - now:.0f} s and no spare has taken over")
        self.ask(max(0.0, min(grace_s, goes_at - now - AHEAD_S)))

    async def _save_and_end(self, grace_s: float) -> None:
        began = time.monotonic()
        await self._parts.saves.save(grace_s, node_goes=True, job_ends=False, holds=False)
        self._parts.end.ask(max(0.0, grace_s - (time.monotonic() - began)))
