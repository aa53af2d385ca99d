"""Tells the agent which collectives this worker has entered, also while it waits in one; and where
its threads stand, if the agent cannot see that from outside.

PyTorch's flight recorder keeps the last collectives of all process groups in a ring, for NCCL and
gloo. It can only be read from inside, so a thread waits on a socket for the agent's question; the
thread that trains takes no part, and may be stuck in a collective. Nothing is patched and nothing
is computed until a question comes; then some hundred entries are copied (see
benchmarks/instrument.py). A worker that holds the GIL cannot answer, which the agent bears.

The thread is one that `threading` does not know of: a script that counts its threads finds those it
has made, and the interpreter does not wait for it.
"""

import _thread
import contextlib
import itertools
import os
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from holdfast import dumped_stacks
from holdfast.collectives import (
    GROUPS_MAX,
    RECENT_MAX,
    Collective,
    CollectiveLog,
    CollectivePace,
    GroupLog,
)
from holdfast.own_stacks import own_stacks
from holdfast.rank_runs import RankRuns, in_runs
from holdfast.stacks import ThreadStack

VARIABLE = "HOLDFAST_RECORDER_FD"
SIZE = "TORCH_FR_BUFFER_SIZE"  # read by torch when the first group is made
ENTRIES = 512  # 4 ms to read; torch's own default with NCCL, 2000, takes 17 ms
ANSWER = struct.Struct(">I")  # its length, ahead of it
QUESTION = struct.Struct(">QI??2x")
"""A number, how many of the newest collectives, whether with kinds, whether stacks instead."""
DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")  # the second before torch 2.9
BINDINGS = "torch._C._distributed_c10d"
GROUPS = "torch.distributed.distributed_c10d"
MICROSECOND_NS = 1000
STEPS_KEPT, ENDS_TOLD, BENDS_MAX, PACES_MAX = 512, 8, 64, 16


class WorkerAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What a worker says to a question with this number."""

    number: int
    log: CollectiveLog
    threads: tuple[ThreadStack, ...] = ()


class _Entry(msgspec.Struct):
    """As the recorder writes it; what is left out here is not needed."""

    process_group: tuple[str, str]
    collective_seq_id: int
    profiling_name: str
    time_created_ns: int
    record_id: int = 0
    is_p2p: bool = False
    retired: bool = False
    input_sizes: list[list[int]] = []
    input_dtypes: list[str] = []


class _Trace(msgspec.Struct):
    entries: list[_Entry] = []


class _StepEnd(NamedTuple):
    """A step that is over, and what had been entered by then, by group."""

    number: int
    at_us: int
    entered: dict[str, int]


_steps: deque[_StepEnd] = deque(maxlen=STEPS_KEPT)
_begun = [0]  # number of the first entry that may be of this attempt
_trace = msgspec.json.Decoder(_Trace)


def answer_from_now_on() -> None:
    """Answer the agent's questions, in a thread of its own; nothing without an agent."""
    fd = os.environ.pop(VARIABLE, None)  # children of the script must not answer
    if fd is not None:
        sock = socket.socket(fileno=int(fd))
        sock.setblocking(True)
        _thread.start_new_thread(_answer, (sock, os.getpid()))


def _answer(sock: socket.socket, worker: int) -> None:
    with contextlib.suppress(OSError):  # the agent has gone
        while len(question := sock.recv(QUESTION.size, socket.MSG_WAITALL)) == QUESTION.size:
            number, recent, kinds, stacks = QUESTION.unpack(question)
            if os.getpid() != worker:
                return
            dumped_stacks.take_back_if_not_ours()
            if stacks:
                answer = WorkerAnswer(number, CollectiveLog(), own_stacks(worker))
            else:
                answer = WorkerAnswer(number, _log(recent, kinds=kinds))
            told = msgspec.msgpack.encode(answer)
            sock.sendall(ANSWER.pack(len(told)) + told)


def _log(recent: int, *, kinds: bool) -> CollectiveLog:
    log = read(recent, kinds=kinds)
    with contextlib.suppress(Exception):  # then it is of the collectives alone
        return log if kinds else _with_paces(log)
    return log


def forget() -> None:
    """A new attempt begins in this process, and with it the numbers of collectives. Never raises.
    Entries have times, too, but a clock may be set between two of them."""
    _steps.clear()
    with contextlib.suppress(Exception):
        _begun[0] = max((entry.record_id + 1 for entry in _entries_of(_dump())), default=0)


