"""The progress page: shared memory in which a worker says how far it is, without a system call.

The agent makes one memfd per worker process and maps it; the worker maps the same one. The worker
only ever stores aligned 8-byte values, each of which is seen whole by the reader; the reader
tolerates that two of them are a few nanoseconds apart. The page outlives the worker, so the last
step, the last losses and the traceback of a worker killed by SIGKILL are still there.

Layout: 64 words of 8 bytes (see `Word`), a ring of step records, space for one `WorkerError`, then
the names of the script's own metrics and a ring of their values, one row for each step record. A
name keeps its column; the memory of columns that nobody uses is never touched. Then comes what
the worker has noticed about its numbers (`NumberWord`): the page is polled five times a second, and
a step may be over in milliseconds. At the end is room for a profile (`profile_slot`), and a lock
that tells of the end of the worker (`end_lock`).

A number that was not logged is zero bits, and zero is a NaN that no arithmetic makes: so a NaN that
was computed is told apart from nothing. It is stored as an integer, because a NaN that passes
through a float may lose its bits.

Steps that a script reports and steps that are only seen of it have words of their own: the former
are those of the whole training and decide what is lost and redone, the latter count from 1 in each
attempt.
All times are CLOCK_MONOTONIC, which processes of one machine share.
"""

import math
import mmap
import os
import time
from collections.abc import Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from holdfast.digests import ReplicaDigest
from holdfast.end_lock import LOCK_BYTES, EndLock
from holdfast.events import Broken, Milestone, Progress, Quantity, Spike, WorkerError
from holdfast.files import require_memory
from holdfast.messages import WorkerReport
from holdfast.profile_slot import SLOT_BYTES, ProfileSlot

MAGIC = 0x3145_4741_5046_4831
HEADER_BYTES = 512
RECORD_WORDS = 5
RECORD_COUNT = 1024
ERROR_OFFSET = HEADER_BYTES + RECORD_COUNT * RECORD_WORDS * 8
ERROR_BYTES = 64 * 1024
METRIC_COUNT = 32  # names that a script may log besides those that every step has
METRIC_NAME_BYTES = 64  # with a zero at the end
NAMES_OFFSET = ERROR_OFFSET + ERROR_BYTES
VALUES_OFFSET = NAMES_OFFSET + METRIC_COUNT * METRIC_NAME_BYTES
NUMBERS_OFFSET = VALUES_OFFSET + RECORD_COUNT * METRIC_COUNT * 8
SECTION_OFFSET = NUMBERS_OFFSET + 128
SECTION_BYTES = 64  # of its name, with a zero at the end
PROFILE_OFFSET = SECTION_OFFSET + SECTION_BYTES
LOCK_OFFSET = PROFILE_OFFSET + SLOT_BYTES
PAGE_BYTES = LOCK_OFFSET + LOCK_BYTES
_ZERO = 0x7FF8_0000_5A45_524F  # a NaN that no arithmetic makes: zero, as zero bits are no value


class WorkerPhase(IntEnum):
    """What a worker does at the moment."""

    STARTING = 0
    RENDEZVOUS = 1
    SETUP = 2
    RESTORE = 3
    DATA = 4
    STEP = 5
    SNAPSHOT = 6
    FINISHED = 7
    SECTION = 8  # one that the script has named
    ENDING = 9  # the script has ended well, and the interpreter ends


