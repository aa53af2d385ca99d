"""What the workers of this node do at this moment: their Python stacks, by py-spy.

py-spy reads the memory of a process from outside, so it does not matter whether the process is
stuck in a collective, holds the GIL or was stopped by a signal. It is paused for some milliseconds
while it is read; one that is stopped already is read as it is. Where that fails (no program for
this machine, a Python that it does not know, a container that may not trace) the worker is asked
itself; one that holds the GIL does not answer, and a handler in C writes its stacks. Where nothing
helps, as with one that was stopped, it is said why nothing could be read.

A worker of which no steps are seen, and which only waits for processes that it has started (a
shell, torch.multiprocessing.spawn, torchrun), stands where one of these stands: one that does not
wait for other ranks before one that does, because that is who the others wait for.
"""

import asyncio
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple, cast

import msgspec
import psutil

from holdfast.agent.activity import activity, usage_of
from holdfast.agent.waits import CHILDREN, ENTRIES, joined_waits, waits_of
from holdfast.diagnosis.hang import SeenRank
from holdfast.events import in_rows
from holdfast.stacks import (
    MAIN,
    MAX_THREADS,
    Activity,
    StackGroup,
    ThreadStack,
    joined,
    shortened,
)

ONE_S = 5.0  # for one process
NATIVE_S = 10.0  # with frames of C, at most: a restart waits no longer than its grace
NATIVE_FRAMES = 32
STANDS = (psutil.STATUS_STOPPED, psutil.STATUS_DISK_SLEEP)
WHOLE = b"\n]\n"  # ends what py-spy prints
CHUNK_BYTES = 1 << 16
AT_ONCE = 4  # programs that read
MAX_CHILDREN = 8  # processes of a worker that are read besides it, as of its data loader
BELOW_S = 2.0  # for all of these after several looks, which an answer waits for
BELOW_GROUPS = 4  # groups of workers of which one is read with its processes then


WAITS_BELOW = {
    ("join", "torch/multiprocessing/spawn.py"),
    ("_invoke_run", "torch/distributed/elastic/agent/server/api.py"),
    ("poll", "multiprocessing/popen_fork.py"), ("wait", "multiprocessing/popen_fork.py"),
    ("wait", "subprocess.py"), ("_communicate", "subprocess.py"),
}  # fmt: skip
"""Functions in which a worker waits for processes that it has started."""
WAIT_FRAMES = 4  # the innermost, among which these are
SERVES = ("torch/utils/data/_utils/", "multiprocessing/resource_tracker.py")


class _Frame(msgspec.Struct):
    name: str
    short_filename: str | None
    filename: str
    line: int


class _Thread(msgspec.Struct):
    pid: int
    thread_name: str | None
    active: bool
    owns_gil: bool
    frames: list[_Frame]
    os_thread_id: int | None = None


_threads = msgspec.json.Decoder(list[_Thread])


Threads = Awaitable[tuple[ThreadStack, ...]]


class LookedAt(NamedTuple):
    """A worker that is to be looked at. `own` asks itself for its stacks, if it can be asked;
    `dumped` has a handler of it or of a process that it has forked write them; `gpu_busy` says
    after some looks whether its GPU had work meanwhile. `waits`: it is to be known what all of its
    threads wait for, because no steps of it are seen."""

    rank: int
    pid: int
    own: Callable[[], Threads] | None = None
    dumped: Callable[[int], Threads] | None = None
    gpu_busy: Callable[[], bool] = lambda: False
    waits: bool = False


class DumpError(Exception):
    """The stacks of a process could not be read; the message says why."""


async def stacks_of(
    workers: Iterable[LookedAt], looks: int = 1, apart_s: float = 0.0
) -> tuple[StackGroup, ...]:
    """Of these workers, with the processes below them; of more than one look what they did
    meanwhile, and the processes below one worker of each group that does not move. Never raises;
    takes a few seconds at most."""
    turns, known = asyncio.Semaphore(AT_ONCE), list(workers)
    found = joined(await asyncio.gather(*(_worker(one, turns, looks, apart_s) for one in known)))
    if looks == 1:
        return found
    by_rank = {one.rank: one for one in known}
    stands = [one for one in found if one.threads and one.activity is not Activity.MOVES]
    reads = (_below(by_rank[one.ranks[0][0]], turns, BELOW_S) for one in stands[:BELOW_GROUPS])
    below = dict(zip((one.ranks for one in stands), await asyncio.gather(*reads), strict=False))
    return tuple(msgspec.structs.replace(one, below=below.get(one.ranks, ())) for one in found)


