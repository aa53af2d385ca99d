"""Whether this node is to end, who asked for it, and with what exit status.

Anybody may ask; the first one says how long workers have. The order of the controller at the job's
end decides the exit status, even if something else ends the node already.
"""

import asyncio

from holdfast.agent.notes import note
from holdfast.messages import Leave


class NodeEnd:
    """Asked for once. Made in the agent's loop."""

    def __init__(self, let_go: int, broken: int) -> None:
        """The exit status when the controller named none, and after a fault of ours."""
        self._asked: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._broken = broken
        self.status = let_go
        self.failed = ""
        """What of ours does not work, if that is why it ends."""
        self.dismissed = False
        """Whether the controller has asked."""

    @property
    def begun(self) -> bool:
        """Whether anybody has asked: nothing is started any more."""
        return self._asked.done()

    def ask(self, grace_s: float) -> None:
        """End; workers have this long after SIGTERM."""
        if not self._asked.done():
            self._asked.set_result(grace_s)

    def obey(self, order: Leave) -> None:
        """The controller dismisses this node."""
        note(f"agent: dismissed: {order.reason}")
        self.dismissed = True
        if order.exit_code is not None:
            self.status = order.exit_code
        self.ask(0.0)

    def fail(self, why: str) -> None:
        """Something of ours does not work."""
        note(f"agent: {why}")
        if not self._asked.done():
            self.status, self.failed = self._broken, why
        self.ask(0.0)

    async def asked(self) -> float:
        """Wait until anybody asks; how long workers have."""
        return await self._asked
