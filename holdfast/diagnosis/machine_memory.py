"""What is remembered of a machine over all jobs: its signals, its cordons, its last check.

A memory is one small document, whoever keeps it (docs/decisions/0022): times of the newest signals
of each kind within 28 days, and the newest cordons. Pure: times are the caller's, in seconds since
the epoch.

A cordon ends when the machine passes a check after its expiry. The third within 28 days has no
expiry: a machine that passes its checks and fails again and again is what checks do not find, so it
stays out until a person lifts the cordon. What was before that counts no more.

Who writes has a clock of its own, and it may be wrong: what is said to have been in the future
counts for nothing, and a cordon that begins there is due. The check decides, as ever.
"""

from collections.abc import Iterable
from typing import Annotated

import msgspec

from holdfast.diagnosis.lemons import LEMON_SCORE, WINDOW_S, Counts, LemonSignal, score

SIGNALS_KEPT = 8  # of each kind
CORDONS_KEPT = 6
TEXT_MAX = 160  # characters of a reason
CORDON_S = 86_400.0  # the first; the next one lasts twice as long
UNTIL_A_PERSON = 3  # this cordon within the window has no expiry
AHEAD_S = 3600.0  # clocks differ by less; what is further ahead comes from a wrong one

PASSED, LIFTED, RENEWED = "passed its checks", "lifted by a person", "failed its checks"


LATEST_S = 253_402_300_799
MomentS = Annotated[int, msgspec.Meta(ge=0, le=LATEST_S)]
"""Seconds since the epoch that can be written as a date."""


class CordonRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One time that a machine was kept out."""

    at: MomentS
    by: str  # NAMESPACE/NAME of the job, or the operator
    why: str
    until: MomentS | None = None  # it is checked then; None: when a person says so
    ended_at: MomentS | None = None
    ended: str = ""


class MachineMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that is kept of one machine; bounded."""

    signals: dict[LemonSignal, list[MomentS]] = {}  # newest times of each kind, oldest first
    cordons: tuple[CordonRecord, ...] = ()  # oldest first
    checked_at: MomentS | None = None
    failed: str = ""  # what its last check has found; empty: it passed

    @property
    def cordon(self) -> CordonRecord | None:
        """The one that holds."""
        last = self.cordons[-1] if self.cordons else None
        return last if last is not None and last.ended_at is None else None


def read(text: str) -> MachineMemory:
    """As it was written; what cannot be read is nothing, so that no note of a stranger stops us."""
    try:
        return msgspec.json.decode(text, type=MachineMemory)
    except msgspec.MsgspecError:
        return MachineMemory()


def written(memory: MachineMemory) -> str:
    """As one line of JSON."""
    return msgspec.json.encode(memory).decode()


def remembered(
    memory: MachineMemory, given: Iterable[tuple[LemonSignal, float]], now: float
) -> MachineMemory:
    """With these signals, each kind once a second at most, without what is too old."""
    found = {signal: list(times) for signal, times in memory.signals.items()}
    for signal, at in given:
        found[signal] = sorted({*found.get(signal, []), int(at)})
    kept = {
        signal: recent[-SIGNALS_KEPT:]
        for signal, times in found.items()
        if (recent := [at for at in times if _is_recent(at, now)])
    }
    return msgspec.structs.replace(memory, signals=kept)


def counts(memory: MachineMemory, now: float) -> Counts:
    """How often each signal was given within the window, as far as it is kept."""
    return {s: len(t) for s, t in remembered(memory, (), now).signals.items()}


def is_lemon(memory: MachineMemory, now: float) -> bool:
    """Whether it has given enough kinds of signals to be better replaced."""
    return score(counts(memory, now)) >= LEMON_SCORE


def times_out(memory: MachineMemory, now: float) -> int:
    """Cordons within the window that count: those since a person has lifted one."""
    recent = [one for one in memory.cordons if _is_recent(one.at, now)]
    lifted = [number for number, one in enumerate(recent, 1) if one.ended == LIFTED]
    return len(recent) - max(lifted, default=0)


def cordoned(memory: MachineMemory, *, by: str, why: str, now: float) -> MachineMemory:
    """Kept out from now on. A machine that is out already stays so for its first reason."""
    if memory.cordon is not None:
        return memory
    times = times_out(memory, now) + 1
    until = None if times >= UNTIL_A_PERSON else int(now + CORDON_S * times)
    record = CordonRecord(at=int(now), by=by, why=why[:TEXT_MAX], until=until)
    return msgspec.structs.replace(memory, cordons=(*memory.cordons, record)[-CORDONS_KEPT:])


def undone(memory: MachineMemory, made: CordonRecord | None) -> MachineMemory:
    """As if this cordon had never been."""
    last = memory.cordon
    if made is None or last is None or (last.at, last.by) != (made.at, made.by):
        return memory
    return msgspec.structs.replace(memory, cordons=memory.cordons[:-1])


def ended(memory: MachineMemory, how: str, now: float) -> MachineMemory:
    """Not kept out any more."""
    if memory.cordon is None:
        return memory
    last = msgspec.structs.replace(memory.cordon, ended_at=int(now), ended=how)
    return msgspec.structs.replace(memory, cordons=(*memory.cordons[:-1], last))


def checked(memory: MachineMemory, failed: str, *, by: str, now: float) -> MachineMemory:
    """A check is over, and `failed` is what it has found. One that was due returns a cordoned
    machine or renews its cordon; before the expiry, and where a person is to say so, it changes
    nothing but what is known."""
    known = msgspec.structs.replace(memory, checked_at=int(now), failed=failed[:TEXT_MAX])
    if not is_due(memory, now):
        return known
    if not failed:
        return ended(known, PASSED, now)
    return cordoned(ended(known, RENEWED, now), by=by, why=failed, now=now)


def is_due(memory: MachineMemory, now: float) -> bool:
    """Whether a check is to decide now if the machine comes back."""
    cordon = memory.cordon
    if cordon is None or cordon.until is None:
        return False
    return now >= cordon.until or cordon.at > now + AHEAD_S


def _is_recent(at: float, now: float) -> bool:
    return now - WINDOW_S < at <= now + AHEAD_S


def cordons_most(machines: int, share: float) -> int:
    """How many of so many machines may be out at once: this share of them, but one of a few, and
    none where the share is 0 or there is only one."""
    if share <= 0 or machines < 2:
        return 0
    return max(1, int(machines * share))
