"""From a journal to its controller: the facts are heard again, the decisions compared.

What was ordered took effect, so a version of Holdfast that decides otherwise about the same facts
has another picture of the job than the world has. Nodes and workers do not suffer from it: the
driver reports what exists, and the controller corrects. Where this version would have ordered
another attempt, or stopped it elsewhere, the attempts that were ordered are stopped, and the next
number is given, as where lines of the journal were lost. The end of the job is in the journal
alone: one that was ordered holds, and where only this version would have ended the job, nothing is
driven on.

Whoever only reads is shown what precedes damage, and `troubles` for the rest of the story.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast import journal, lines
from holdfast.actions import AnyAction, EndJob, Entry, Outcome, StartAttempt, StopAttempt
from holdfast.controller import Controller, Limits, State
from holdfast.controller.attempts import end_as_recorded
from holdfast.errors import Error
from holdfast.files import sync_folder, write_durable
from holdfast.journal import Journal, Mark, Saved
from holdfast.masking import MASK, SECRET_NAME, masker

VALUE_CHARS = 80  # of a value that is shown
_encoder = msgspec.json.Encoder()


class Divergence(NamedTuple):
    """The first entry about which this version decides otherwise."""

    seq: int
    recorded: tuple[AnyAction, ...]
    decided: tuple[AnyAction, ...]

    def __str__(self) -> str:
        decided, recorded = _orders(self.decided), _orders(self.recorded)
        written = (msgspec.to_builtins([*map(_bare, o)]) for o in (self.decided, self.recorded))
        apart = f" ({_apart(*written)})" if decided == recorded else ""
        decides = f"at entry {self.seq} this version decides {decided}"
        return f"{decides}, the journal has {recorded}{apart}"


class _Fate(NamedTuple):
    """What no fact will correct: the newest attempt that was ordered, whether it was ordered to
    stop, and the job's end."""

    attempt: int = 0
    stops: bool = False
    outcome: Outcome | None = None

    def after(self, actions: Iterable[AnyAction]) -> "_Fate":
        attempt, stops, outcome = self
        for action in actions:
            match action:
                case StartAttempt():
                    attempt, stops = action.attempt, False
                case StopAttempt():
                    attempt, stops = action.attempt, True
                case EndJob():
                    outcome = action.outcome
        return _Fate(attempt, stops, outcome)


class _Course:
    """A controller that hears a journal's facts, and what came of them then and now."""

    def __init__(self, limits: Limits, saved: Saved | None) -> None:
        self.controller = Controller(limits, saved.state if saved is not None else None)
        self.divergence: Divergence | None = None
        self._recorded = self._decided = _Fate()

    def hear(self, path: Path, after: Mark | None) -> None:
        """All entries from there on. Raises `Error`; what came before the trouble was heard."""
        for entry, _ in journal.read(path, after):
            self._hear(path, entry)

    def ended_early(self) -> bool:
        """Whether this version would have ended the job, which goes on."""
        return self._decided.outcome is not None and self._recorded.outcome is None

    def obeyed(self) -> int:
        """Up to which attempt nothing that is known here may be relied on; 0: all may."""
        if self._recorded == self._decided or self.controller.state.ended:
            return 0
        return max(self._recorded.attempt, self.controller.state.attempt + 1)

    def _hear(self, path: Path, entry: Entry) -> None:
        try:
            decided = tuple(self.controller.handle(entry.event, entry.at))
        except Exception as error:  # whatever a controller does that hears what cannot be
            why = f"{type(error).__name__}: {error}"
            raise _diverges(path, f"this version cannot replay entry {entry.seq}: {why}") from error
        self._recorded = self._recorded.after(entry.actions)
        self._decided = self._decided.after(decided)
        for order in entry.actions:
            if isinstance(order, EndJob) and self.controller.state.outcome != order.outcome:
                end_as_recorded(self.controller.state, order)
        if self.divergence is None and not _alike(decided, entry.actions):
            self.divergence = Divergence(entry.seq, entry.actions, decided)


def _say(text: str) -> None:
    print(f"holdfast: {text}", file=sys.stderr, flush=True)


def replay(
    path: Path, limits: Limits, say: Callable[[str], None] = _say
) -> tuple[Controller, Journal]:
    """Rebuild the controller from the journal and open it for more.

    Raises `Error` journal-corrupt, journal-version or journal-diverges; then nothing has changed.
    What is not as it should be, but does no harm, is told with `say`.
    """
    if journal.read_header(path).journal == journal.UNSEALED:
        kept = _seal(path)
        say(f"{path} had no checksums and was rewritten with them; the old file is {kept.name}")
    end = journal.end_of(path)
    saved = _saved(path, lambda error: say(f"{error.what}: {error.why}; {error.help}"))
    if saved is not None and saved.offset > end.offset:
        raise _shortened(path, saved, end)
    course = _Course(limits, saved)
    course.hear(path, saved.mark if saved is not None else None)
    if course.divergence is not None:
        if course.ended_early():
            raise _diverges(path, str(course.divergence))
        say(f"{path}: {course.divergence}; the job continues from what its nodes report")
    torn = path.stat().st_size - end.offset
    if torn:
        say(
            f"{path}: the last line is incomplete; {torn} bytes were truncated, their orders were "
            "never executed"
        )
    book = Journal(path, end)
    book.obeyed = course.obeyed()
    book.diverged = f"after an upgrade of Holdfast: {course.divergence}" if book.obeyed else ""
    return course.controller, book


