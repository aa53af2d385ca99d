"""Takes a profile of this worker's next steps when its agent wants one, and leaves the trace.

Where a step ends (`step_ended`) one number of the progress page is looked at; that is all that
happens in a step which nobody has asked about. When it has changed, PyTorch's profiler (Kineto) is
started on the spot: one step to warm up, because the first start loads libraries and its first
events are slow, then the steps that were asked for. The trace is written by Kineto itself, without
a pass through Python, and compressed and read elsewhere. Both, the start and the writing, are a
section named `profile`, so that they are not taken for a hang.

The training is never to suffer: whatever goes wrong ends the profile and is told as its reason. A
script that has a `torch.profiler` of its own is left alone, because there can be one at a time; if
it begins one meanwhile, ours gives way. And no recording is without bounds: each operator takes
memory, so a thread of ours looks at the time and the memory, and ends what goes on for too long
also where no step ends any more; a section of the script ends it at once. A step takes memory of
its own and gives it back, a CPU's activations for instance: how much it is at most is seen in the
step that warms up, of which nothing is recorded.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import resource
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from holdfast.page import Page, WorkerPhase
from holdfast.profile_slot import ProfileNotes, ProfileOrder, ProfileSlot, ProfileStage

SECTION = "profile"
OWN = "the script has a torch.profiler of its own; only one can run at a time"
WAITS_PER_STEP = 4  # for batches, of which more are not told
LOOK_S = 0.5
WARM_LOOK_S = 0.01  # in which no step can take half of what follows
GROWTH_BYTES = 256 << 20  # above the step that warms up; PyTorch takes 7 times that to end it

Section = Callable[[], AbstractContextManager[None]]


_ours: weakref.WeakSet[Any] = weakref.WeakSet()  # profiles; PyTorch ties each into a cycle


class _Recording:
    """One profile under way."""

    def __init__(self, number: int, order: ProfileOrder, give_way: Callable[[], None]) -> None:
        """`give_way` is called before the script begins a profiler of its own."""
        profiler: Any = importlib.import_module("torch.profiler")
        self.number, self.order = number, order
        self.ends_ns: list[int] = []  # of steps, since the warm-up
        self.waits_ns: list[tuple[int, int]] = []
        self.first_step = 0
        self.stalled_s = 0.0
        steps = profiler.schedule(wait=0, warmup=1, active=order.steps, repeat=1)
        self._profile = profiler.profile(schedule=steps, on_trace_ready=self._save)
        _ours.add(self._profile)
        self._profile.start()
        try:
            self._unguard = _guard(give_way)
        except Exception:
            self._profile.on_trace_ready = None
            self._profile.stop()
            raise

    def step(self, step: int) -> bool:
        """One more has ended; whether it was the last."""
        if not self.ends_ns:
            self.first_step = step + 1
        elif not _records():  # PyTorch would crash in what follows
            raise RuntimeError("another tool stopped the profiler")
        self.ends_ns.append(time.time_ns())
        self._profile.step()
        return len(self.ends_ns) > self.order.steps

    def _save(self, profile: Any) -> None:
        profile.profiler.kineto_results.save(self.order.path)  # which only logs that it cannot
        if not os.path.exists(self.order.path):
            raise OSError("Kineto wrote no trace (is the disk full?)")

    def end(self) -> None:
        """Nothing is recorded any more. Raises whatever PyTorch does."""
        self._unguard()
        self._profile.stop()

    def abandon(self) -> None:
        """Likewise, and nothing is left of it."""
        self._unguard()
        self._profile.on_trace_ready = None
        with contextlib.suppress(Exception):
            self._profile.stop()
        for path in (self.order.path, f"{self.order.path}.tmp"):  # Kineto writes that one first
            with contextlib.suppress(OSError):
                os.unlink(path)

    def notes(self) -> ProfileNotes:
        """What the agent is told."""
        most = WAITS_PER_STEP * self.order.steps
        return ProfileNotes(
            first_step=self.first_step,
            ends_ns=tuple(self.ends_ns),
            waits_ns=tuple(self.waits_ns[-most:]),
            stalled_s=self.stalled_s,
            cuda=_uses_cuda(),
        )


class StepProfiler:
    """What one worker does when it is asked. `section` says on its page what it does meanwhile."""

    def __init__(self, slot: ProfileSlot, section: Section) -> None:
        self._slot, self._section = slot, section
        self._pid = os.getpid()
        self._heard = slot.wanted  # the newest wish that was looked at
        self._due: ProfileOrder | None = None  # begins after a step that is still to come
        self._recording: _Recording | None = None
        self._busy = False  # at the end of a step: nobody may end it in between
        self._too_much: tuple[int, str] | None = None  # number of a wish, and why it is given up

    def step_ended(self, step: int) -> None:
        """This step, counted from 1, has ended. Never raises."""
        if self._heard == self._slot.wanted and self._due is None and self._recording is None:
            return
        if os.getpid() != self._pid:
            return
        self._busy = True
        try:
            self._end_if_too_much()
            self._look(step)
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._busy = False

    def waited(self, seconds: float) -> None:
        """The loop has just waited so long for a batch."""
        if self._recording is not None and self._recording.ends_ns:
            length = int(seconds * 1e9)
            self._recording.waits_ns.append((time.time_ns() - length, length))

    def give_up(self, why: str) -> None:
        """Nothing of what is wanted will come, for this reason; does nothing while nothing is."""
        if self._recording is None and self._due is None:
            return
        recording, self._recording, self._due = self._recording, None, None
        if recording is not None:
            recording.abandon()
        self._slot.tell(self._heard, ProfileNotes(why=why))

    def interrupt(self, why: str) -> None:
        """Likewise, if one is being recorded and this is not the end of a step, which has a section
        of its own; what begins later still comes."""
        if self._recording is not None and not self._busy:
            self.give_up(why)

    def _look(self, step: int) -> None:
        wanted = self._slot.wanted
        if wanted != self._heard:
            self.give_up("it was cancelled")
            self._heard = wanted
            self._due = self._slot.order() if wanted else None
        if self._recording is not None:
            self._go_on(self._recording, step)
        elif self._due is not None and step >= self._due.after:
            order, self._due = self._due, None
            self._begin(wanted, order)

    def _begin(self, number: int, order: ProfileOrder) -> None:
        self._slot.reach(ProfileStage.PREPARING)
        began = time.monotonic()
        with self._section():
            if why := _taken_elsewhere():
                self._slot.tell(number, ProfileNotes(why=why))
                return
            self._recording = _Recording(number, order, self._give_way)
        self._recording.stalled_s = time.monotonic() - began
        main = threading.current_thread() is threading.main_thread()
        if main:
            _interruptible.add(self)
        threading.Thread(target=self._limit, args=(number, order, main), daemon=True).start()

    def _limit(self, number: int, order: ProfileOrder, interrupt: bool) -> None:
        """End what goes on for too long or takes too much memory, also where no step ends any more:
        in an evaluation, after the training. Python's main thread can be made to call something;
        where another thread trains, it hears of it at the end of its step."""
        end, usual = time.monotonic() + order.within_s, _own_bytes()
        while (doing := self._recording) is not None and doing.number == number:
            warms_up, own = not doing.ends_ns, _own_bytes()
            if warms_up:
                usual = max(usual, own)
            if why := self._excess(doing, end, own - usual):
                self._too_much = (number, why)
                if interrupt:
                    ctypes.pythonapi.Py_AddPendingCall(_end_now, None)
            time.sleep(WARM_LOOK_S if warms_up and not why else LOOK_S)

    def _excess(self, doing: _Recording, end: float, growth: int) -> str:
        if self._slot.wanted != doing.number:
            return "it was cancelled"
        if time.monotonic() >= end:
            return f"its steps did not finish within {doing.order.within_s:g} s"
        if growth > GROWTH_BYTES:
            grew = f"the process grew by more than {GROWTH_BYTES >> 20} MiB of memory"
            return f"{grew} while recording; profile fewer steps"
        return ""

    def interrupted(self) -> None:
        """In the main thread, between two instructions of whatever it does. Never raises."""
        with contextlib.suppress(Exception):
            if not self._busy and os.getpid() == self._pid and not _captures():
                self._end_if_too_much()

    def _end_if_too_much(self) -> None:
        doing, told = self._recording, self._too_much
        if doing is not None and told is not None and told[0] == doing.number:
            self.give_up(told[1])

    def _go_on(self, recording: _Recording, step: int) -> None:
        last = len(recording.ends_ns) == recording.order.steps
        self._slot.reach(ProfileStage.WRITING if last else ProfileStage.RECORDING)
        if not last:
            recording.step(step)
            return
        began = time.monotonic()
        with self._section():
            recording.step(step)
            recording.end()
        self._recording = None
        recording.stalled_s += time.monotonic() - began
        if self._slot.wanted == recording.number:
            self._slot.tell(recording.number, recording.notes())
        else:
            recording.abandon()

    def _give_way(self) -> None:
        self.give_up(OWN)

    def _fail(self, why: str) -> None:
        with contextlib.suppress(Exception):
            self.give_up(why)
            self._slot.tell(self._heard, ProfileNotes(why=why))


def _uses_cuda() -> bool:
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda.is_initialized())


def _own_bytes() -> int:
    """Of memory that is there and that nobody shares: snapshots lie in memory of the agent's."""
    with open("/proc/self/statm", "rb") as file:
        resident, shared = map(int, file.read().split()[1:3])
    return (resident - shared) * resource.getpagesize()


