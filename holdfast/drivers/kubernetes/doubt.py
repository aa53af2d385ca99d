"""What a controller does that cannot renew its lease: whether it may go on without.

Either the API server is away, for everybody: then nobody can take the lease, and a job can least do
without a controller now. Or only this machine is cut off from it: then another controller begins
soon, and this one must not act any more. Agents on other machines can tell: they are asked, again
and again, whether the API server answers them. As long as none has said that it does not, or one
says that it does, nothing is decided; and once it does for longer than a lease lasts, the agents
are let go, so that they find the other one. Workers train on in any case.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.drivers.kubernetes.talk import say
from holdfast.messages import ApiSeen, LookForApi

ASK_S = 1.0
FRESH_S = 5.0  # an older answer says nothing
WITNESSES = 5
STAND_ASIDE_S = 10.0  # after which somebody else may have the lease
UNSURE = "the lease cannot be renewed"
OUTAGE = "the API server is unreachable from all agents asked: the job continues without the lease"


class Witnesses:
    """What nodes have said, and what follows. Pure: times are the caller's."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[bool, float]] = {}

    def heard(self, node: str, answers: bool, now: float) -> None:
        """The API server answers this node, or does not."""
        self._said[node] = (answers, now)

    def outage(self, now: float) -> bool:
        """Whether the API server is away for everybody who has been asked."""
        fresh = [answers for answers, at in self._said.values() if now - at <= FRESH_S]
        return bool(fresh) and not any(fresh)

    def elsewhere(self, now: float) -> bool:
        """Whether it answers somebody."""
        return any(answers and now - at <= FRESH_S for answers, at in self._said.values())


class Controlled(Protocol):
    """The part of a host that stands still or aside."""

    def pause(self, why: str) -> None:
        """Decide nothing; empty: go on."""

    async def stand_aside(self) -> None:
        """Let every agent go, and take in nobody."""

    async def come_back(self) -> None:
        """Listen again."""

    def ask(self, question: LookForApi, nodes: Sequence[str]) -> None:
        """Send this to some nodes."""


class Doubt:
    """From `begin` until `end` the lease is not sure. `watch` has to run. `far` gives connected
    nodes on machines other than ours, those to be asked first."""

    def __init__(self, host: Controlled, far: Callable[[], Sequence[str]]) -> None:
        self._host, self._far = host, far
        self.is_sure: Callable[[], bool] = lambda: True  # by the lease's own clock
        self._outage = False
        self._witnesses = Witnesses()
        self._doubtful = asyncio.Event()

    def begin(self) -> None:
        """The lease could not be renewed in time."""
        self._host.pause(UNSURE)
        self._doubtful.set()

    def end(self) -> None:
        """It is sure, and nobody else had it meanwhile."""
        self._doubtful.clear()
        self._witnesses, self._outage = Witnesses(), False
        self._host.pause("")

    def standing(self) -> str:
        """Why nothing may be decided at this moment; empty if it may. Asked before each decision,
        because a process that was stopped does not hear of a doubt before it acts."""
        return "" if self.is_sure() or self._outage else UNSURE

    def heard(self, node: str, answer: ApiSeen) -> None:
        """What a node has found."""
        self._witnesses.heard(node, answer.answers, time.monotonic())

    async def watch(self) -> None:
        """For ever."""
        while True:
            await self._doubtful.wait()
            aside = await self._ask()
            say("the lease is renewed again")
            if aside:
                await self._host.come_back()

    async def _ask(self) -> bool:
        """Until the lease is sure again; whether all agents were let go meanwhile."""
        began, told, aside = time.monotonic(), "", False
        while self._doubtful.is_set():
            now = time.monotonic()
            self._outage = self._witnesses.outage(now)
            why = "" if self._outage else UNSURE
            self._host.pause(why)
            said = f"{UNSURE}: decisions are paused until it can be" if why else OUTAGE
            if said != told:
                told = said
                say(said)
            if self._witnesses.elsewhere(now) and now - began > STAND_ASIDE_S and not aside:
                say("only this controller cannot reach the API server: it disconnects its agents")
                aside = True
                await self._host.stand_aside()
            self._host.ask(LookForApi(), list(self._far())[:WITNESSES])
            await asyncio.sleep(ASK_S)
        return aside
