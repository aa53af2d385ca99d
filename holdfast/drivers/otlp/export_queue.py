"""What waits to be exported, in a thread that nobody waits for.

A receiver that is away, slow or hangs costs memory up to a bound, and then records, never time: the
oldest are dropped and counted. That it is away is said once, and once that it is back.
"""

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

QUEUE = 1000  # records that wait
BATCH = 100  # records of a request
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 60.0
GIVE_UP_S = 600.0  # after which a batch is dropped: one that is refused must not stop all others
_URL = re.compile(r"\s*with url: \S+")  # may contain a token
_AGAIN = re.compile(r", retrying in \S+s\.$")  # what it goes on to do is over when we tell of it

Record = TypeVar("Record")
Say = Callable[[str], None]


class ExportQueue(Generic[Record]):
    """Records of one signal. `export` sends a batch and says whether it was taken; `log` is where
    it says why not; `taken` is called, in the thread, with what was."""

    def __init__(
        self,
        name: str,
        export: Callable[[Sequence[Record]], bool],
        log: str,
        say: Say,
        taken: Callable[[Sequence[Record]], None] = lambda _: None,
    ) -> None:
        self._name, self._export, self._say, self._taken = name, export, say, taken
        self._words = LastWords(log)
        self._waiting: deque[Record] = deque()
        self._sending_count = 0  # that are on their way
        self._dropped_count = 0
        self._away = False
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def begin(self) -> None:
        """Send from now on."""
        self._thread.start()

    def put(self, records: Sequence[Record]) -> None:
        """More of them; returns at once. The oldest go where there is no room."""
        with self._changed:
            self._waiting.extend(records)
            while len(self._waiting) > QUEUE:
                self._waiting.popleft()
                self._dropped_count += 1
            self._changed.notify()

    def end(self) -> None:
        """Nothing more comes: what waits is tried once more."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def close(self, within_s: float) -> None:
        """Wait for that, within that time, and say how much was not delivered."""
        self._thread.join(within_s)
        self._words.close()
        with self._changed:
            left = len(self._waiting) + self._sending_count
            if left or self._dropped_count:
                self._say(f"{self._name}: {left + self._dropped_count} records were not delivered")

    def _run(self) -> None:
        while batch := self._next():
            if self._sent(batch):
                self._taken(batch)
            with self._changed:
                self._sending_count = 0

    def _next(self) -> list[Record]:
        """What is to be sent next, as soon as there is something; nothing: it is over."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            count = min(BATCH, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(count)]
            self._sending_count = count
            return batch

    def _sent(self, batch: Sequence[Record]) -> bool:
        """Again and again, with growing pauses, until it is taken or is given up."""
        began, pause_s = time.monotonic(), FIRST_PAUSE_S
        while True:
            if self._is_taken(batch):
                self._back()
                return True
            if not self._away:
                self._away = True
                self._say(f"{self._name}: {self._words.text or 'not accepted'}; retrying")
            with self._changed:
                last = self._closing or time.monotonic() - began > GIVE_UP_S
                if last:
                    self._dropped_count += len(batch)
                    self._sending_count = 0
                    return False
                self._changed.wait_for(lambda: self._closing, pause_s)
            pause_s = min(LAST_PAUSE_S, 2 * pause_s)

    def _is_taken(self, batch: Sequence[Record]) -> bool:
        """Whatever an exporter does, the thread goes on."""
        self._words.forget()
        try:
            return self._export(batch)
        except Exception as error:
            self._words.text = f"{type(error).__name__}: {error}"
            return False

    def _back(self) -> None:
        """The receiver takes something."""
        if not self._away:
            return
        with self._changed:
            self._away, dropped, self._dropped_count = False, self._dropped_count, 0
        lost = f"; {dropped} records were dropped meanwhile" if dropped else ""
        self._say(f"{self._name}: delivered again{lost}")


class LastWords(logging.Handler):
    """The reason that an exporter gives, instead of a line for each of its attempts."""

    def __init__(self, log: str) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        self._logger = logging.getLogger(log)
        self._logger.addHandler(self)
        self._logger.addHandler(logging.NullHandler())  # for what is said after `close`
        self._logger.propagate = False

    def forget(self) -> None:
        """The next attempt begins."""
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """The first one has the reason; those that follow say that it gives up."""
        if not self.text:
            self.text = _AGAIN.sub("", _URL.sub("", record.getMessage()))

    def close(self) -> None:
        """No more."""
        self._logger.removeHandler(self)
        super().close()
