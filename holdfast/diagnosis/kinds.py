"""Which exits a verdict need not tell apart, for as many ranks as fail at once.

To read a traceback takes long enough to matter when thousands of ranks have one, and theirs differ
in little but addresses. Those are left out of what is looked up: no cause depends on them.
"""

import re

from holdfast.diagnosis.mismatch import departed
from holdfast.diagnosis.symptoms import missed_by, waited
from holdfast.diagnosis.verdict import LEFT, cause_of, signature_of
from holdfast.events import WorkerError, WorkerExited

VARIES = re.compile(r"0x[0-9a-f]+|\d+\.\d+\.\d+\.\d+(?:\]?:\d+)?|\d{5,}|\b[Rr]ank \d+")
NAMES_RANKS = "failed to pass"  # and then it matters which
KNOWN_MAX = 1_000


def kind_of(exited: WorkerExited) -> str:
    """Equal for exits of which the earliest stands for all: the cause and, after a space, what else
    `weigh` asks for."""
    cause, error = cause_of(exited), exited.error
    told = [] if cause in LEFT else [signature_of(cause, exited)]
    if error is not None and waited(error):
        told += ["waited", *(f"missed {rank}" for rank in missed_by(error))]
    if error is not None and departed(error.entered):
        told.append("departed")
    return " ".join([cause, *filter(None, told)])


class Kinds:
    """`kind_of`, with what was found for others that said the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], str] = {}

    def of(self, exited: WorkerExited) -> str:
        """The kind of this exit."""
        if len(self._known) > KNOWN_MAX:
            self._known.clear()
        key = _gist(exited)
        if key not in self._known:
            self._known[key] = kind_of(exited)
        return self._known[key]


def _gist(exited: WorkerExited) -> tuple[object, ...]:
    progress, error = exited.progress, exited.error
    told = (exited.forkserver != "", exited.oom, exited.clue != "", exited.store)
    how = (exited.exit_code, exited.signal, *told)
    return (*how, progress.finished, progress.step is None, *(_said(error) if error else ()))


def _said(error: WorkerError) -> tuple[object, ...]:
    message, odd = error.message, departed(error.entered) is not None
    place = (error.type, error.file, error.line, odd)
    gist = message if NAMES_RANKS in message else VARIES.sub("", message)
    return (*place, gist, error.traceback.replace(message, "") if message else error.traceback)
