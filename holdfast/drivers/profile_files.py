"""The traces of a profile, where the agents have left them, made one file.

One trace is held at a time: events of a rank are some hundred megabytes as Python has them.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from holdfast.profiles import RankProfile
from holdfast.profiling.analysis import ProfiledSteps
from holdfast.profiling.merge import RankTrace, ahead_us, collective_ends, moved
from holdfast.profiling.trace import read

LEVEL = 6
TEXT_BYTES = 256 << 20  # of a trace; agents keep none of more than half of that


class _Stamped(msgspec.Struct):
    """What an agent has added to the trace."""

    first_step: int
    ends_ns: list[int]


class _Kept(msgspec.Struct):
    holdfast: _Stamped


def merged(
    folder: Path, profiles: Sequence[RankProfile], label: Callable[[int], str], output: Path
) -> list[int]:
    """Write the traces of these ranks into one, compressed; the ranks that are in it. `label` says
    how the processes of a rank are named. Raises `OSError`, `ValueError`."""
    kept = [one for one in profiles if one.trace]
    if not kept:
        return []
    known = [_about(folder / one.trace, one.rank, label(one.rank)) for one in kept]
    base_ns, ahead = known[0].base_ns, ahead_us(known)
    part = output.with_name(f"{output.name}.part")
    try:
        with gzip.open(part, "wt", LEVEL) as file:
            file.write(f'{{"displayTimeUnit":"ms","baseTimeNanoseconds":{base_ns},"traceEvents":[')
            comma = ""
            for one, about, clock in zip(kept, known, ahead, strict=True):
                events = json.loads(_text(folder / one.trace))["traceEvents"]
                for event in moved(about, events, base_ns, clock):
                    file.write(comma + json.dumps(event, separators=(",", ":")))
                    comma = ",\n"
            file.write("]}\n")
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)
    return [one.rank for one in kept]


def _about(path: Path, rank: int, label: str) -> RankTrace:
    text = _text(path)
    trace, stamp = read(text), msgspec.json.decode(text, type=_Kept).holdfast
    steps = ProfiledSteps(stamp.first_step, stamp.ends_ns)
    base_ns, machine = trace.base_time_nanoseconds, trace.host_name
    return RankTrace(rank, label, base_ns, machine, steps, collective_ends(trace, steps))


def _text(path: Path) -> bytes:
    try:
        with gzip.open(path, "rb") as file:
            text = file.read(TEXT_BYTES + 1)
    except (EOFError, zlib.error) as error:
        raise ValueError(f"{path}: {error}") from error
    if len(text) > TEXT_BYTES:
        raise ValueError(f"{path}: it has more than {TEXT_BYTES >> 20} MiB")
    return text