class Word(IntEnum):
    """Index of each 8-byte word of the header."""

    MAGIC = 0
    PHASE = 1
    STEP = 2  # completed steps + 1; 0 = the script reports none
    STEP_AT = 3
    STEP_TIME = 4
    LOSS = 5
    GRAD_NORM = 6
    TOKENS = 7
    DATA_WAIT = 8
    SNAPSHOT_TIME = 9
    RESTORED_STEP = 10
    SNAPSHOT_STEP = 11
    SNAPSHOT_EVERY = 12
    RECORD_NEXT = 13  # records written so far; the next goes to this number modulo RECORD_COUNT
    ERROR_LENGTH = 14  # written last
    METRIC_NAMES = 15  # how many there are; written after the name
    MILESTONES = 16  # one word per Milestone, in order; 0.0 = not yet
    INTERVALS = 24  # one word per durable tier, the quickest first: seconds; 0.0 = not used
    OPTIMIZER_STEPS = 29  # seen in this attempt; 0 = none, or they are not counted
    OPTIMIZER_STEP_AT = 30  # end of the newest
    OPTIMIZER_STEP_TIME = 31  # from one to the next, lately
    STEPPED = 32  # the milestone of this name
    PRINTED_STEP = 33  # newest step that the output tells + 1; 0 = none. Written by the agent
    PRINTED_AT = 34  # when it became that
    PRINTED_LOSS = 35  # likewise; zero bits are none
    RAISED_AT = 36  # when the script let go of an exception that ends it with status 1; 0.0 = not
    STEPS_TOTAL = 37  # after which the script's loop ends; 0 = the script reports none
    SKIPPED = 38  # batches that the training which was restored has left out
    SNAPSHOT_AT = 39  # when the newest was whole here; 0.0 = none yet
    SNAPSHOT_TOOK = 40  # what training waited for it, in seconds
    GARBAGE_TIME = 41  # that Python's collector took
    PAUSED = 42  # seconds in which it was stopped with all of its node. Written by the agent
    STAGE_TIME = 43  # that it has computed in its stages of a pipeline, up to the newest step


class NumberWord(IntEnum):
    """Index of each 8-byte word about numbers, from `NUMBERS_OFFSET` on. Steps are written last."""

    BROKE_STEP = 0  # the first whose numbers were not finite; 0: none
    BROKE_AT = 1
    BROKE_WHAT = 2  # place in `Quantity`
    BROKE_VALUE = 3
    SPIKE_STEP = 4  # the newest; 0: none
    SPIKE_WHAT = 5
    SPIKE_VALUE = 6
    SPIKE_USUAL = 7
    DIFFER_STEP = 8  # the first after which replicas of parameters were not the same; 0: none
    DIFFER_AGREED = 9
    DIFFER_DIGEST = 10
    DIFFER_FIRST = 11
    DIFFER_COUNT = 12
    DIFFER_SINCE = 13  # when all were last the same


_IN_A_ROW = tuple(milestone for milestone in Milestone if milestone is not Milestone.STEPPED)
MILESTONES: dict[Milestone, int] = {
    **{milestone: Word.MILESTONES + place for place, milestone in enumerate(_IN_A_ROW)},
    Milestone.STEPPED: Word.STEPPED,
}
QUANTITIES = tuple(Quantity)
TIER_COUNT = 3


class StepRecord(NamedTuple):
    """What one step logged. None where the script logged nothing of the kind; NaN is a value."""

    step: int
    at: float  # monotonic
    loss: float | None
    grad_norm: float | None
    tokens: int
    metrics: Mapping[str, float] = MappingProxyType({})  # what else