def read(recent: int, *, kinds: bool) -> CollectiveLog:
    """What the recorder of this process holds: so many of the newest of each group. Never
    raises."""
    try:
        dump = _dump()
        if dump is None:
            return CollectiveLog(why="no process group was made with PyTorch")
        newer = [entry for entry in _entries_of(dump) if entry.record_id >= _begun[0]]
        groups = _groups(newer, recent, kinds=kinds)
        return CollectiveLog(groups=tuple(groups), why="" if groups else "no collective was seen")
    except Exception as error:
        return CollectiveLog(why=f"the flight recorder cannot be read: {error}")


def step_ended(number: int) -> None:
    """The thread that trains has done this step. Costs two microseconds, and one for each
    group. Never raises."""
    try:
        _steps.append(_StepEnd(number, time.time_ns() // MICROSECOND_NS, _entered()))
    except Exception:  # another PyTorch: then nothing is known of it
        _steps.clear()


def _entered() -> dict[str, int]:
    """How many collectives of each group this process has entered."""
    world: Any = getattr(sys.modules.get(GROUPS), "_world", None)
    found = {}
    for group, name in itertools.islice(world.pg_names.items(), PACES_MAX) if world else ():
        with contextlib.suppress(RuntimeError):  # its backend does not count
            found[name] = group._get_sequence_number_for_group()
    return found


def _with_paces(log: CollectiveLog) -> CollectiveLog:
    rows, members = list(_steps), _members()
    names = [name for name in (rows[-1].entered if rows else ()) if name in members]
    paces = (CollectivePace(name, members[name], bends(_course(rows, name))) for name in names)
    ends = tuple((row.number, row.at_us) for row in rows[-ENDS_TOLD:])
    return msgspec.structs.replace(log, paces=tuple(paces), steps=ends)


def _course(rows: Sequence[_StepEnd], name: str) -> list[tuple[int, int]]:
    """Of one group, since it was made."""
    return [(row.number, row.entered[name]) for row in rows if name in row.entered]


def bends(course: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The ends of a course and where it bends, the newest of them: what is left out lies between
    two of them."""
    kept = [
        here
        for before, here, after in zip(course, course[1:], course[2:], strict=False)
        if (here[1] - before[1]) * (after[0] - here[0])
        != (after[1] - here[1]) * (here[0] - before[0])
    ]
    whole = (course[0], *kept, course[-1]) if len(course) > 1 else tuple(course)
    return whole[-BENDS_MAX:]


def _dump() -> Callable[[], bytes] | None:
    bindings: Any = sys.modules.get(BINDINGS)
    known = (getattr(bindings, name, None) for name in DUMPS)
    return next((dump for dump in known if dump is not None), None)


def _entries_of(dump: Callable[[], bytes] | None) -> list[_Entry]:
    return _trace.decode(dump()).entries if dump is not None else []


def _groups(entries: list[_Entry], recent: int, *, kinds: bool) -> Iterator[GroupLog]:
    """By group, the most used first."""
    found: dict[tuple[str, str], list[_Entry]] = {}
    for entry in entries:
        if not entry.is_p2p and entry.collective_seq_id:
            found.setdefault(entry.process_group, []).append(entry)
    members = _members()
    busiest = sorted(found, key=lambda group: -len(found[group]))[:GROUPS_MAX]
    for name, description in busiest:
        kept = _newest(found[name, description], min(recent, RECENT_MAX))
        yield GroupLog(
            name=name,
            description=description,
            members=members.get(name, ()),
            recent=tuple(_collective(entry, kind=kinds) for entry in kept),
        )


def _newest(entries: list[_Entry], count: int) -> list[_Entry]:
    """By number; the ring is not in order, and a coalesced collective is several entries."""
    ordered = {entry.collective_seq_id: entry for entry in entries}
    return sorted(ordered.values(), key=attrgetter("collective_seq_id"))[-count:]


def _collective(entry: _Entry, *, kind: bool) -> Collective:
    at_us = entry.time_created_ns // MICROSECOND_NS
    shown = _kind(entry) if kind else ""
    return Collective(entry.collective_seq_id, at_us, not entry.retired, shown)


def _kind(entry: _Entry) -> str:
    name = entry.profiling_name.rpartition(":")[2]
    if not entry.input_sizes or name == "scatter":  # of which only one rank has an input
        return name
    dtype = entry.input_dtypes[0].lower() if entry.input_dtypes else ""
    more = f" and {len(entry.input_sizes) - 1} more" if len(entry.input_sizes) > 1 else ""
    return f"{name} {dtype}{entry.input_sizes[0]}{more}"


def _members() -> dict[str, RankRuns]:
    """The ranks of each group, by its name. The recorder itself only knows those of one."""
    world: Any = getattr(sys.modules.get(GROUPS), "_world", None)
    if world is None:
        return {}
    names, ranks = dict(world.pg_names), dict(world.pg_group_ranks)
    return {names[group]: in_runs(known) for group, known in ranks.items() if group in names}