def _captures() -> bool:
    """Whether a CUDA graph is being captured, which the end of a profiler would spoil."""
    cuda: Any = sys.modules.get("torch.cuda")
    return cuda is not None and cuda.is_initialized() and bool(cuda.is_current_stream_capturing())


_interruptible: weakref.WeakSet[StepProfiler] = weakref.WeakSet()


def _interrupted(_: object) -> int:
    for one in list(_interruptible):
        one.interrupted()
    return 0


# what the main thread calls lives as long as the process, as C does not count references
_end_now = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_interrupted)


def _taken_elsewhere() -> str:
    """Why this process cannot be profiled now; empty if it can."""
    torch, profiler = sys.modules.get("torch"), sys.modules.get("torch.profiler")
    if torch is None or profiler is None:
        return "it has not imported torch"
    kind: type = vars(profiler)["_KinetoProfile"]
    if _is_alive(kind):
        gc.collect()  # it may only be waiting for that
        if _is_alive(kind):
            return OWN
    return "the script runs a profiler itself" if _records() else ""


def _records() -> bool:
    """Whether a profiler of PyTorch records in this thread, whoever began it."""
    autograd: Any = sys.modules.get("torch.autograd")
    return autograd is not None and bool(autograd._profiler_enabled())


def _guard(give_way: Callable[[], None]) -> Callable[[], None]:
    """Until what is returned is called: a profiler that somebody else prepares is given way to.

    PyTorch lets a second one begin, ends the first with it, and crashes where that one is to be
    saved; and the first would end the second.
    """
    kind: Any = importlib.import_module("torch.autograd.profiler").profile
    plain = kind._prepare_trace

    def prepare(other: Any) -> Any:
        kind._prepare_trace = plain
        give_way()
        return plain(other)

    def unguard() -> None:
        if kind._prepare_trace is prepare:
            kind._prepare_trace = plain

    kind._prepare_trace = prepare
    return unguard


