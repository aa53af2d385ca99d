"""Planted bugs in how time is booked, and in how old a fact is; see `mutants`."""

from holdfast.simulation.environment import Promise
from tests.simulation.mutant import Mutant

OF_BOOKS: dict[str, Mutant] = {
    "a hang began when this controller saw it": Mutant(
        "goodput/bookkeeper.py",
        "attempt.faults.stood_until = None if works else at",
        "pass",
        Promise.BOOKS,
        first=50,
        when_asked=True,
    ),
    "what waited to be decided has just happened": Mutant(
        "shell/decisions.py",
        "last, waited_s = len(events) - 1, self._clock() - put_at",
        "last, waited_s = len(events) - 1, 0.0",
        Promise.BOOKS,
        first=25,
    ),
    "what follows from a fence has just happened": Mutant(
        "shell/shell.py",
        "self.put(*found, *(aged(event, took_s) for event in events))",
        "self.put(*found, *events)",
        Promise.BOOKS,
        first=3,
        when_asked=True,
    ),
    "the last to stop had just done the last step": Mutant(
        "detection/stopping.py",
        "ago_s = max(0.0, now - self._step_end)",
        "ago_s = self._progress.step_ago_s",
        Promise.BOOKS,
        first=23,
        when_asked=True,
    ),
    "joined stretches of time lose the first": Mutant(
        "goodput/books.py",
        "return old._replace(end_ms=new.end_ms, stalls=old.stalls.plus(new.stalls))",
        "return new._replace(stalls=old.stalls.plus(new.stalls))",
        Promise.BOOKS,
    ),
    "time is booked backwards": Mutant(
        "goodput/books.py",
        "if room <= 0:",
        "if room == 0:",
        Promise.BOOKS,
        first=53,
    ),
    "booked time is booked again": Mutant(
        "goodput/books.py",
        "self.cursor = until",
        "pass",
        Promise.BOOKS,
    ),
    "the step before the last is redone": Mutant(
        "controller/attempts.py",
        "redo_until=state.max_step or 0,",
        "redo_until=0,",
        Promise.BOOKS,
        first=53,
    ),
}
