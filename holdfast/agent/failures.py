"""An uncaught exception of a worker: shown as Python shows it, and left in the progress page.

The exception is let through to the interpreter, which prints it and ends the way it always does
(exit status, SystemExit, SIGINT, atexit, threads). That takes up to seconds, in which others fail
because of it, so the page also says when it was raised. Only the frames of ours at the top of the
traceback are taken off, because they are not the user's. What torch.multiprocessing.spawn raises of
a rank that the worker has started is told as that rank's own exception.
"""

import os
import resource
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import msgspec

from holdfast import flight_recorder, rank
from holdfast.agent.half_files import OURS, note_of
from holdfast.diagnosis.logs import parse_traceback
from holdfast.diagnosis.mismatch import LAST, last_entered, may_be_one
from holdfast.events import WorkerError
from holdfast.page import Page

_OURS = str(Path(__file__).parent.parent) + "/"
SPAWNED = " terminated with the following error:\n"
_STDLIB = str(Path(traceback.__file__).parent) + "/"


class CannotOpenScript(SystemExit):
    """The script cannot be read. Python's own exit status for it is 2."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(2)
        self.cause = cause


class SourceLine(NamedTuple):
    """Where an exception came from."""

    file: str
    line: int


@contextmanager
def shown_and_left(page: Page | None) -> Iterator[None]:
    """Around the script: leave its uncaught exception in `page` and take our frames off it."""
    worker = os.getpid()
    try:
        yield
    except BaseException as error:
        _take_our_frames_off()
        in_worker = os.getpid() == worker  # not in a child the script forked
        if note := note_of(error):
            error.add_note(note)
        for act in rank.on_exception if in_worker and not is_success(error) else ():
            act()
        if page is not None and in_worker and not is_success(error):
            page.fail(_with_collectives(describe(error)))
            if not isinstance(error, SystemExit | KeyboardInterrupt):
                page.raised()  # these two end it in other ways
        raise


def describe(error: BaseException) -> WorkerError:
    """An exception in the words of the page."""
    if isinstance(error, CannotOpenScript):
        return of_command(error.cause, str(error.cause.filename))
    shown = without_our_frames(error.__traceback__)
    text = "".join(traceback.format_exception(type(error), error, shown))
    if (below := _of_spawned(error)) is not None:
        return msgspec.structs.replace(below, traceback=text)
    place = place_of(error)
    return WorkerError(
        type=_qualified_name(type(error)),
        message=_message(error) + _of_limit(error) + _notes(error),
        file=place.file,
        line=place.line,
        traceback=text,
    )


def _of_spawned(error: BaseException) -> WorkerError | None:
    """That of a rank below, as torch quotes it (torch/multiprocessing/spawn.py)."""
    quotes = type(error).__name__ == "ProcessRaisedException"
    _, found, said = str(error).partition(SPAWNED)
    return parse_traceback(said) if quotes and found else None


def _of_limit(error: BaseException) -> str:
    """The limit below which memory could not be had, where the shell has set one: the machine may
    have plenty."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    refused = isinstance(error, MemoryError) or "allocate memory" in str(error)
    if soft == resource.RLIM_INFINITY or not refused:
        return ""
    return f" [ulimit -v, the limit of a process's memory, is {soft / 2**30:.1f} GiB here]"


def _notes(error: BaseException) -> str:
    """Ours, which Python shows below the message."""
    ours = [one for one in getattr(error, "__notes__", ()) if str(one).startswith(OURS)]
    return "".join(f" [{one.removeprefix(OURS)}]" for one in ours)


def _with_collectives(error: WorkerError) -> WorkerError:
    """Where a collective has failed, what was entered is of interest, and soon gone."""
    if not may_be_one(error):
        return error
    return msgspec.structs.replace(
        error, entered=last_entered(flight_recorder.read(LAST, kinds=True).groups)
    )


def of_command(error: OSError, program: str) -> WorkerError:
    """A program that could not be started."""
    return WorkerError(type=type(error).__name__, message=str(error), file=program)


def place_of(error: BaseException) -> SourceLine:
    """The innermost frame of the user's own code, else the innermost frame."""
    if isinstance(error, SyntaxError) and error.filename:
        return SourceLine(error.filename, error.lineno or 0)
    frames = [
        SourceLine(frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(without_our_frames(error.__traceback__))
    ]
    own = [place for place in frames if _is_users(place.file)]
    return (own or frames or [SourceLine("", 0)])[-1]


def without_our_frames(tb: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is neither ours nor that of `python -m`."""
    ours = (_OURS + "agent/", "<frozen runpy>")
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(ours):
        tb = tb.tb_next
    return tb


def _is_users(file: str) -> bool:
    inside = ("/site-packages/", "/dist-packages/")
    if any(part in file for part in inside):
        return False
    return not file.startswith(("<", _OURS, _STDLIB))


def _take_our_frames_off() -> None:
    """From now on uncaught exceptions are printed without our frames, by whatever hook is set."""
    hook = sys.excepthook

    def shown(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        tb = without_our_frames(tb)
        hook(kind, error.with_traceback(tb), tb)

    sys.excepthook = shown


def is_success(error: BaseException) -> bool:
    """Whether Python would end with status 0."""
    return isinstance(error, SystemExit) and error.code in (None, 0)


def _qualified_name(kind: type) -> str:
    plain = kind.__module__ in ("builtins", "__main__")
    return kind.__qualname__ if plain else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its message could not be formatted)"
