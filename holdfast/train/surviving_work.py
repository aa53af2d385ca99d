"""One operation of a group that outlives its attempt, and how it ends: also one that gloo forgets.

gloo never ends an operation whose message could not be written because the connection had just been
closed (`waitSend` in `gloo/transport/tcp/unbound_buffer.cc`): a rank whose peer is gone may wait
for ever, and so would whoever waits for the operation. So nobody waits for gloo itself: what is
under way is known here, and ends once gloo says so or, where the attempt is broken, once gloo has
closed all connections of the group. Until then it could still write to the memory it was given;
from then on nothing can arrive any more.
"""

import _thread
import contextlib
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work

NO_TIMEOUT = timedelta(0)  # as PyTorch says that there is none
LOOK_S = 0.005


class WorkOutcome:
    """Of one operation: once it is over, `error` is None or what is to be raised."""

    def __init__(self, work: Any, conclude: Callable[[RuntimeError | None], None]) -> None:
        """`conclude` is called once, in a thread of gloo's, with what gloo has raised; it raises
        what is to be raised here."""
        self.work = work
        self.error: Exception | None = None
        self.over: torch.futures.Future[None] = torch.futures.Future()
        self.silent = False  # gloo does not say by itself when it has ended
        self._conclude = conclude
        self._lock = threading.Lock()
        self._told = False

    def end(self, error: RuntimeError | None) -> None:
        """Gloo has ended it, or never will."""
        with self._lock:
            if self._told:
                return
            self._told = True
        try:
            self._conclude(error)
        except Exception as raised:  # for whoever waits for it
            self.error = raised
        self.over.set_result(None)


class UnderWay:
    """The operations of one gloo group that have not ended."""

    def __init__(self) -> None:
        self._outcomes: set[WorkOutcome] = set()
        self._forsaken: Callable[[], None] | None = None
        self.stuck = False
        """Whether some of them have threads of gloo's that never come back."""

    def add(self, outcome: WorkOutcome) -> None:
        """Gloo has begun it."""
        try:
            future = outcome.work.get_future()
        except RuntimeError:  # of messages between two ranks, and of some collectives
            outcome.silent = True
            return
        self._keep(outcome)
        future.add_done_callback(lambda done: self._ended(outcome, done.value))

    def watch(self, outcome: WorkOutcome) -> None:
        """Somebody waits for it."""
        if outcome.silent:
            outcome.silent = False
            self._keep(outcome)
            _thread.start_new_thread(self._ended, (outcome, outcome.work.wait))

    def _keep(self, outcome: WorkOutcome) -> None:
        self._outcomes.add(outcome)
        if self._forsaken is not None:  # it was begun in the same moment
            _thread.start_new_thread(self._forsaken, ())

    def _ended(self, outcome: WorkOutcome, value: Callable[[], Any]) -> None:
        error = None
        try:
            value()
        except RuntimeError as raised:
            error = raised
        self._outcomes.discard(outcome)
        outcome.end(error)

    def forsake(self, connected: Callable[[], bool], error: RuntimeError) -> None:
        """The connections are being closed: end what gloo does not end, in a thread."""
        self._forsaken = lambda: self._end_all(connected, error)
        _thread.start_new_thread(self._forsaken, ())

    def settle(self) -> None:
        """Return once nothing is under way."""
        while self._outcomes:
            time.sleep(LOOK_S)

    def _end_all(self, connected: Callable[[], bool], error: RuntimeError) -> None:
        while self._outcomes and connected():
            time.sleep(LOOK_S)
        while self._outcomes:
            self.stuck = True
            with contextlib.suppress(KeyError):
                self._outcomes.pop().end(error)


class SurvivingWork(Work):
    """What a group returns. Without an outcome it is finished, because it was given up."""

    def __init__(self, given: Any, under_way: UnderWay, outcome: WorkOutcome | None) -> None:
        super().__init__()
        self._given, self._under_way, self._outcome = given, under_way, outcome
        self._first = given[0] if given else None  # a barrier is given nothing

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Return when it is finished; always True."""
        outcome = self._outcome
        if outcome is None:
            return True
        if timeout > NO_TIMEOUT:
            self._wait_for(outcome, timeout)
        self._under_way.watch(outcome)
        outcome.over.wait()
        self._value(outcome)
        return True

    def _wait_for(self, outcome: WorkOutcome, timeout: timedelta) -> None:
        try:
            outcome.work.wait(timeout)
        except RuntimeError as error:
            outcome.end(error)

    def _value(self, outcome: WorkOutcome) -> Any:
        if outcome.error is not None:
            raise outcome.error
        return self._first

    def get_future(self) -> Any:
        """Of the tensors that it was given first, as gloo does it."""
        outcome = self._outcome
        if outcome is not None:
            return outcome.over.then(lambda _: self._value(outcome))
        done: torch.futures.Future[Any] = torch.futures.Future()
        done.set_result(self._first)
        return done

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        outcome = self._outcome
        return outcome is None or outcome.over.done() or outcome.work.is_completed()

    def synchronize(self) -> None:
        """Like `wait`."""
        self.wait()

    def _source_rank(self) -> int:
        return self._outcome.work._source_rank() if self._outcome is not None else 0
