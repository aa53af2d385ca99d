"""The part of the progress page in which an agent asks a worker for a profile, and hears of it.

The agent writes what it wants, then its number; the worker, which looks at that number where a step
ends, writes how far it is, what it has to say, then the same number. A worker reads eight bytes of
its own memory a step while nobody wants anything. Numbers only grow while a worker lives, so that a
wish which was taken back is never taken for the next one.
"""

from enum import IntEnum

import msgspec

HEADER_BYTES = 64
ORDER_BYTES = 4096
ANSWER_BYTES = 16_384
SLOT_BYTES = HEADER_BYTES + ORDER_BYTES + ANSWER_BYTES


class SlotWord(IntEnum):
    """Index of each 8-byte word at the beginning."""

    WANTED = 0  # number of the wish; 0: none
    STAGE = 1
    ANSWERED = 2  # number of the wish that the answer is of
    ORDER_LENGTH = 3
    ANSWER_LENGTH = 4


class ProfileStage(IntEnum):
    """How far a worker is with it."""

    ASKED = 0  # it has not come to the end of a step since
    PREPARING = 1  # its profiler begins, in a step that is not told of
    RECORDING = 2
    WRITING = 3


class ProfileOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is to do: after this step, profile so many and leave the trace in a file."""

    steps: int
    after: int
    path: str
    within_s: float = 120.0  # of which no more is recorded, whether a step ends or not


class ProfileNotes(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says afterwards. `why`: it has left no trace, for this reason.

    `ends_ns`: when the step before the first one, and each of them, ended; `waits_ns`: begin and
    length of each wait for a batch. Both by the clock of the wall (CLOCK_REALTIME), as the trace.
    """

    why: str = ""
    first_step: int = 0
    ends_ns: tuple[int, ...] = ()
    waits_ns: tuple[tuple[int, int], ...] = ()
    stalled_s: float = 0.0
    cuda: bool = False  # the process uses a GPU


class ProfileSlot:
    """Both ends of it, over the memory of a page."""

    def __init__(self, memory: memoryview) -> None:
        """`memory` is SLOT_BYTES long and begins at a multiple of 8."""
        self._words = memory[:HEADER_BYTES].cast("q")
        self._order = memory[HEADER_BYTES : HEADER_BYTES + ORDER_BYTES]
        self._answer = memory[HEADER_BYTES + ORDER_BYTES :]

    def close(self) -> None:
        """Let the memory go."""
        for view in (self._words, self._order, self._answer):
            view.release()

    @property
    def wanted(self) -> int:
        """Number of what is wanted now; 0 for nothing."""
        return self._words[SlotWord.WANTED]

    # ── agent side ──

    def ask(self, number: int, order: ProfileOrder) -> None:
        """Want this, under a number that was not used before. Raises `ValueError` if the path is
        too long."""
        text = msgspec.json.encode(order)
        if len(text) > ORDER_BYTES:
            raise ValueError(f"the path of the trace is too long: {len(text)} bytes")
        self._order[: len(text)] = text
        self._words[SlotWord.ORDER_LENGTH] = len(text)
        self._words[SlotWord.STAGE] = ProfileStage.ASKED
        self._words[SlotWord.WANTED] = number

    def withdraw(self) -> None:
        """Want nothing any more."""
        self._words[SlotWord.WANTED] = 0

    @property
    def stage(self) -> ProfileStage:
        """How far the worker is."""
        value = self._words[SlotWord.STAGE]
        return ProfileStage(value) if value in list(ProfileStage) else ProfileStage.ASKED

    def answer_to(self, number: int) -> ProfileNotes | None:
        """What the worker says to this request; None as long as it says nothing."""
        length = self._words[SlotWord.ANSWER_LENGTH]
        if self._words[SlotWord.ANSWERED] != number or not 0 < length <= ANSWER_BYTES:
            return None
        try:
            return msgspec.json.decode(self._answer[:length], type=ProfileNotes)
        except ValueError as error:  # of msgspec, and UnicodeDecodeError
            return ProfileNotes(why=f"its answer cannot be read: {error}")

    # ── worker side ──

    def order(self) -> ProfileOrder:
        """What is wanted. Raises `msgspec.MsgspecError`."""
        length = self._words[SlotWord.ORDER_LENGTH]
        return msgspec.json.decode(self._order[:length], type=ProfileOrder)

    def reach(self, stage: ProfileStage) -> None:
        """The worker is so far."""
        self._words[SlotWord.STAGE] = stage

    def tell(self, number: int, notes: ProfileNotes) -> None:
        """Answer. Of what is too long the waits for batches are left out."""
        text = msgspec.json.encode(notes)
        if len(text) > ANSWER_BYTES:
            short = msgspec.structs.replace(notes, waits_ns=(), why=notes.why[:1000])
            text = msgspec.json.encode(short)
        self._answer[: len(text)] = text
        self._words[SlotWord.ANSWER_LENGTH] = len(text)
        self._words[SlotWord.ANSWERED] = number
