"""A job in the foreground: its output, one line per incident, and a summary at the end.

The controller runs in this process and hands every fact to `Teller.hear`; a thread shows what the
workers print. Neither may hold up the controller or end it: showing is bounded, and a terminal
that went away is ignored.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from holdfast.cli import story
from holdfast.cli.aside import standard_error_aside, write_through
from holdfast.cli.controller import status_of_outcome
from holdfast.cli.output import abandon, json_result, styled, talk, want_json
from holdfast.cli.source import PARTIAL, incidents_of, marked
from holdfast.cli.status import status_of
from holdfast.cli.tail import TICK_S, Line, Tail, prefixed
from holdfast.errors import ExitStatus
from holdfast.files import unusable

if TYPE_CHECKING:
    from holdfast.actions import Entry, Outcome
    from holdfast.controller import State
    from holdfast.spec import Job

SKIP_BYTES = 4 * 1024 * 1024
DRAIN_LINES_MAX = 20_000


class Teller:
    """Which incidents have been told, so that each one gives two lines: its start and its end."""

    def __init__(self, known: int = 0) -> None:
        self._opened = known
        self._closed = known

    def hear(self, entry: "Entry", state: "State") -> None:
        """Say what the newest fact has made certain."""
        if _explains(entry):
            for incident in state.incidents[self._opened :]:
                talk(styled(story.opened(incident), "yellow", sys.stderr))
            self._opened = len(state.incidents)
        self._tell_closed(state)

    def _tell_closed(self, state: "State") -> None:
        for incident in state.incidents[self._closed : self._opened]:
            if incident.ended_at is None:
                return
            if not state.ended:
                colour = "yellow" if incident.overtaken else "green"
                talk(styled(story.closed(incident), colour, sys.stderr))
            self._closed += 1


def _explains(entry: "Entry") -> bool:
    """Whether the cause of an open incident is known now, so that it can be told."""
    from holdfast.actions import EndJob, StartAttempt
    from holdfast.events import Diagnosed, NodeLost

    final = any(isinstance(action, (StartAttempt, EndJob)) for action in entry.actions)
    return final or isinstance(entry.event, (Diagnosed, NodeLost))


def run_shown(
    job: "Job",
    folder: Path,
    run: "Callable[[Callable[[Entry, State], None]], Outcome]",
    *,
    as_json: bool,
    resumed: bool = False,
) -> ExitStatus:
    """Run a job to its end with everything shown; the status to exit with."""
    teller = Teller(len(incidents_of(folder)) if resumed else 0)
    stream = sys.stderr if as_json else sys.stdout
    with output_shown(folder, job.logs.terminal, stream, from_now=resumed):
        with standard_error_aside():
            outcome = run(teller.hear)
    try:
        _summary(folder, as_json)
    except OSError as error:  # it was removed meanwhile; how the job ended is known all the same
        ended = outcome.value.replace("_", " ")
        unread = unusable(error, f"{job.name} {ended}, but its record cannot be read")
        if as_json:
            raise unread from error
        talk(str(unread))
    return status_of_outcome(outcome)


@contextlib.contextmanager
def output_shown(
    folder: Path, terminal: str, stream: TextIO, *, from_now: bool = False
) -> Iterator[None]:
    """Show what workers print, until the block ends and all of it has been shown."""
    if terminal == "none":
        yield
        return
    tail = Tail(folder, rank=0 if terminal == "rank0" else None, skip_bytes=SKIP_BYTES)
    if from_now:
        tail.seek_end()
    ended = threading.Event()
    thread = threading.Thread(target=_show, args=(tail, stream, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        tail.close()


def _show(tail: Tail, stream: TextIO, ended: threading.Event) -> None:
    """Print new lines until told to end, then what is left; a lost terminal ends it early."""
    try:
        while not ended.wait(TICK_S):
            _write(stream, tail.tick())
        _write(stream, list(tail.drain())[-DRAIN_LINES_MAX:])
    except (OSError, ValueError):
        abandon(stream)


def _write(stream: TextIO, lines: list[Line]) -> None:
    if lines:
        write_through(stream, prefixed(lines))


def _summary(folder: Path, as_json: bool) -> None:
    """The end of a job: how it ended, why if it did not go well, and what to ask next. Of a record
    that was damaged meanwhile only the beginning is told, which may be far from the end."""
    from holdfast.drivers.records import troubles

    found = [trouble for trouble in troubles(folder) if trouble.slug in PARTIAL]
    status = marked(status_of(folder), found)
    if as_json:
        want_json()
        json_result(status)
    good = status.outcome == "succeeded"
    talk(styled(story.ending(status), "green" if good else "red", sys.stderr))
    if not good:
        _account(folder, status.why or "")
    for trouble in found:
        talk(str(trouble))
    more = f"holdfast goodput {status.job}   holdfast logs {status.job}"
    talk(f"next: holdfast why {status.job}   {more}")


def _account(folder: Path, why: str) -> None:
    """Why it did not succeed, with the traceback of the rank that failed first."""
    talk(f"why: {why}")
    found = incidents_of(folder)
    if found and found[-1].traceback:
        talk(f"traceback of rank {found[-1].rank}:\n{story.traceback(found[-1].traceback)}")
