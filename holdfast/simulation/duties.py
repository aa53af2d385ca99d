"""The duties of a simulated driver: each may die, and is started again as the real ones are.

What there is to do for a duty that does not run waits until it does. One that is broken for good
fails again and again, until the process hands over to a new one.
"""

from collections.abc import Callable
from typing import Protocol

from holdfast.shell.supervision import Strikes
from holdfast.simulation.environment import Environment

SOON_S = 1.0  # until one that is broken fails again, mean


class Process(Protocol):
    """What duties are a part of."""

    def hear(self, what: Callable[[], object]) -> None:
        """This happens."""

    def crash(self) -> None:
        """It ends, for another one to begin."""


class SimulatedDuty:
    """One duty of a process. `missed` hears for how long it did not run, once it runs again."""

    def __init__(
        self,
        env: Environment,
        process: Process,
        missed: Callable[[float], object] = lambda _s: None,
    ) -> None:
        self._env, self._process, self._missed = env, process, missed
        self._strikes = Strikes()
        self._waiting: list[Callable[[], object]] = []
        self.runs = True
        self.broken = False  # it fails whenever it is started

    def do(self, what: Callable[[], object]) -> None:
        """Now, or once it runs again."""
        if self.runs:
            what()
        else:
            self._waiting.append(what)

    def fail(self) -> None:
        """It dies."""
        if not self.runs:
            return
        self.runs = False
        pause_s = self._strikes.failed(self._env.now)
        if pause_s is None:
            self._process.crash()
        else:
            self._env.after(pause_s, self._again, pause_s)

    def _again(self, pause_s: float) -> None:
        self.runs = True
        waiting, self._waiting = self._waiting, []
        self._process.hear(lambda: self._missed(pause_s))
        if self.broken:
            self._waiting = waiting
            self._env.after(self._env.about(SOON_S), self.fail)
            return
        for what in waiting:
            self._process.hear(what)