class Page:
    """One mapped progress page; the same class for the writer (worker) and the reader (agent)."""

    def __init__(self, fd: int) -> None:
        require_memory(fd, "holdfast-page", PAGE_BYTES)
        self._map = mmap.mmap(fd, PAGE_BYTES)
        view = memoryview(self._map)
        self._ints = view.cast("q")
        self._floats = view.cast("d")
        self._ints[Word.MAGIC] = MAGIC
        self._columns = {name: column for column, name in enumerate(self._names())}
        self.profile = ProfileSlot(view[PROFILE_OFFSET:LOCK_OFFSET])
        self.end_lock = EndLock(view[LOCK_OFFSET:PAGE_BYTES])

    @staticmethod
    def create() -> int:
        """A new, empty page as a memfd; it vanishes with its last holder."""
        fd = os.memfd_create("holdfast-page", os.MFD_CLOEXEC)
        os.ftruncate(fd, PAGE_BYTES)
        return fd

    def close(self) -> None:
        """Unmap; the memory stays while another process maps it."""
        self.profile.close()
        self.end_lock.close()
        self._ints.release()
        self._floats.release()
        self._map.close()

    # ── worker side ──

    def phase(self, phase: WorkerPhase) -> None:
        """Say what the worker does now."""
        self._ints[Word.PHASE] = phase

    def script_ended(self) -> None:
        """Well; what its process does from here on is no training."""
        outside = WorkerPhase.STARTING, WorkerPhase.STEP, WorkerPhase.FINISHED
        if self._ints[Word.PHASE] in outside:
            self.phase(WorkerPhase.ENDING)

    def section(self, name: str) -> None:
        """The worker is in a stretch of the script with this name, of less than 64 bytes."""
        self._map[SECTION_OFFSET:PROFILE_OFFSET] = name.encode().ljust(SECTION_BYTES, b"\0")
        self._ints[Word.PHASE] = WorkerPhase.SECTION

    def reach(self, milestone: Milestone) -> None:
        """Note the time of a milestone; only the first time counts."""
        index = MILESTONES[milestone]
        if self._floats[index] == 0.0:
            self._floats[index] = time.monotonic()

    def restored(self, step: int, skipped: int = 0) -> None:
        """Training goes on after `step` completed steps, with so many batches left out."""
        self._ints[Word.RESTORED_STEP], self._ints[Word.SKIPPED] = step, skipped
        self._floats[Word.STEP_AT] = time.monotonic()
        self._ints[Word.STEP] = step + 1
        self.reach(Milestone.RESTORED)

    def aims(self, total: int) -> None:
        """The loop ends after `total` completed steps."""
        self._ints[Word.STEPS_TOTAL] = total

    def stalls(self, data_wait_s: float, snapshot_s: float, stage_s: float = 0.0) -> None:
        """Sums since the start of the attempt."""
        self._floats[Word.STAGE_TIME] = stage_s
        self._floats[Word.DATA_WAIT] = data_wait_s
        self._floats[Word.SNAPSHOT_TIME] = snapshot_s

    def collected_garbage(self, seconds: float) -> None:
        """Python's collector took so long."""
        self._floats[Word.GARBAGE_TIME] += seconds

    def snapshot(self, step: int, every: int, took_s: float) -> None:
        """The newest snapshot is of `step`; one is taken each `every` steps."""
        self._floats[Word.SNAPSHOT_AT] = time.monotonic()
        self._floats[Word.SNAPSHOT_TOOK] = took_s
        self._ints[Word.SNAPSHOT_STEP] = step
        self._ints[Word.SNAPSHOT_EVERY] = every

    def intervals(self, seconds: Sequence[float]) -> None:
        """How often each durable tier gets a checkpoint now; told by rank 0."""
        for number, value in enumerate(seconds[:TIER_COUNT]):
            self._floats[Word.INTERVALS + number] = value

    def step_done(self, step: int, step_time_s: float, record: StepRecord | None) -> None:
        """Step number `step` (counting from 1) is complete.

        `record` is None while what the step logged is still on its way from the accelerator.
        """
        if record is not None:
            self.record(record)
        self._floats[Word.STEP_TIME] = step_time_s
        self._floats[Word.STEP_AT] = time.monotonic() if record is None else record.at
        self._ints[Word.STEP] = step + 1

    def optimizer_stepped(self, count: int, at: float, step_time_s: float) -> None:
        """Step number `count` of the optimizer, in this attempt, ended at `at` (monotonic)."""
        self._floats[Word.OPTIMIZER_STEP_TIME] = step_time_s
        self._floats[Word.OPTIMIZER_STEP_AT] = at
        self._ints[Word.OPTIMIZER_STEPS] = count
        if count == 1:
            self.phase(WorkerPhase.STEP)
            self.reach(Milestone.STEPPED)

    def grad_norm(self, norm: float) -> None:
        """Of the gradients that the optimizer has used, newest."""
        self._put(Word.GRAD_NORM, norm)

    def forget_optimizer(self) -> None:
        """Its steps are not counted any more, so nothing may be concluded from their number."""
        self._ints[Word.OPTIMIZER_STEPS] = self._ints[Word.GRAD_NORM] = 0

    def record(self, record: StepRecord) -> None:
        """Publish what one step logged."""
        count = self._ints[Word.RECORD_NEXT]
        at = HEADER_BYTES // 8 + (count % RECORD_COUNT) * RECORD_WORDS
        ints, floats = self._ints, self._floats
        ints[at] = record.step
        floats[at + 1] = record.at
        self._put(at + 2, record.loss)
        self._put(at + 3, record.grad_norm)
        ints[at + 4] = record.tokens
        self._write_metrics(count, record.metrics)
        ints[Word.RECORD_NEXT] = count + 1
        self._put(Word.LOSS, record.loss)
        self._put(Word.GRAD_NORM, record.grad_norm)
        ints[Word.TOKENS] += record.tokens

    def column(self, name: str) -> int | None:
        """Where the values of a metric go: it is given a column now if it has none; None where no
        more are left. Raises `ValueError` for a name that does not fit."""
        found = self._columns.get(name)
        if found is not None or len(self._columns) == METRIC_COUNT:
            return found
        text = name.encode()
        if not text or len(text) >= METRIC_NAME_BYTES or b"\0" in text:
            raise ValueError(f"{name!r} is not a valid name of a metric")
        number = self._columns[name] = len(self._columns)
        at = NAMES_OFFSET + number * METRIC_NAME_BYTES
        self._map[at : at + METRIC_NAME_BYTES] = text.ljust(METRIC_NAME_BYTES, b"\0")
        self._ints[Word.METRIC_NAMES] = number + 1
        return number

    def _write_metrics(self, record: int, metrics: Mapping[str, float]) -> None:
        columns = {self.column(name): value for name, value in metrics.items()}
        first = _row(record)
        for column in range(len(self._columns)):
            self._put(first + column, columns.get(column))

    def _put(self, at: int, value: float | None) -> None:
        """A number, or None for nothing, into the word `at`."""
        if value is None or value == 0.0:
            self._ints[at] = 0 if value is None else _ZERO
        else:
            self._floats[at] = value

    def broke(self, step: int, at: float, what: Quantity, value: float) -> None:
        """Note the first step whose numbers were not finite, and when it was over (monotonic);
        later ones do not count."""
        first = NUMBERS_OFFSET // 8
        if self._ints[first + NumberWord.BROKE_STEP] != 0:
            return
        self._floats[first + NumberWord.BROKE_AT] = at
        self._ints[first + NumberWord.BROKE_WHAT] = QUANTITIES.index(what)
        self._floats[first + NumberWord.BROKE_VALUE] = value
        self._ints[first + NumberWord.BROKE_STEP] = step

    def spiked(self, spike: Spike) -> None:
        """Note a step whose numbers were far above the usual; the newest counts."""
        first = NUMBERS_OFFSET // 8
        self._ints[first + NumberWord.SPIKE_WHAT] = QUANTITIES.index(spike.what)
        self._floats[first + NumberWord.SPIKE_VALUE] = spike.value
        self._floats[first + NumberWord.SPIKE_USUAL] = spike.usual
        self._ints[first + NumberWord.SPIKE_STEP] = spike.step

    def differs(self, found: ReplicaDigest) -> None:
        """Note what this rank has of parameters that are not the same on all; the first counts."""
        ints, first = self._ints, NUMBERS_OFFSET // 8
        if ints[first + NumberWord.DIFFER_STEP] != 0:
            return
        ints[first + NumberWord.DIFFER_AGREED] = found.agreed
        ints[first + NumberWord.DIFFER_DIGEST] = found.digest
        ints[first + NumberWord.DIFFER_FIRST] = found.first
        ints[first + NumberWord.DIFFER_COUNT] = found.count
        self._floats[first + NumberWord.DIFFER_SINCE] = time.monotonic() - found.ago_s
        ints[first + NumberWord.DIFFER_STEP] = found.step

    def fail(self, error: WorkerError) -> None:
        """Leave the uncaught exception behind for the agent; long texts are cut to fit."""
        error = _as_text(error)
        while len(encoded := msgspec.json.encode(error)) > ERROR_BYTES:
            keep = len(error.traceback) // 2
            error = msgspec.structs.replace(
                error,
                type=error.type[:200],
                message=error.message[:2000],
                file=error.file[-2000:],
                traceback="...\n" + error.traceback[len(error.traceback) - keep :],
            )
        self._map[ERROR_OFFSET : ERROR_OFFSET + len(encoded)] = encoded
        self._ints[Word.ERROR_LENGTH] = len(encoded)

    def raised(self) -> None:
        """What `fail` has left ends the process with status 1, however long that takes."""
        self._floats[Word.RAISED_AT] = time.monotonic()
        self.end_lock.let_go()

    # ── agent side ──

    def begin_again(self) -> None:
        """The worker begins another attempt in the same process: nothing is known of that yet, but
        for the names of metrics, which keep their columns. It may not be writing now."""
        kept = self._ints[Word.MAGIC], self._ints[Word.METRIC_NAMES]
        self._map[:HEADER_BYTES] = bytes(HEADER_BYTES)
        self._map[NUMBERS_OFFSET:LOCK_OFFSET] = bytes(LOCK_OFFSET - NUMBERS_OFFSET)
        self._ints[Word.MAGIC], self._ints[Word.METRIC_NAMES] = kept

    @property
    def raised_at(self) -> float:
        """When the script raised what it ends with (monotonic); 0.0: it has not."""
        return self._floats[Word.RAISED_AT]

    def paused(self, seconds: float) -> None:
        """The worker was stopped for so long, and so was all of its node."""
        self._floats[Word.PAUSED] += seconds

    @property
    def pace(self) -> tuple[int, float]:
        """Steps that are known to be done, and what the newest took; 0.0: not known."""
        if self._ints[Word.STEP] > 0:
            return self._ints[Word.STEP] - 1, self._floats[Word.STEP_TIME]
        return self._ints[Word.OPTIMIZER_STEPS], self._floats[Word.OPTIMIZER_STEP_TIME]

    def step_printed(self, step: int) -> None:
        """The worker's output tells this step."""
        if self._ints[Word.PRINTED_STEP] != step + 1:
            self._floats[Word.PRINTED_AT] = time.monotonic()
            self._ints[Word.PRINTED_STEP] = step + 1
            self.reach(Milestone.STEPPED)

    @property
    def printed_step(self) -> int | None:
        """The newest that the output told."""
        step = self._ints[Word.PRINTED_STEP] - 1
        return step if step >= 0 else None

    def loss_printed(self, loss: float) -> None:
        """And this loss."""
        if loss == 0.0:
            self._ints[Word.PRINTED_LOSS] = _ZERO
        else:
            self._floats[Word.PRINTED_LOSS] = loss

    def error(self) -> WorkerError | None:
        """The exception the worker left, if any."""
        length = self._ints[Word.ERROR_LENGTH]
        if not 0 < length <= ERROR_BYTES:
            return None
        try:
            return msgspec.json.decode(
                self._map[ERROR_OFFSET : ERROR_OFFSET + length], type=WorkerError
            )
        except msgspec.MsgspecError:
            return None

    def milestone_words(self) -> bytes:
        """The times of all milestones as they are: other bytes mean another one was reached."""
        row, apart = 8 * Word.MILESTONES, 8 * Word.STEPPED
        return self._map[row : row + 8 * len(_IN_A_ROW)] + self._map[apart : apart + 8]

    def reached(self, milestone: Milestone) -> bool:
        """Whether the worker has reached this milestone."""
        return bool(self._floats[MILESTONES[milestone]] > 0)

    def progress(self, now: float) -> Progress:
        """How far the worker is; `now` is monotonic."""
        step = self._ints[Word.STEP] - 1
        return Progress(
            step=step if step >= 0 else None,
            step_ago_s=max(0.0, now - self._floats[Word.STEP_AT]) if step >= 0 else 0.0,
            data_wait_s=self._floats[Word.DATA_WAIT],
            snapshot_s=self._floats[Word.SNAPSHOT_TIME],
            paused_s=self._floats[Word.PAUSED],
            finished=self.reached(Milestone.FINISHED),
        )

    def report(self, rank: int, pid: int, now: float) -> WorkerReport:
        """Everything the page says, for the controller; `now` is monotonic."""
        reached = ((m, self._floats[MILESTONES[m]]) for m in Milestone)
        step_time = self._floats[Word.STEP_TIME]
        printed = self.printed_step
        since = self._floats[Word.PRINTED_AT]
        printed_ago_s = max(0.0, now - since) if printed is not None else 0.0
        kept_at = self._floats[Word.SNAPSHOT_AT]
        steps = self._ints[Word.OPTIMIZER_STEPS]
        step_ago_s = max(0.0, now - self._floats[Word.OPTIMIZER_STEP_AT]) if steps else 0.0
        return WorkerReport(
            rank=rank,
            pid=pid,
            progress=self.progress(now),
            milestones={m: max(0.0, now - at) for m, at in reached if at > 0},
            restored_step=self._ints[Word.RESTORED_STEP],
            skipped=self._ints[Word.SKIPPED],
            steps_total=self._ints[Word.STEPS_TOTAL],
            phase=_phase_name(self._ints[Word.PHASE]),
            section=self._section(),
            loss=self._get(Word.LOSS),
            grad_norm=self._get(Word.GRAD_NORM),
            step_time_s=step_time or None,
            tokens=self._ints[Word.TOKENS],
            garbage_s=self._floats[Word.GARBAGE_TIME],
            stage_s=self._floats[Word.STAGE_TIME],
            snapshot_step=self._ints[Word.SNAPSHOT_STEP],
            snapshot_every=self._ints[Word.SNAPSHOT_EVERY],
            snapshot_ago_s=max(0.0, now - kept_at) if kept_at else None,
            snapshot_took_s=self._floats[Word.SNAPSHOT_TOOK] if kept_at else None,
            tier_every_s=self._intervals(),
            broke=self.first_broke(now),
            spike=self._newest_spike(),
            printed_step=printed,
            printed_step_ago_s=printed_ago_s,
            printed_loss=self._printed_loss(),
            optimizer_steps=steps,
            optimizer_step_ago_s=step_ago_s,
            optimizer_step_time_s=self._floats[Word.OPTIMIZER_STEP_TIME] if steps > 1 else None,
            replica=self._replica(now),
        )

    def first_broke(self, now: float) -> Broken | None:
        """The first step whose numbers were not finite, if any; `now` is monotonic."""
        first = NUMBERS_OFFSET // 8
        step = self._ints[first + NumberWord.BROKE_STEP]
        if step == 0:
            return None
        return Broken(
            step=step,
            what=_quantity(self._ints[first + NumberWord.BROKE_WHAT]),
            value=spelled(self._floats[first + NumberWord.BROKE_VALUE]),
            ago_s=max(0.0, now - self._floats[first + NumberWord.BROKE_AT]),
        )

    def _newest_spike(self) -> Spike | None:
        first = NUMBERS_OFFSET // 8
        step = self._ints[first + NumberWord.SPIKE_STEP]
        if step == 0:
            return None
        return Spike(
            step=step,
            what=_quantity(self._ints[first + NumberWord.SPIKE_WHAT]),
            value=self._floats[first + NumberWord.SPIKE_VALUE],
            usual=self._floats[first + NumberWord.SPIKE_USUAL],
        )

    def _replica(self, now: float) -> ReplicaDigest | None:
        first = NUMBERS_OFFSET // 8
        step = self._ints[first + NumberWord.DIFFER_STEP]
        if step == 0:
            return None
        return ReplicaDigest(
            step=step,
            agreed=self._ints[first + NumberWord.DIFFER_AGREED],
            digest=self._ints[first + NumberWord.DIFFER_DIGEST],
            first=self._ints[first + NumberWord.DIFFER_FIRST],
            count=self._ints[first + NumberWord.DIFFER_COUNT],
            ago_s=max(0.0, now - self._floats[first + NumberWord.DIFFER_SINCE]),
        )

    def _get(self, at: int) -> float | None:
        """What `_put` has left in the word `at`."""
        bits = self._ints[at]
        if bits in (0, _ZERO):
            return None if bits == 0 else 0.0
        return self._floats[at]

    def _printed_loss(self) -> float | None:
        return self._get(Word.PRINTED_LOSS)

    def _section(self) -> str:
        if self._ints[Word.PHASE] != WorkerPhase.SECTION:
            return ""
        return self._map[SECTION_OFFSET:PROFILE_OFFSET].rstrip(b"\0").decode(errors="replace")

    def _intervals(self) -> tuple[float, ...]:
        """Nothing on most ranks, and then nothing is sent."""
        words = range(Word.INTERVALS, Word.INTERVALS + TIER_COUNT)
        found = tuple(self._floats[word] for word in words)
        return found if any(found) else ()

    def records(self, after: int) -> tuple[list[StepRecord], int]:
        """Records written since the first `after` ones, and how many there are now.

        Records that the ring has already overwritten are skipped.
        """
        count = self._ints[Word.RECORD_NEXT]
        first = max(after, count - RECORD_COUNT + 1)
        names = self._names()
        return [self._record(n, names) for n in range(first, count)], count

    def _names(self) -> list[str]:
        """The names of metrics, by column."""
        ends = NAMES_OFFSET + METRIC_NAME_BYTES * self._ints[Word.METRIC_NAMES]
        starts = range(NAMES_OFFSET, ends, METRIC_NAME_BYTES)
        texts = (self._map[at : at + METRIC_NAME_BYTES].rstrip(b"\0") for at in starts)
        return [text.decode(errors="replace") for text in texts]

    def _metrics(self, record: int, names: Sequence[str]) -> dict[str, float]:
        """Where a name came after this record, its column was never written here: no value."""
        first = _row(record)
        cells = ((name, self._get(first + column)) for column, name in enumerate(names))
        return {name: value for name, value in cells if value is not None}

    def _record(self, number: int, names: Sequence[str]) -> StepRecord:
        at = HEADER_BYTES // 8 + (number % RECORD_COUNT) * RECORD_WORDS
        return StepRecord(
            self._ints[at],
            self._floats[at + 1],
            self._get(at + 2),
            self._get(at + 3),
            self._ints[at + 4],
            self._metrics(number, names),
        )


def _row(record: int) -> int:
    """The index of the first metric of a record, in words."""
    return VALUES_OFFSET // 8 + (record % RECORD_COUNT) * METRIC_COUNT


def _phase_name(value: int) -> str:
    return WorkerPhase(value).name.lower() if value in list(WorkerPhase) else ""


def _quantity(place: int) -> Quantity:
    return QUANTITIES[place] if 0 <= place < len(QUANTITIES) else Quantity.LOSS


def spelled(value: float) -> str:
    """A number that is not finite as a word, for JSON has none for it: nan, inf or -inf."""
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _as_text(error: WorkerError) -> WorkerError:
    """The same without halves of surrogate pairs, as file names that are not UTF-8 have them."""
    texts = {name: getattr(error, name) for name in ("type", "message", "file", "traceback")}
    whole = {key: text.encode(errors="backslashreplace").decode() for key, text in texts.items()}
    return msgspec.structs.replace(error, **whole)
