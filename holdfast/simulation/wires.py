"""One connection between a controller and an agent, as both of them see it.

To the shell it is a `Wire`. What is sent at one moment arrives together, later, and in order; what
is under way when the connection breaks is lost. Signs of life are not sent but looked up: a day of
them would be millions of messages.
"""

from collections.abc import Sequence
from typing import Protocol

from holdfast.messages import Ack, Fact, Kept, Question, Report, ToAgent
from holdfast.simulation.nature import Nature

MAX_DELAY_S = 0.5  # of a message, unless it is a late one

Upward = Fact | Report | Kept
Downward = ToAgent | Question


class AgentEnd(Protocol):
    """The agent of a node, as its connections see it."""

    node: str

    def hears(self, wire: "SimulatedWire") -> bool:
        """Whether this is its connection, and it reads what arrives."""

    def talks_over(self, wire: "SimulatedWire") -> bool:
        """Whether this is its connection, and it gives signs of life over it."""

    def receive(self, wire: "SimulatedWire", messages: Sequence[Downward]) -> None:
        """Messages of the controller have arrived."""

    def forget(self, acked: int) -> None:
        """The controller has these facts on its disk."""

    def lost(self, wire: "SimulatedWire") -> None:
        """This connection is found to be gone."""

    def in_trouble(self, for_s: float = 0.0) -> None:
        """Giving it up is no mistake, now and for so much longer."""


class ControlEnd(Protocol):
    """The process of a controller, as its connections see it."""

    @property
    def clock(self) -> float:
        """What this process takes for the present."""

    def sends(self, wire: "SimulatedWire", message: Downward) -> None:
        """It is about to send this; that may be the end of it."""

    def receive(self, wire: "SimulatedWire", messages: Sequence[Upward]) -> None:
        """Messages of an agent have arrived."""

    def closed(self, wire: "SimulatedWire") -> None:
        """A connection is gone that it has not closed."""

    def falls_silent(self) -> None:
        """From now on something may not be heard."""


class SimulatedWire:
    """One connection, from the agent's hello until both ends have left it."""

    def __init__(self, nature: Nature, agent: AgentEnd, control: ControlEnd) -> None:
        self.agent, self.control = agent, control
        self._nature = nature
        self._heard_at = control.clock
        self._in_flight = 0  # messages on their way to the controller
        self._up_free = self._down_free = 0.0  # a later one does not overtake: when it may arrive
        self._batch: list[Downward] | None = None  # what is sent now arrives together
        self._sent_at = -1.0
        self._cut = False  # nothing arrives any more, at either end
        self.left = False  # by the controller

    # ── the controller's end ──

    @property
    def heard_at(self) -> float:
        """When anything last arrived, by the controller's clock."""
        if self.flows:
            self._heard_at = self.control.clock
        return self._heard_at

    @property
    def flows(self) -> bool:
        """Whether a sign of life arrives at this moment: it overtakes no message."""
        return not (self._cut or self.left or self._in_flight) and self.agent.talks_over(self)

    def send(self, message: Downward) -> None:
        """On its way, unless the connection is closed."""
        if self.left:
            return
        self.control.sends(self, message)
        if isinstance(message, Ack) and not self._nature.chance(self._slow_acks):
            if self.agent.hears(self):
                self.agent.forget(message.seq)
            return
        if self._batch is not None and self._sent_at == self._nature.now:
            self._batch.append(message)
            return
        self._batch, self._sent_at = [message], self._nature.now
        self._down_free = max(self._down_free, self._nature.now + self._delay_s())
        wait_s = self._down_free - self._nature.now
        self._nature.after(wait_s, self._delivered, self._batch)

    @property
    def _slow_acks(self) -> float:
        return self._nature.hardship.share("slow_acks")

    def overdue(self, _now: float) -> str:
        """Why it is to be closed because the other end takes nothing; empty if it is not."""
        return ""

    def close(self, _why: str) -> None:
        """After what was sent the agent finds it closed."""
        self.left = True
        wait_s = max(self._down_free - self._nature.now, self._delay_s())
        self._nature.after(wait_s, self.agent.lost, self)

    def abort(self, _why: str) -> None:
        """Nothing that was sent arrives any more."""
        self.left = self._cut = True
        self._nature.after(self._delay_s(), self.agent.lost, self)

    def _delivered(self, messages: list[Downward]) -> None:
        if messages is self._batch:
            self._batch = None
        if not self._cut:
            self.agent.receive(self, messages)

    # ── the agent's end ──

    def up(self, messages: Sequence[Upward]) -> None:
        """From the agent to the controller."""
        self.falls_silent()
        self._in_flight += 1
        self._up_free = max(self._up_free, self._nature.now + self._delay_s())
        self._nature.after(self._up_free - self._nature.now, self._arrived, messages)

    def _arrived(self, messages: Sequence[Upward]) -> None:
        if not self._cut:
            self._in_flight -= 1
            self.control.receive(self, messages)

    def heard(self) -> None:
        """What has arrived is read."""
        self._heard_at = self.control.clock

    def falls_silent(self) -> None:
        """Until now it was heard."""
        if self.flows:
            self._heard_at = self.control.clock

    def drop(self, *, told: bool) -> None:
        """The agent leaves it; whether the controller is told of that."""
        self._cut = True
        if told and not self.left:
            self.control.closed(self)

    # ── the way ──

    def _delay_s(self) -> float:
        nature = self._nature
        delay_s = min(nature.about(nature.hardship.delay_s), MAX_DELAY_S)
        if nature.chance(nature.hardship.share("late_messages")):
            delay_s += 10.0 * nature.dice.random()
            self.agent.in_trouble(delay_s + 20.0)
            self.control.falls_silent()
        return delay_s
