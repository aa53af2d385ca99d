"""A signal asks this node to leave: what it alone has goes elsewhere first; asked again, at once.

The rest of the job goes on, so its memory counts as elsewhere.
"""

import asyncio
import time

from holdfast.agent.attempts import Attempts
from holdfast.agent.parts import NodeParts


class Leaving:
    """What a signal to the agent does."""

    def __init__(self, parts: NodeParts, attempts: Attempts, *, has_tiers: bool) -> None:
        self._parts = parts
        self._attempts = attempts
        self._has_tiers = has_tiers
        self.asked = asyncio.Event()
        """Set with the first signal, and never cleared."""

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

    async def _save_and_end(self, grace_s: float) -> None:
        began = time.monotonic()
        await self._parts.saves.save(grace_s, node_goes=True, job_ends=False, holds=False)
        self._parts.end.ask(max(0.0, grace_s - (time.monotonic() - began)))
