"""What is to be told of a job from outside: status, incidents and the account of its time.

Follows the journal entry by entry, so that an account costs the same however long the job runs.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast import journal
from holdfast.actions import Entry
from holdfast.controller import State
from holdfast.diagnosis.verdict import Pages
from holdfast.drivers import report
from holdfast.drivers.incident_facts import IncidentFacts
from holdfast.goodput import Bookkeeper, JournalCounters, Ledger, to_goodput
from holdfast.replay import until_damage
from holdfast.status import Goodput, Incident, JobStatus


class JobBooks:
    """The books of one job. `newest` gives the progress of its ranks, `waits_for` what its nodes
    wait for while there are not enough of them."""

    def __init__(
        self,
        name: str,
        journal_path: Path,
        state: State,
        clock: Callable[[], float],
        newest: Callable[[], Pages],
        waits_for: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._name, self._state, self._clock = name, state, clock
        self._newest, self._waits_for = newest, waits_for
        self._books = Bookkeeper(journal.read_header(journal_path).created_at)
        self._facts = IncidentFacts()
        self.counters = JournalCounters()
        for entry in until_damage(journal_path):
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """The next entry."""
        self._books.add(entry)
        self._facts.hear(entry)
        self.counters.hear(entry, self._books)

    def look(self) -> tuple[JobStatus, tuple[Incident, ...], Goodput]:
        """All of it."""
        ledger = self.ledger()
        incidents = tuple(report.incidents(self._name, self._state, ledger, self._facts))
        return self._status(ledger), incidents, to_goodput(self._name, ledger)

    def goodput(self) -> Goodput:
        """The account of its time alone."""
        return to_goodput(self._name, self.ledger())

    def status(self) -> JobStatus:
        """The status alone."""
        return self._status(self.ledger())

    def ledger(self) -> Ledger:
        """Where the time went until now."""
        return self._books.at(None if self._state.ended else self._clock())

    def _status(self, ledger: Ledger) -> JobStatus:
        status = report.job_status(
            self._name,
            self._state,
            ledger,
            controller="ended" if self._state.ended else "alive",
            telemetry=self._newest(),
            wall=self._facts.wall,
        )
        if status.phase != "waiting":
            return status
        return msgspec.structs.replace(status, waiting_for=self._waits_for() or status.waiting_for)
