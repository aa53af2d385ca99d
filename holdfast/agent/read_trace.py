"""`python -m holdfast.agent.read_trace JSON`: reads the trace that a worker has left, says where
its steps went (a `RankProfile` as JSON), and leaves the trace compressed.

A program of its own, with low priority: a trace of a hundred megabytes would hold up the agent, and
would stay in its memory. It has a limit on its memory, as a container is ended as a whole where its
memory is short (memory.oom.group of its cgroup); elsewhere it is ended before any worker is.
"""

import contextlib
import gzip
import io
import os
import resource
import shutil
import sys
from pathlib import Path

import msgspec

from holdfast.profile_slot import ProfileNotes
from holdfast.profiles import RankProfile
from holdfast.profiling.analysis import ProfiledSteps, profile_of
from holdfast.profiling.trace import read

TRACE_BYTES_MAX = 128 << 20  # as Kineto writes it; to read it takes about four times as much
MEMORY_BYTES = 6 * TRACE_BYTES_MAX
NICE = 10
FIRST_TO_GO = "1000"  # of what the kernel ends where memory is short, if it ends one process
LEVEL = 6


class TraceReading(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be read, and whose it is. `kept` is the compressed file, relative to `folder`."""

    trace: str
    folder: str
    kept: str
    rank: int
    node: str
    notes: ProfileNotes


class TraceStamp(msgspec.Struct, frozen=True, kw_only=True):
    """What is added to the trace: key `holdfast` of the file. Nanoseconds since the epoch."""

    rank: int
    node: str
    first_step: int
    ends_ns: tuple[int, ...]


def found_in(wanted: TraceReading) -> RankProfile:
    """Where the steps went; the trace is compressed then. Raises `ValueError`, `OSError`."""
    size = Path(wanted.trace).stat().st_size
    if size > TRACE_BYTES_MAX:
        most = f"at most {TRACE_BYTES_MAX >> 20} MiB; profile fewer steps"
        raise ValueError(f"it has {size >> 20} MiB ({most})")
    text, notes = Path(wanted.trace).read_bytes(), wanted.notes
    steps = ProfiledSteps(notes.first_step, notes.ends_ns, notes.waits_ns)
    found = profile_of(read(text), steps)
    if notes.cuda and found.device != "cuda":
        raise ValueError(
            "no kernel of its GPU is in it: either none ran in these steps, or access to CUPTI was "
            "denied, or another profiler uses it (DCGM's profiling metrics, Nsight; see the "
            "worker's log)"
        )
    stamp = TraceStamp(
        rank=wanted.rank, node=wanted.node, first_step=notes.first_step, ends_ns=notes.ends_ns
    )
    _keep(Path(wanted.folder) / wanted.kept, stamp, text)
    return msgspec.structs.replace(
        found,
        rank=wanted.rank,
        node=wanted.node,
        trace=wanted.kept,
        stalled_s=notes.stalled_s,
    )


def _keep(path: Path, stamp: TraceStamp, text: bytes) -> None:
    """The text of a JSON object, with one more key at its beginning."""
    part = path.with_suffix(".part")
    try:
        with gzip.open(part, "wb", LEVEL) as file:
            file.write(b'{"holdfast":' + msgspec.json.encode(stamp) + b",")
            shutil.copyfileobj(_after_brace(text), file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _after_brace(text: bytes) -> io.BytesIO:
    found = io.BytesIO(text)
    found.seek(text.index(b"{") + 1)
    return found


def main(argument: str) -> None:
    """Read, and tell on standard output, whatever comes of it."""
    wanted = msgspec.json.decode(argument, type=TraceReading)
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO)
    try:
        told = found_in(wanted)
    except MemoryError:
        why = f"its trace: to read it takes more than {MEMORY_BYTES >> 20} MiB; profile fewer steps"
        told = RankProfile(rank=wanted.rank, node=wanted.node, why=why)
    except (ValueError, OSError, EOFError) as error:
        told = RankProfile(rank=wanted.rank, node=wanted.node, why=f"its trace: {error}")
    finally:
        Path(wanted.trace).unlink(missing_ok=True)
    sys.stdout.write(msgspec.json.encode(told).decode())


if __name__ == "__main__":
    main(sys.argv[1])