async def _worker(
    worker: LookedAt, turns: asyncio.Semaphore, looks: int, apart_s: float
) -> StackGroup:
    ranks = in_rows([worker.rank])
    try:
        process = psutil.Process(worker.pid)
        if looks == 1:
            found = await _with_children(process, worker, turns)
            return msgspec.structs.replace(found, ranks=ranks)
        waits = await asyncio.to_thread(waits_of, worker.pid) if worker.waits else {}
        before, since = await asyncio.to_thread(usage_of, process), time.monotonic()
        seen = [await _look(process, worker, turns)]
        for _ in range(looks - 1):
            await asyncio.sleep(apart_s)
            seen.append(await _look_again(process, worker, turns, seen[-1]))
        took_s, after = time.monotonic() - since, await asyncio.to_thread(usage_of, process)
    except psutil.Error:
        return StackGroup(ranks=ranks, why="the process has ended")
    did = activity(seen, before, after, took_s)
    told = msgspec.structs.replace(
        seen[-1], ranks=ranks, activity=did, waits=joined_waits(waits, seen[0].threads)
    )
    by_kernel = not told.threads and told.sleeps_in.startswith(CHILDREN)
    if worker.waits and (by_kernel or _waits_below(told.frames)):
        told = standing_below(told, await _below(worker, turns, BELOW_S))
    return msgspec.structs.replace(told, gpu_busy=worker.gpu_busy())


async def _look(process: psutil.Process, worker: LookedAt, turns: asyncio.Semaphore) -> StackGroup:
    """One worker. Raises `psutil.Error`."""
    state = process.status()
    sleeps_in = _sleeps_in(process.pid) if state == psutil.STATUS_SLEEPING else ""
    try:  # that stops it for a moment, after which it goes on to wait once it gets a processor
        threads = await _process(process.pid, turns)
    except DumpError as error:
        threads = [*await worker.own()] if worker.own is not None else []
        threads = threads or await _dumped(process.pid, worker)
        if not threads:
            return StackGroup(ranks=(), state=state, why=str(error))
    found = tuple(threads[:MAX_THREADS])
    return StackGroup(ranks=(), state=state, threads=found, sleeps_in=sleeps_in)


def _sleeps_in(pid: int) -> str:
    """What its main thread waits in (proc_pid_wchan(5)); empty where the kernel does not say."""
    try:
        place = Path(f"/proc/{pid}/wchan").read_text().strip("0")
    except OSError:
        return ""
    return "" if place in ENTRIES else place


async def _look_again(
    process: psutil.Process, worker: LookedAt, turns: asyncio.Semaphore, last: StackGroup
) -> StackGroup:
    """What could not be read is not tried again: that takes seconds."""
    if last.threads:
        return await _look(process, worker, turns)
    return msgspec.structs.replace(last, state=process.status())


async def _with_children(
    process: psutil.Process, worker: LookedAt, turns: asyncio.Semaphore
) -> StackGroup:
    """One worker with the processes below it. Raises `psutil.Error`."""
    found = await _look(process, worker, turns)
    if not found.threads:
        return found
    threads = (*found.threads, *await _below(worker, turns))
    return msgspec.structs.replace(found, threads=threads[:MAX_THREADS])


async def _below(
    worker: LookedAt, turns: asyncio.Semaphore, wait_s: float | None = None
) -> tuple[ThreadStack, ...]:
    """The threads of the processes below a worker, as far as they are read within this time."""
    children = (await asyncio.to_thread(_children, worker.pid))[:MAX_CHILDREN]
    reads = [asyncio.ensure_future(_child(child, worker, turns)) for child in children]
    if not reads:
        return ()
    try:
        done, _ = await asyncio.wait(reads, timeout=wait_s)
        read = [one.result() for one in reads if one in done and one.exception() is None]
    finally:
        for one in reads:
            one.cancel()
    return tuple(thread for threads in read for thread in threads)[:MAX_THREADS]


def _waits_below(frames: tuple[str, ...]) -> bool:
    named = (frame.partition(" (")[::2] for frame in frames[-WAIT_FRAMES:])
    return any(
        (name.rpartition(".")[2], place.partition(":")[0]) in WAITS_BELOW for name, place in named
    )


def standing_below(group: StackGroup, below: Sequence[ThreadStack]) -> StackGroup:
    """The same, with the main thread of one of its processes before its own threads."""
    mains = [one for one in below if one.number == one.pid or one.name == MAIN]
    ranks = [one for one in mains if not _waits_below(one.frames) and not _serves(one.frames)]
    ranks.sort(key=lambda one: SeenRank(0, StackGroup(ranks=(), threads=(one,))).waits)
    threads = (*ranks[:1], *group.threads, *(one for one in below if one not in ranks[:1]))
    sleeps_in = "" if ranks else group.sleeps_in  # in which the worker itself waits
    return msgspec.structs.replace(group, threads=threads[:MAX_THREADS], sleeps_in=sleeps_in)


def _serves(frames: tuple[str, ...]) -> bool:
    return any(frame.partition(" (")[2].startswith(SERVES) for frame in frames)


