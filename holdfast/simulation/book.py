"""The journal of a simulated world, as it lies on a disk that can fail in the middle of a line.

Lines, checksums, headers and the ledger drawn from them are those of production. It is the `Book`
of a shell, and the `Lines` from which copies are made.
"""

from collections import defaultdict
from itertools import accumulate
from random import Random

import msgspec

from holdfast import journal, lines
from holdfast.actions import Entry, StartAttempt
from holdfast.controller import Controller, Limits, State
from holdfast.events import (
    AttemptStopped,
    Milestone,
    MilestoneReached,
    NumbersBroke,
    Progressed,
    ReplicasDiffer,
    WorkerExited,
    WorkersExited,
)
from holdfast.goodput import Bookkeeper
from holdfast.simulation.accounting import AttemptKnown
from holdfast.simulation.referees import Referees

EPOCH = 1_700_000_000.0  # the wall clock when a world begins
STATE_EVERY = 50  # entries between two states that are kept

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Entry)


class SimulatedJournal:
    """One disk. What was appended and not synced is lost with the process."""

    def __init__(self, limits: Limits, referees: Referees, seed: int) -> None:
        header = journal.Header(
            journal=journal.VERSION, holdfast="simulation", job={"seed": seed}, created_at=EPOCH
        )
        self.lines = bytearray(_encoder.encode(header))
        self._checksum = lines.seal(self.lines, journal.BEGIN.checksum)
        self._ends = [len(self.lines)]  # byte offset of the end of each line
        self.books = Bookkeeper(EPOCH)
        self.seq = 0  # of the last entry that was appended
        self._limits, self._referees = limits, referees
        self._pending: list[Entry] = []
        self._saved: tuple[int, bytes | None] = (0, None)  # seq, state

    @staticmethod
    def of_copy(
        content: bytes, limits: Limits, referees: Referees, seed: int
    ) -> "SimulatedJournal":
        """A new disk with a copy of a journal; with a new one if there is none."""
        book = SimulatedJournal(limits, referees, seed)
        if content:
            found = content.splitlines(keepends=True)
            book.lines = bytearray(content)
            book._ends = list(accumulate(map(len, found)))
            book._checksum = lines.stated(found[-1]) or 0
            book.seq = len(found) - 1
            for line in found[1:]:
                book.books.add(_decoder.decode(line))
        return book

    @property
    def durable(self) -> bool:
        """Whether everything that was appended is on the disk."""
        return not self._pending

    # ── what a shell writes ──

    def append(self, entry: Entry) -> None:
        """Decided, not durable yet."""
        self.seq = entry.seq
        self._pending.append(entry)

    def sync(self) -> None:
        """Make everything appended durable."""
        for entry in self._pending:
            line = bytearray(_encoder.encode(entry))
            self._checksum = lines.seal(line, self._checksum)
            self.lines += line
            self._ends.append(len(self.lines))
            self.books.add(entry)
            self._referees.journaled(entry)
        self._pending.clear()

    def save(self, state: State) -> None:
        """Keep the state now and then, so that the next replay is short."""
        if not self._pending and self.seq - self._saved[0] >= STATE_EVERY:
            self._saved = self.seq, _encoder.encode(state)

    # ── what copies are made of ──

    def count(self) -> int:
        """How many whole lines there are."""
        return len(self._ends)

    def read(self, first: int, limit_bytes: int) -> list[bytes]:
        """Lines from `first` on: at least one, and no more than fit."""
        start = self._ends[first - 1] if first else 0
        last = first + 1
        while last < len(self._ends) and self._ends[last] - start <= limit_bytes:
            last += 1
        return bytes(self.lines[start : self._ends[last - 1]]).splitlines(keepends=True)

    def starts(self) -> dict[int, int]:
        """The entry that ordered the start of each attempt first, by attempt."""
        found: dict[int, int] = {}
        for line in self.lines[self._ends[0] : self._ends[-1]].splitlines():
            entry = _decoder.decode(line)
            for action in entry.actions:
                if isinstance(action, StartAttempt):
                    found.setdefault(action.attempt, entry.seq)
        return found

    def known(self) -> dict[int, AttemptKnown]:
        """How far each attempt has come."""
        found: defaultdict[int, AttemptKnown] = defaultdict(AttemptKnown)
        for line in self.lines[self._ends[0] : self._ends[-1]].splitlines():
            event = _decoder.decode(line).event
            if isinstance(event, Progressed | WorkerExited | WorkersExited | AttemptStopped):
                old, step = found[event.attempt], event.progress.step or 0
                found[event.attempt] = old._replace(step=max(old.step, step))
            elif isinstance(event, MilestoneReached) and event.milestone is Milestone.CAUGHT_UP:
                found[event.attempt] = found[event.attempt]._replace(caught_up=True)
            elif isinstance(event, NumbersBroke | ReplicasDiffer):
                found[event.attempt] = found[event.attempt]._replace(broke=True)
        return found

    def shared(self, other: "SimulatedJournal") -> int:
        """The newest entry up to which both are the same."""
        same = 0
        for ours, theirs in zip(self.texts(), other.texts(), strict=False):
            if ours != theirs:
                break
            same += 1
        return same - 1

    def texts(self) -> list[bytes]:
        """All whole lines."""
        return bytes(self.lines[: self._ends[-1]]).splitlines(keepends=True)

    def before(self, ago_s: float) -> bytes:
        """What it was so long before its last entry."""
        texts = self.texts()
        newest = _decoder.decode(texts[-1]).at if len(texts) > 1 else 0.0
        return b"".join(
            [texts[0], *(text for text in texts[1:] if _decoder.decode(text).at <= newest - ago_s)]
        )

    def line(self, seq: int) -> bytes:
        """One line, with its end."""
        return self.read(seq, 0)[0]

    # ── what becomes of it ──

    def tear(self, dice: Random) -> None:
        """A crash while writing: some lines of the last batch arrived, and part of the next."""
        if not self._pending:
            return
        whole = dice.randrange(len(self._pending))
        lost = self._pending[whole]
        del self._pending[whole:]
        self.sync()
        line = bytearray(_encoder.encode(lost))
        lines.seal(line, self._checksum)
        self.lines += line[: int(len(line) * dice.random())]
        self._pending.append(lost)

    def whole(self) -> Controller:
        """A controller that has replayed the journal from its first line."""
        return self._replayed(0, None)

    def replay(self) -> Controller:
        """What a new controller process does: cut off a torn line, repeat the rest."""
        del self.lines[self._ends[-1] :]
        self._pending.clear()
        self.seq = len(self._ends) - 1
        return self._replayed(*self._saved)

    def _replayed(self, seq: int, saved: bytes | None) -> Controller:
        """A controller that has heard the facts after entry `seq`, as `replay.replay` makes it."""
        known = msgspec.json.decode(saved, type=State) if saved is not None else None
        controller = Controller(self._limits, known)
        for line in self.lines[self._ends[seq] :].splitlines():
            entry = _decoder.decode(line)
            seq += 1
            self._referees.replayed(entry, seq, controller.handle(entry.event, entry.at))
        return controller
