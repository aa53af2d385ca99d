"""What is remembered of a machine, for people and for programs."""

from datetime import UTC, datetime
from typing import Any, cast

from holdfast.diagnosis.lemons import LEMON_SCORE, LemonSignal, score
from holdfast.diagnosis.machine_memory import CordonRecord, MachineMemory, counts, is_due


def fields_of(memory: MachineMemory, now: float) -> dict[str, Any]:
    """As `holdfast nodes --json` has it; `now` in seconds since the epoch."""
    cordon, counted = memory.cordon, counts(memory, now)
    until = cordon.until if cordon is not None else None
    return {
        "cordoned": cordon is not None,
        "owner": cordon and cordon.by,
        "reason": cordon and cordon.why,
        "expires": None if until is None else time_text(until),
        "expired": is_due(memory, now),
        "signals": {str(signal): counted[signal] for signal in LemonSignal if signal in counted},
        "score": score(counted),
        "lemon": score(counted) >= LEMON_SCORE,
        "checked": None if memory.checked_at is None else time_text(memory.checked_at),
        "check_failed": memory.failed,
        "history": [_record(one) for one in memory.cordons],
    }


def _record(one: CordonRecord) -> dict[str, Any]:
    return {
        "at": time_text(one.at),
        "by": one.by,
        "why": one.why,
        "until": None if one.until is None else time_text(one.until),
        "ended_at": None if one.ended_at is None else time_text(one.ended_at),
        "ended": one.ended,
    }


def signals_text(fields: dict[str, Any]) -> str:
    """The score, and which signals make it."""
    which = ", ".join(f"{count} {signal}" for signal, count in fields["signals"].items())
    told = f"{fields['score']} of {len(LemonSignal)}"
    return f"{told}: {which}" if which else told


def history_lines(fields: dict[str, Any]) -> list[str]:
    """One line for each time that the machine was out, and one if it had better be replaced."""
    name = fields["machine"]
    lines = [
        f"{name}: cordoned {one['at']} by {one['by']}: {one['why']}; {_end(one)}"
        for one in cast("list[dict[str, Any]]", fields["history"])
    ]
    if fields["lemon"]:
        lines.append(f"{name}: {LEMON_SCORE} or more kinds of faults: replace it permanently")
    return lines


def time_text(at: float) -> str:
    """Seconds since the epoch as a date in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _end(one: dict[str, Any]) -> str:
    if one["ended_at"] is not None:
        return f"{one['ended']} {one['ended_at']}"
    return f"checked again {one['until']}" if one["until"] else "until it is lifted manually"