def _is_alive(kind: type) -> bool:
    """Whether there is one of this kind that is not ours and may still record."""
    found = (one for one in gc.get_objects() if issubclass(type(one), kind) and one not in _ours)
    return any(not _is_over(one) for one in found)


def _is_over(profile: Any) -> bool:
    """Whether it has been stopped: it has what it recorded, and is in no step of a schedule."""
    recorded = getattr(getattr(profile, "profiler", None), "kineto_results", None)
    return recorded is not None and getattr(profile, "step_rec_fn", None) is None


def named_in_trace(name: str) -> AbstractContextManager[Any]:
    """What is done meanwhile has this name in the trace of whatever profiler records. Where none
    does, that costs a look: PyTorch's own takes ten microseconds also then."""
    if not _records():
        return contextlib.nullcontext()
    profiler: Any = importlib.import_module("torch.profiler")
    record: AbstractContextManager[Any] = profiler.record_function(name)
    return record


_profiler: StepProfiler | None = None


def watch(page: Page, section: Section | None = None) -> None:
    """From now on the steps of this process may be profiled."""
    global _profiler
    _profiler = StepProfiler(page.profile, section or (lambda: _section_of(page)))


@contextlib.contextmanager
def _section_of(page: Page) -> Iterator[None]:
    """For a script that says nothing of its phases."""
    page.section(SECTION)
    try:
        yield
    finally:
        page.phase(WorkerPhase.STEP)


def step_ended(step: int) -> None:
    """A step of this process has ended. Never raises; reads a word of memory, if nothing is
    wanted."""
    if _profiler is not None:
        _profiler.step_ended(step)


def waited(seconds: float) -> None:
    """The loop of this process has just waited so long for a batch."""
    if _profiler is not None:
        _profiler.waited(seconds)


def give_up(why: str) -> None:
    """Whatever is wanted of this process will not come, for this reason."""
    if _profiler is not None:
        _profiler.give_up(why)


def interrupt(why: str) -> None:
    """Likewise, if it is being recorded; what begins later still comes."""
    if _profiler is not None:
        _profiler.interrupt(why)
