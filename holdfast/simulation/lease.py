"""The lease of a simulated cluster: who may be the controller, and what both sides know of it.

The holder renews again and again as long as it runs and reaches the API; that is not simulated
call by call, but follows from when it could do so last. From then on it is sure for a while, and
for a little longer nobody else takes the lease; then a successor does, on another machine.
"""

import math
from collections.abc import Callable
from typing import Protocol

from holdfast.simulation.environment import Environment

DURATION_S = 10.0  # as in the driver for Kubernetes: without renewal, until it can be taken
SURE_S = 7.0  # until the holder is in doubt
RENEW_S = 2.0
POLL_S = 1.0  # between two looks of whoever stands by


class Holder(Protocol):
    """A controller that has the lease, or has had it."""

    def doubt(self) -> None:
        """It may lose the lease soon."""

    def stand_aside(self) -> None:
        """Somebody else may have the lease."""


class SimulatedLease:
    """What the API server knows. `expired` is called once somebody else can take it."""

    def __init__(self, env: Environment, expired: Callable[[], None]) -> None:
        self._env, self._expired = env, expired
        self._renewed_at: float | None = None  # the last time; None: it goes on
        self._breaks = 0  # times that renewals have stopped or begun
        self.holder: Holder | None = None
        self.term = 0  # grows with each holder

    def take(self, holder: Holder) -> None:
        """Somebody begins to hold it."""
        self.term += 1
        self.go_on_with(holder)

    def go_on_with(self, holder: Holder) -> None:
        """It is renewed from now on; the same term goes on."""
        self._breaks += 1
        self.holder, self._renewed_at = holder, None

    def stops(self, holder: Holder) -> None:
        """From now on this one cannot renew it."""
        if holder is not self.holder or self._renewed_at is not None:
            return
        env = self._env
        ago_s = RENEW_S * env.dice.random()
        self._renewed_at = env.now - ago_s
        self._breaks += 1
        waits = ((SURE_S, holder.doubt), (DURATION_S, holder.stand_aside))
        for wait_s, what in waits:
            env.after(wait_s - ago_s, self._unless_renewed, self._breaks, what)
        late_s = DURATION_S + POLL_S * env.dice.random()
        env.after(late_s - ago_s, self._unless_renewed, self._breaks, self._expired)

    def release(self, holder: Holder) -> None:
        """It is given back: whoever stands by takes it at the next look."""
        if holder is self.holder:
            self._breaks += 1
            self._renewed_at = -math.inf
            wait_s = POLL_S * self._env.dice.random()
            self._env.after(wait_s, self._unless_renewed, self._breaks, self._expired)

    def _unless_renewed(self, breaks: int, what: Callable[[], None]) -> None:
        if breaks == self._breaks:
            what()

    def renew(self, holder: Holder) -> bool:
        """It can again; False if somebody else has it."""
        if holder is self.holder and self._renewed_at is not None:
            self.go_on_with(holder)
        return holder is self.holder

    def is_sure(self, holder: Holder) -> bool:
        """Whether the holder knows that nobody else can have it."""
        return self._held(holder, SURE_S)

    def is_safe(self, holder: Holder) -> bool:
        """Whether nobody else can have it, whatever the holder knows."""
        return self._held(holder, DURATION_S)

    def _held(self, holder: Holder, for_s: float) -> bool:
        since = self._renewed_at
        return holder is self.holder and (since is None or self._env.now - since < for_s)
