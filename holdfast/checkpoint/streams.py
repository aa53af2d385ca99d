"""Copies that go on while training does: from a GPU, over a stream of their own, to pinned memory.

What only an optimizer changes (parameters, its own state) is copied beside the next forward and
backward pass; the optimizer's next step is queued behind these copies, so nobody waits but the GPU,
and only if they are not over by then. What a forward pass may change (buffers, random numbers) is
copied in the order of the training stream, before that pass. The arena's memory is registered with
the driver once, because a copy to pageable memory is no asynchronous one.
"""

import logging
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

logger = logging.getLogger(__name__)


class Later(Protocol):
    """Who carries out copies that need not be over when they are asked for."""

    def begin(self, memory: memoryview) -> None:
        """Copies into this memory follow; the sources are as all work queued so far leaves them."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, *, stable: bool) -> None:
        """Copy these bytes. A `stable` source does not change before `guard` is called."""

    def then(self, work: Callable[[], None]) -> None:
        """Do this once everything asked for so far is copied."""

    def guard(self) -> None:
        """From here on sources may change: what has not been copied comes first."""

    def settle(self) -> None:
        """Return when everything is copied and what was to be done then is done."""


class SideStream:
    """`Later` on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._early = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._pinned: dict[tuple[int, int], memoryview] = {}  # held, or it would be unmapped
        self._then: list[Callable[[], None]] = []

    def begin(self, memory: memoryview) -> None:
        """See `Later`."""
        self._pin(memory)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def copy(self, target: torch.Tensor, source: torch.Tensor, *, stable: bool) -> None:
        """See `Later`."""
        if not stable or not source.is_cuda:
            target.copy_(source, non_blocking=True)
            return
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        source.record_stream(self._stream)  # its memory is not given away before

    def then(self, work: Callable[[], None]) -> None:
        """See `Later`."""
        self._early.record(torch.cuda.current_stream(self._device))
        self._then.append(work)

    def guard(self) -> None:
        """See `Later`."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def settle(self) -> None:
        """See `Later`."""
        if not self._then:
            return
        self._early.synchronize()
        self._stream.synchronize()
        done, self._then = self._then, []
        for work in done:
            work()

    def _pin(self, memory: memoryview) -> None:
        at = np.frombuffer(memory, dtype=np.uint8).ctypes.data
        if (at, len(memory)) in self._pinned:
            return
        self._pinned[at, len(memory)] = memory
        result = torch.cuda.cudart().cudaHostRegister(at, len(memory), 0)  # type: ignore[no-untyped-call]
        if int(result) != 0:
            logger.warning(
                "%d MiB for snapshots could not be pinned (CUDA error %d): copies stop the GPU",
                *(len(memory) >> 20, int(result)),
            )


def later_for(device: torch.device) -> Later | None:
    """A side stream for a GPU; None on the CPU, where a copy is one from memory to memory."""
    return SideStream(device) if device.type == "cuda" else None
