"""The agent's watch over its machine: a look every few seconds, off the agent's loop.

Each provider has a thread of its own, which is asked and answers; a file system or a driver that
does not answer holds up its own thread and nothing else. A look that does not come back is itself a
reading. Threads are daemons: an agent ends without waiting for them.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable

from holdfast.agent.health.provider import Provider
from holdfast.agent.notes import note
from holdfast.detection.health import XID, Conditions, Reading
from holdfast.events import HealthChanged

SETTLE_S = 0.25  # for answers that somebody waits for: a driver in trouble takes longer
TICK_S = 1.0  # between two looks at whose turn it is

Answer = Callable[[list[Reading]], None]


class Probe:
    """One provider and its thread, which starts with the first question."""

    def __init__(self, provider: Provider, answer: Answer) -> None:
        self._provider = provider
        self._answer = answer
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._due = 0.0
        self._since: float | None = None  # asked, and has not answered
        self._troubles = ""
        self._thread: threading.Thread | None = None

    def is_due(self, now: float) -> bool:
        """Whether it is time for another look, or an answer that would tell is overdue."""
        waits = self._since is not None and self._provider.stalled is not None
        return waits or now >= self._due

    def may_answer(self, now: float) -> bool:
        """Whether it was asked just now, and has not answered."""
        return self._since is not None and now - self._since < SETTLE_S

    def ask(self, now: float) -> Reading | None:
        """Have it look, unless it still does; then what that means, if anything."""
        self._due = now + self._provider.every_s - TICK_S / 2
        if self._since is not None:
            return self._stalled(now - self._since)
        self._since = now
        if self._thread is None:
            name = f"health: {self._provider.name}"
            self._thread = threading.Thread(
                target=self._serve, args=(asyncio.get_running_loop(),), name=name, daemon=True
            )
            self._thread.start()
        self._asked.put(None)
        return None

    def _stalled(self, waited_s: float) -> Reading | None:
        reading = self._provider.stalled
        if reading is None:
            return None
        return reading._replace(value=waited_s, text=f"no answer for {waited_s:.0f} s")

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            self._asked.get()
            trouble, readings = "", []
            try:
                readings = self._provider.read()
            except Exception as error:
                trouble = f"{type(error).__name__}: {error}"
            try:
                loop.call_soon_threadsafe(self._answered, readings, trouble)
            except RuntimeError:  # the loop has ended, and the agent with it
                return

    def _answered(self, readings: list[Reading], trouble: str) -> None:
        self._since = None
        if trouble and trouble != self._troubles:
            note(f"agent: health of {self._provider.name} cannot be read: {trouble}")
        self._troubles = trouble
        self._answer(readings)


class HealthWatch:
    """Tells what changes, by `tell`."""

    def __init__(
        self,
        node: str,
        providers: Iterable[Provider],
        tell: Callable[[HealthChanged], None],
        clock: Callable[[], float] = time.monotonic,
        far: Iterable[Provider] = (),
    ) -> None:
        """`far` ones ask over a network: at their own pace only, and nobody waits for them."""
        self._clock = clock
        self._answered = asyncio.Event()
        self._conditions = Conditions(node)
        self._tell = tell
        self._newest: dict[tuple[str, str], Reading] = {}  # by kind and device
        self._heard_at: dict[tuple[str, str], float] = {}  # likewise
        self.xids: Counter[tuple[str, int]] = Counter()  # told by each GPU, by number
        self._near = [Probe(provider, self._hear) for provider in providers]
        self._probes = [*self._near, *(Probe(provider, self._hear) for provider in far)]

    @property
    def readings(self) -> Collection[Reading]:
        """The newest of each kind and device."""
        return self._newest.values()

    def have_read(self) -> Callable[[], list[Reading]]:
        """Ask everybody now; what is returned tells later what has been heard since."""
        asked_at = self._clock()
        self.look()
        heard, newest = self._heard_at, self._newest
        return lambda: [newest[one] for one, at in heard.items() if at >= asked_at]

    async def run(self) -> None:
        """Each at its pace, for ever."""
        while True:
            now = self._clock()
            self._ask([probe for probe in self._probes if probe.is_due(now)], now)
            await asyncio.sleep(TICK_S)

    def look(self) -> None:
        """Ask everybody near now: what is told comes by itself, milliseconds later."""
        self._ask(self._near, self._clock())

    async def settled(self) -> None:
        """Until what the last look shows is told, as far as that comes soon."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while any(probe.may_answer(self._clock()) for probe in self._near):
                    self._answered.clear()
                    await self._answered.wait()

    def _ask(self, probes: Iterable[Probe], now: float) -> None:
        late = [reading for probe in probes if (reading := probe.ask(now)) is not None]
        if late:
            self._hear(late)

    def _hear(self, readings: list[Reading]) -> None:
        self._answered.set()
        found = {(one.kind, one.device): one for one in readings}
        self._newest.update(found)
        self._heard_at.update(dict.fromkeys(found, self._clock()))
        self.xids.update((one.device, int(one.value)) for one in readings if one.kind == XID)
        for change in self._conditions.hear(readings, self._clock()):
            self._tell(change)