def _children(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


async def _child(pid: int, worker: LookedAt, turns: asyncio.Semaphore) -> list[ThreadStack]:
    """Empty where it is no Python program, or just ends."""
    try:
        return await _process(pid, turns)
    except DumpError:
        return await _dumped(pid, worker)


async def _dumped(pid: int, worker: LookedAt) -> list[ThreadStack]:
    return [*await worker.dumped(pid)] if worker.dumped is not None else []


async def _process(pid: int, turns: asyncio.Semaphore) -> list[ThreadStack]:
    """Its threads, the main one first. Raises `DumpError`."""
    async with turns:
        try:
            return _read(await _spy(pid))
        except DumpError:
            return _read(await _spy(pid, "--nonblocking"))


async def native_stack(pid: int, within_s: float = NATIVE_S) -> tuple[str, ...]:
    """Where the main thread of a process stands, with frames of C, the innermost first; empty where
    py-spy cannot tell, and of one that a signal has stopped or that waits in the kernel without
    end: why it stands still is known, and py-spy would wait for it. Reading PyTorch's symbols stops
    the process for a second or two."""
    try:
        main, *_ = await native_threads(pid, within_s)
    except DumpError:
        return ()
    return main.frames[: -NATIVE_FRAMES - 1 : -1]


async def native_threads(pid: int, within_s: float) -> list[ThreadStack]:
    """Likewise, all threads that run Python, the outermost frame first. Raises `DumpError`."""
    if within_s <= 0:
        raise DumpError("there was no time left for it")
    try:
        if (state := psutil.Process(pid).status()) in STANDS:
            raise DumpError(f"py-spy would wait for it, because it is in state {state}")
        return _read(await asyncio.to_thread(_printed, _dump(pid, "--native"), within_s))
    except psutil.Error as error:
        raise DumpError("the process has ended") from error
    except OSError as error:
        raise DumpError(f"py-spy cannot be started: {error.strerror}") from error


def _printed(command: list[str], within_s: float) -> bytes:
    """What py-spy prints, once that is whole: the process goes on by then, while py-spy gives back
    the memory of all symbols for a quarter of its time. If it takes longer it is ended, and lets
    go. Raises `DumpError` with what it says of a failure."""
    with tempfile.TemporaryFile() as said:
        out = _printed_by(command, within_s, said)
        said.seek(0)
        words = said.read(CHUNK_BYTES).decode(errors="replace")
    if out.endswith(WHOLE):
        return out
    late = f"py-spy did not answer within {within_s:.1f} s"
    raise DumpError(_reason(words) if words and not out else late)


def _printed_by(command: list[str], within_s: float, said: IO[bytes]) -> bytes:
    end, out, nothing = time.monotonic() + within_s, b"", subprocess.DEVNULL
    ran = subprocess.Popen(command, stdin=nothing, stdout=subprocess.PIPE, stderr=said)
    with cast(BinaryIO, ran.stdout) as pipe:
        ready = select.poll()
        ready.register(pipe, select.POLLIN)
        while not out.endswith(WHOLE) and ready.poll(max(0.0, end - time.monotonic()) * 1000):
            if not (read := os.read(pipe.fileno(), CHUNK_BYTES)):
                break
            out += read
    ran.kill()
    threading.Thread(target=ran.wait, daemon=True).start()
    return out


def _dump(pid: int, *options: str) -> list[str]:
    return [_program(), "dump", "--json", "--pid", str(pid), *options]


async def _spy(pid: int, *options: str) -> bytes:
    """In a thread: the agent reaps its children itself, so nobody can wait for their status."""
    command, nothing = _dump(pid, *options), subprocess.DEVNULL
    try:
        ran = await asyncio.to_thread(
            subprocess.run, command, stdin=nothing, capture_output=True, timeout=ONE_S
        )
    except OSError as error:
        raise DumpError(f"py-spy cannot be started: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise DumpError(f"py-spy did not answer within {ONE_S:g} s") from error
    if not ran.stdout:
        raise DumpError(_reason(ran.stderr.decode(errors="replace")))
    return ran.stdout


def _program() -> str:
    """Beside the interpreter, where pip puts it, or in PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or "py-spy"


def _reason(said: str) -> str:
    """What py-spy said, in one line: its error, and the innermost cause."""
    told = [line.strip() for line in said.split("Stack backtrace:")[0].splitlines()]
    told = [line for line in told if line and line != "Caused by:"]
    if not told:
        return "py-spy failed without output"
    last = told[-1].partition(": ")[2] if told[-1][:1].isdigit() else told[-1]
    return f"py-spy: {told[0].removeprefix('Error: ')}" + (f": {last}" if last != told[0] else "")


def _read(out: bytes) -> list[ThreadStack]:
    try:
        found = _threads.decode(out)
    except msgspec.MsgspecError as error:
        raise DumpError(f"unexpected output of py-spy: {error}") from error
    threads = [_thread(thread) for thread in found if thread.frames or thread.thread_name == MAIN]
    if not any(thread.frames for thread in threads):
        raise DumpError("the process runs no Python code")
    return sorted(threads, key=lambda thread: thread.name != MAIN)


def _thread(found: _Thread) -> ThreadStack:
    return ThreadStack(
        name=found.thread_name or "",
        pid=found.pid,
        frames=shortened([_place(frame) for frame in reversed(found.frames)]),
        active=found.active,
        holds_gil=found.owns_gil,
        number=found.os_thread_id or 0,
    )


def _place(frame: _Frame) -> str:
    file = frame.short_filename or frame.filename
    return f"{frame.name} ({file}:{frame.line})" if frame.line else f"{frame.name} ({file})"