def read_state(path: Path, limits: Limits) -> State:
    """The controller's state as of the last entry that can be read, without changing anything.

    Raises `Error` if not even the header can be read.
    """
    journal.read_header(path)
    saved = _saved(path, lambda _: None)
    course = _Course(limits, saved)
    with contextlib.suppress(Error):  # `troubles` tells
        course.hear(path, saved.mark if saved is not None else None)
    return course.controller.state


def until_damage(path: Path) -> Iterable[Entry]:
    """The entries that can be read; `troubles` tells why not all. Raises `Error` for a header."""
    journal.read_header(path)
    with contextlib.suppress(Error):
        yield from journal.entries(path)


def compare(path: Path, limits: Limits) -> Divergence | None:
    """Where this version decides otherwise than the journal says; None if nowhere.

    Looked at is what a new controller would replay. Raises `Error` for damage on the way.
    """
    saved = _saved(path, lambda _: None)
    course = _Course(limits, saved)
    course.hear(path, saved.mark if saved is not None else None)
    return course.divergence


def troubles(path: Path, limits: Limits) -> list[Error]:
    """What is wrong with a journal whose header can be read: damage, loss, other decisions."""
    found: list[Error] = []
    saved = _saved(path, found.append)
    try:
        end = journal.end_of(path)
        if saved is not None and saved.offset > end.offset:
            raise _shortened(path, saved, end)
        if divergence := compare(path, limits):
            raise _diverges(path, str(divergence))
    except Error as error:
        found.append(error)
    return found


def _saved(path: Path, tell: Callable[[Error], object]) -> Saved | None:
    try:
        return journal.read_saved(path)
    except Error as error:
        tell(error)
        return None


def _seal(path: Path) -> Path:
    """Give each line of an old journal its checksum; all of them, or none. Returns what it was."""
    header = msgspec.structs.replace(journal.read_header(path), journal=journal.VERSION)
    content = bytearray()
    checksum = journal.BEGIN.checksum
    for document in (header, *journal.entries(path)):
        line = bytearray(_encoder.encode(document))
        checksum = lines.seal(line, checksum)
        content += line
    fresh, kept = path.with_suffix(".sealed"), path.with_suffix(".v1")
    for there, data in ((kept, path.read_bytes()), (fresh, bytes(content))):
        there.unlink(missing_ok=True)
        write_durable(there, data)
    fresh.replace(path)
    sync_folder(path.parent)
    return kept


# ── orders, compared and told ─────────────────────────────────────────────────────────────────


def _alike(some: tuple[AnyAction, ...], others: tuple[AnyAction, ...]) -> bool:
    """Whether these are the same orders; their reasons are words, which may change."""
    return some == others or list(map(_bare, some)) == list(map(_bare, others))


def _bare(action: AnyAction) -> AnyAction:
    return msgspec.structs.replace(action, reason="")


def _orders(actions: tuple[AnyAction, ...]) -> str:
    return "; ".join(map(_order, actions)) or "nothing"


def _order(action: AnyAction) -> str:
    match action:
        case StartAttempt():
            return f"StartAttempt {action.attempt}"
        case EndJob():
            return f"EndJob {action.outcome}"
        case _:
            fields = msgspec.structs.asdict(action)
            told = (str(fields[name]) for name in ("node", "attempt", "count") if name in fields)
            return " ".join((type(action).__name__, *told))


def _apart(decided: Any, recorded: Any, place: str = "") -> str:
    """The first value that differs between orders as they are written, by the fields that lead to
    it."""
    pairs: list[tuple[str, Any, Any]] = []
    match decided, recorded:
        case dict(), dict():
            within = f"{place}." if place else f"{decided['type']}."
            names = decided | recorded
            pairs = [(f"{within}{one}", decided.get(one), recorded.get(one)) for one in names]
        case ((list() | tuple()), (list() | tuple())) if len(decided) == len(recorded):
            both = enumerate(zip(decided, recorded, strict=True))
            pairs = [(f"{place}[{n}]" if place else "", *pair) for n, pair in both]
    for name, one, other in pairs:
        if one != other:
            return _apart(one, other, name)
    return f"{place}: {_told(place, decided)}, not {_told(place, recorded)}"


def _told(place: str, value: Any) -> str:
    """Without secrets, and no longer than a line."""
    if SECRET_NAME.search(place):
        return MASK
    text: str = masker(os.environ)(str(value))
    return text if len(text) <= VALUE_CHARS else f"{text[: VALUE_CHARS - 3]}..."


def _diverges(path: Path, why: str) -> Error:
    return Error(
        "journal-diverges",
        f"{path} contains decisions that differ from those of this version",
        why=why,
        help="resume it with the version that wrote it (Holdfast "
        f"{journal.read_header(path).holdfast}), or start a new job from a checkpoint: "
        "holdfast run --from",
    )


def _shortened(path: Path, saved: Saved, end: Mark) -> Error:
    return Error(
        "journal-corrupt",
        f"{path} ends after entry {end.seq}",
        why=f"{journal.state_path(path).name} was written after entry {saved.seq}, so lines are "
        "missing",
        help="restore the file from a backup; if it is a backup that is older than the state "
        f"file, remove {journal.state_path(path)}",
    )
