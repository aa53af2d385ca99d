"""Facts of one node that the controller does not have on its disk yet.

Each gets a number when it happens and stays until it is acknowledged; after each reconnect those
that the controller does not know are sent again, with ages as of then. The clock is an argument:
the agent and the agents of a simulated world use the same queue.

A controller may be lost with what it had acknowledged, if its machine was cut off from all others.
Workers of the newest attempt that have ended are therefore told to each new controller: from what
else an agent reports it could not know that nobody trains.
"""

from collections import deque
from typing import Any, NamedTuple

import msgspec

from holdfast.events import Progress, WorkerExited
from holdfast.messages import AgentFact, Fact


class _Kept(NamedTuple):
    seq: int
    event: AgentFact
    at: float  # when its ages were right


class FactQueue:
    """In order of `seq`; those up to `sent` went out on this connection."""

    def __init__(self) -> None:
        self._kept: deque[_Kept] = deque()
        self._ended: list[_Kept] = []  # acknowledged exits of the newest attempt
        self._next_seq = 1
        self.sent = 0

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, event: AgentFact, now: float) -> None:
        """This has happened just now."""
        attempt = getattr(event, "attempt", 0)
        self._ended = [one for one in self._ended if getattr(one.event, "attempt", 0) >= attempt]
        self._kept.append(_Kept(self._next_seq, event, now))
        self._next_seq += 1

    def forget(self, acked: int) -> None:
        """The controller has all up to this one."""
        while self._kept and self._kept[0].seq <= acked:
            one = self._kept.popleft()
            if isinstance(one.event, WorkerExited):
                self._ended.append(one)

    def holds(self, kind: type[AgentFact]) -> bool:
        """Whether the controller is still to learn of such a fact."""
        return any(isinstance(one.event, kind) for one in self._kept)

    def unsent(self, now: float) -> list[Fact]:
        """Those that have not gone out, with ages as of now."""
        later = (kept for kept in (*self._ended, *self._kept) if kept.seq > self.sent)
        return [Fact(seq=one.seq, event=_aged(one.event, now - one.at)) for one in later]

    @property
    def all_sent(self) -> bool:
        """Whether every fact has gone out on this connection."""
        return not self._kept or self._kept[-1].seq <= self.sent


def _aged(event: AgentFact, by_s: float) -> AgentFact:
    """The event with its ages `by_s` older."""
    older: dict[str, Any] = {}
    if (ago_s := getattr(event, "ago_s", None)) is not None:
        older["ago_s"] = ago_s + by_s
    progress = getattr(event, "progress", None)
    if isinstance(progress, Progress) and progress.step is not None:
        step_ago_s = progress.step_ago_s + by_s
        older["progress"] = msgspec.structs.replace(progress, step_ago_s=step_ago_s)
    return msgspec.structs.replace(event, **older) if older and by_s > 0 else event
