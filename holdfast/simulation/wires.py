"""One connection between a controller and an agent, as both of them see it.

To the shell it is a `Wire`. What is sent at one moment arrives together, later, and in order; what
is under way when the connection breaks is lost. Signs of life are not sent but looked up: a day of
them would be millions of messages.

It may stall in one direction or both, tear, or lag. Nobody is told of that: each end finds out as a
kernel and the agent's link do, after the times that these are set to, or the shell does.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.detection.answers import TcpState
from holdfast.messages import (
    Ack,
    EntryTimes,
    EvidenceReply,
    Fact,
    GroupOpened,
    Keep,
    Kept,
    MachineChecked,
    Question,
    Report,
    Stacks,
    StepRepeated,
    ToAgent,
    VersionPrepared,
)
from holdfast.profiles import ProfileTaken
from holdfast.shell.outbox import DEADLINE_S, Outbox
from holdfast.simulation.environment import Environment

MAX_DELAY_S = 0.5  # of a message, unless it is a late one
MESSAGE_BYTES = 200
PING_S = 4.0  # between two questions of an agent whether the controller is there; and to answer
RETRY_S = 0.2  # between two tries of a kernel to send what is not acknowledged
ROUND_TRIP_S = 0.001
SILENT_S = 20.0  # until the kernel of the controller's machine gives up

Upward = (
    Fact
    | Report
    | Kept
    | Stacks
    | EntryTimes
    | EvidenceReply
    | VersionPrepared
    | MachineChecked
    | GroupOpened
    | StepRepeated
    | ProfileTaken
)
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

    def lost(self, wire: "SimulatedWire", *, told: bool = False) -> None:
        """This connection is found to be gone; whether the controller is told."""

    def in_trouble(self, for_s: float = 0.0) -> None:
        """Giving it up is no mistake, now and for so much longer."""

    def disconnect(self) -> None:
        """Its connection breaks, and it knows."""


class ControlEnd(Protocol):
    """The process of a controller, as its connections see it."""

    machine: str
    alive: bool
    stalled: bool
    reach: bool  # agents on other machines

    @property
    def clock(self) -> float:
        """What this process takes for the present."""

    def keeps(self, node: str, seq: int) -> None:
        """A node holds the journal up to this line."""

    def sends(self, wire: "SimulatedWire", message: Downward) -> None:
        """It is about to send this; that may be the end of it."""

    def receive(self, wire: "SimulatedWire", messages: Sequence[Upward], sent_at: float) -> None:
        """Messages of an agent have arrived."""

    def closed(self, wire: "SimulatedWire") -> None:
        """A connection is gone that it has not closed."""

    def falls_silent(self) -> None:
        """From now on something may not be heard."""

    def look_in(self, wait_s: float) -> None:
        """Look for silence after this time."""


class _Way:
    """One direction of a connection: in order, and nothing moves while it is stalled."""

    def __init__(self, env: Environment, arrive: Callable[[Sequence[Any]], None]) -> None:
        self._env, self._arrive = env, arrive
        self._waiting: list[Sequence[Upward | Downward]] = []
        self.free_at = 0.0  # a later message does not overtake: when it may arrive
        self.stalled = False

    def carry(self, messages: Sequence[Upward | Downward], delay_s: float) -> None:
        """These were sent."""
        self.free_at = max(self.free_at, self._env.now + delay_s)
        self._env.after(self.free_at - self._env.now, self._at_the_end, messages)

    def _at_the_end(self, messages: Sequence[Upward | Downward]) -> None:
        if self.stalled:
            self._waiting.append(messages)
        else:
            self._arrive(messages)

    def flow(self) -> None:
        """Everything that waited arrives at once."""
        self.stalled = False
        waiting, self._waiting = self._waiting, []
        for messages in waiting:
            self._arrive(messages)

    @property
    def waiting_bytes(self) -> int:
        """How much has been sent and not taken, about."""
        return sum(_size(message) for messages in self._waiting for message in messages)


def _size(message: Upward | Downward) -> int:
    return sum(map(len, message.lines)) if isinstance(message, Keep) else MESSAGE_BYTES


class SimulatedWire:
    """One connection, from the agent's hello until both ends have left it."""

    def __init__(self, env: Environment, agent: AgentEnd, control: ControlEnd) -> None:
        self.agent, self.control = agent, control
        self.left = False  # by the controller
        self.lag_s = 0.0  # of each message, more than the others have
        self._env = env
        self._heard_at = control.clock
        self._up, self._down = _Way(env, self._arrived), _Way(env, self._delivered)
        self._in_flight: deque[float] = deque()  # when messages to the controller were sent
        self._batch: list[Downward] | None = None  # what is sent now arrives together
        self._sent_at = -1.0
        self._outbox = Outbox()
        self._sent_bytes = 0
        self._cut = False  # nothing arrives any more, at either end
        self._stalls = 0
        self._asked_at: float | None = None  # by the world's clock, without an answer

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
        stopped = self._cut or self.left or self._in_flight or self._up.stalled
        return not stopped and self.agent.talks_over(self)

    def send(self, message: Downward) -> None:
        """On its way, unless the connection is closed."""
        if self.left:
            return
        self.control.sends(self, message)
        self._sent_bytes += MESSAGE_BYTES
        if isinstance(message, Ack) and self._travels_at_once():
            if self.agent.hears(self):
                self.agent.forget(message.seq)
        elif self._batch is not None and self._sent_at == self._env.now:
            self._batch.append(message)
        else:
            self._batch, self._sent_at = [message], self._env.now
            self._down.carry(self._batch, self._delay_s())
        if self._down.stalled:
            self.control.look_in(0.0)
            self.control.look_in(DEADLINE_S)

    def _travels_at_once(self) -> bool:
        slow = self._env.hardship.share("slow_acks")
        return not self._down.stalled and not self._env.chance(slow)

    def ask(self) -> None:
        """The other machine is to acknowledge this."""
        self._asked_at = self._env.now

    def tcp_state(self) -> TcpState | None:
        """What the kernel says, in worlds in which it says anything: a process that is stopped has
        a machine that answers."""
        if "blackouts" not in self._env.hardship.rates:
            return None
        answers = not (self._cut or self._up.stalled or self._down.stalled)
        if answers or self._asked_at is None:
            self._asked_at = None
            now = self.control.clock
            return TcpState(False, 0, now, now if answers else self._heard_at, ROUND_TRIP_S)
        waited_s = self._env.now - self._asked_at
        sent_at = self.control.clock - waited_s % RETRY_S
        return TcpState(True, int(waited_s / RETRY_S), sent_at, self._heard_at, ROUND_TRIP_S)

    def overdue(self, now: float) -> str:
        """Why it is to be closed because the other end takes nothing; empty if it is not."""
        return self._outbox.observe(self._sent_bytes, self._down.waiting_bytes, now)

    def close(self, _why: str) -> None:
        """After what was sent the agent finds it closed."""
        self.falls_silent()
        self.left = True
        self._tell_agent(max(self._down.free_at - self._env.now, self._delay_s()))

    def abort(self, _why: str) -> None:
        """Nothing that was sent arrives any more."""
        self.falls_silent()
        self.left = self._cut = True
        self._tell_agent(self._delay_s())

    def _tell_agent(self, in_s: float) -> None:
        if not self._down.stalled:
            self._env.after(in_s, self.agent.lost, self)

    def _delivered(self, messages: Sequence[Downward]) -> None:
        if messages is self._batch:
            self._batch = None
        if not self._cut:
            self.agent.receive(self, messages)

    # ── the agent's end ──

    def up(self, messages: Sequence[Upward]) -> None:
        """From the agent to the controller."""
        self.falls_silent()
        self._in_flight.append(self._env.now)
        self._up.carry(messages, self._delay_s())

    def _arrived(self, messages: Sequence[Upward]) -> None:
        if not self._cut:
            self.control.receive(self, messages, self._in_flight.popleft())

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
        if told and not self._up.stalled:
            self._closed()

    def _closed(self) -> None:
        """The controller finds it gone."""
        if not self.left:
            self.left = True
            self.control.closed(self)

    # ── the way ──

    def _delay_s(self) -> float:
        env = self._env
        delay_s = min(env.about(env.hardship.delay_s), MAX_DELAY_S)
        if env.chance(env.hardship.share("late_messages")):
            delay_s += 10.0 * env.dice.random()
            self.agent.in_trouble(delay_s + 20.0)
            self.control.falls_silent()
        return delay_s + self.lag_s

    def stall(self, *, up: bool, down: bool) -> None:
        """Nothing moves any more in these directions; no end is told, and each may find out."""
        self.falls_silent()
        self.control.falls_silent()
        self._up.stalled, self._down.stalled = up, down
        self._stalls += 1
        self._env.after(self._answer_s(), self._agent_gives_up, self._stalls)
        if up:
            self._env.after(SILENT_S, self._control_gives_up, self._stalls)

    def flow(self) -> None:
        """Everything that waited arrives, and the news that the other end has left; unless that has
        gone with its machine: then nobody answers, and the agent finds out."""
        control = self.control
        if not control.alive or not (control.reach or control.machine == self.agent.node):
            return
        self._stalls += 1
        self._down.flow()
        self._up.flow()
        if self.left:
            self._tell_agent(self._delay_s())

    def _agent_gives_up(self, stall: int) -> None:
        if stall == self._stalls:
            self.agent.lost(self, told=not self._up.stalled)

    def is_asked(self) -> None:
        """The controller has been stopped: an agent that asks whether it is there hears nothing."""
        self._env.after(self._answer_s(), self._no_answer)

    def _no_answer(self) -> None:
        if self.control.stalled:
            self.agent.lost(self, told=True)

    def _answer_s(self) -> float:
        """How long an agent waits that has asked some time ago, or will soon."""
        return PING_S * (1 + self._env.dice.random())

    def _control_gives_up(self, stall: int) -> None:
        if stall == self._stalls:
            self._closed()

    def tear(self, *, agent_s: float, control_s: float) -> None:
        """It breaks: what is under way is lost, and each end finds out after so long."""
        self.falls_silent()
        self.control.falls_silent()
        self._cut = True
        self._env.after(agent_s, self.agent.lost, self)
        self._env.after(control_s, self._closed)

    def hurry(self) -> None:
        """It lags no more."""
        self.lag_s = 0.0
