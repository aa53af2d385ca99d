"""Copies that go on while training does: by a stream of the GPU's own, or by a thread.

What only an optimizer changes (parameters under training, its own state) is copied beside the next
forward and backward pass; the optimizer's next step comes after these copies. On a GPU it is queued
behind them, so nobody waits but the GPU, and only if they are not over by then. On a CPU the
training thread takes its share of what is left by then. What a forward pass may change (buffers,
random numbers) is copied before that pass. The arena's memory is registered with the driver of a
GPU once, because a copy to pageable memory is no asynchronous one.
"""

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

logger = logging.getLogger(__name__)

_PAUSE_S = 0.02  # a change that is being made shows when it is made
_WORTH_BYTES = 64 << 10  # smaller pieces are copied in less time than it takes to hand them over


class Copy(NamedTuple):
    """Bytes to be copied; both are tensors or both are arrays.

    A `stable` source does not change before `BackgroundCopier.guard` is called.
    """

    target: Any
    source: Any
    stable: bool

    def make(self) -> None:
        """Copy them now."""
        if isinstance(self.target, torch.Tensor):
            self.target.copy_(self.source, non_blocking=True)
        else:
            self.target[...] = self.source


class BackgroundCopier(Protocol):
    """Who carries out copies that need not be over when they are asked for."""

    least_bytes: int
    """Payloads below this are better copied at once."""
    prepares: bool
    """Whether `prepare` does anything."""
    blind: bool
    """Whether a change that `guard` did not announce cannot be seen in what was copied."""

    def prepare(self, memory: memoryview) -> None:
        """Do ahead, in any thread, what `start` would do when it first copies into this memory."""

    def start(self, memory: memoryview, copies: Iterable[Copy]) -> None:
        """Copy into this memory; the sources are as all work queued so far leaves them."""

    def then(self, work: Callable[[], None]) -> None:
        """Do this, in any thread, once all that was asked for so far is copied; not after `guard`,
        nor if nobody is there to notice."""

    def guard(self) -> bool:
        """From here on sources may change: what has not been copied comes first. Returns whether
        that is over already, so that `settle` would not wait."""

    def settle(self) -> None:
        """Return when everything is copied."""

    @property
    def taken_s(self) -> float:
        """Seconds of this machine's cores that all copies have taken from training so far, besides
        the time that this thread was kept."""


class SideStream:
    """`BackgroundCopier` on a GPU."""

    least_bytes = 0
    prepares = True
    blind = True
    taken_s = 0.0

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._early = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._pinned: dict[tuple[int, int], memoryview] = {}  # held, or it would be unmapped
        self._aside: list[Copy] = []  # held, or their memory would be given away

    def prepare(self, memory: memoryview) -> None:
        """See `BackgroundCopier`."""
        with torch.cuda.device(self._device):
            self._pin(memory)

    def start(self, memory: memoryview, copies: Iterable[Copy]) -> None:
        """See `BackgroundCopier`."""
        self._pin(memory)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        aside: list[Copy] = []
        for copy in copies:
            if copy.stable and isinstance(copy.source, torch.Tensor) and copy.source.is_cuda:
                aside.append(copy)
            else:
                copy.make()
        self._early.record(torch.cuda.current_stream(self._device))
        self._aside += aside
        if aside:
            targets, sources, _ = zip(*aside, strict=True)
            with torch.cuda.stream(self._stream):
                torch._foreach_copy_(list(targets), list(sources), non_blocking=True)

    def then(self, work: Callable[[], None]) -> None:
        """See `BackgroundCopier`. Nobody waits for the GPU."""

    def guard(self) -> bool:
        """See `BackgroundCopier`."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return False

    def settle(self) -> None:
        """See `BackgroundCopier`."""
        self._early.synchronize()
        self._stream.synchronize()
        self._aside.clear()

    def _pin(self, memory: memoryview) -> None:
        at = np.frombuffer(memory, dtype=np.uint8).ctypes.data
        if (at, len(memory)) in self._pinned:
            return
        self._pinned[at, len(memory)] = memory
        result = torch.cuda.cudart().cudaHostRegister(at, len(memory), 0)  # type: ignore[no-untyped-call]
        if int(result) != 0:
            logger.warning(
                "%d MiB for snapshots could not be pinned (CUDA error %d): copies block the GPU",
                *(len(memory) >> 20, int(result)),
            )
            self._forget_error()

    def _forget_error(self) -> None:
        """The CUDA runtime keeps the error of a call that failed for whoever asks next. That would
        be the next kernel of training, which would fail for it; so a kernel of ours asks."""
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self._device)


class SideThread:
    """`BackgroundCopier` on a CPU, of arrays only: other tensors are copied at once."""

    least_bytes = 16 << 20
    prepares = False
    blind = False

    def __init__(self, idle_cores: int) -> None:
        """With no idle cores the time of the thread is time that training does not get."""
        self._alone = idle_cores < 1
        self._queue: deque[Copy] = deque()
        self._work = threading.Semaphore(0)
        self._copying = threading.Lock()  # held by the thread while it works
        self._then: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None
        self._failed: Exception | None = None
        self._spent_s = 0.0

    def prepare(self, memory: memoryview) -> None:
        """See `BackgroundCopier`."""

    def start(self, memory: memoryview, copies: Iterable[Copy]) -> None:  # noqa: ARG002
        """See `BackgroundCopier`."""
        for copy in copies:
            if copy.stable and isinstance(copy.target, np.ndarray) and _is_worth(copy.target):
                self._queue.append(copy)
            else:
                copy.make()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="snapshot", daemon=True)
            self._thread.start()
        self._work.release()

    def then(self, work: Callable[[], None]) -> None:
        """See `BackgroundCopier`."""
        self._then = work
        self._work.release()

    def guard(self) -> bool:
        """See `BackgroundCopier`."""
        self._make_all()
        with self._copying:
            self._then = None
            if self._failed is not None:
                raise self._failed
            return True

    def settle(self) -> None:
        """See `BackgroundCopier`."""
        self.guard()

    @property
    def taken_s(self) -> float:
        """See `BackgroundCopier`."""
        return self._spent_s if self._alone else 0.0

    def _run(self) -> None:
        while self._work.acquire():
            with self._copying:
                began = time.thread_time()
                try:
                    self._make_all()
                except Exception as error:  # raised where training waits for the copy
                    self._failed = error
                self._spent_s += time.thread_time() - began
            if self._then is not None:
                time.sleep(_PAUSE_S)
                self._finish()

    def _finish(self) -> None:
        with self._copying:
            if self._then is not None and self._failed is None and not self._queue:
                work, self._then = self._then, None
                work()

    def _make_all(self) -> None:
        while self._queue:
            try:
                copy = self._queue.popleft()
            except IndexError:  # the other thread was quicker
                return
            copy.make()


def _is_worth(array: Any) -> bool:
    return bool(array.nbytes >= _WORTH_BYTES)


def background_copier(device: torch.device, local_world_size: int) -> BackgroundCopier:
    """A side stream for a GPU, a thread on the CPU of a node with this many workers."""
    if device.type == "cuda":
        return SideStream(device)
    busy = torch.get_num_threads() * local_world_size
    return SideThread(idle_cores=len(os.sched_getaffinity(0)) - busy)
