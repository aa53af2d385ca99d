"""How long a rank computes in its stages of a pipeline: forward, backward, loss.

A schedule waits for what comes from other stages outside of these calls, so the time in them is the
stage's own, also where it waits most of the step. On a GPU events of its stream are taken, which
are read when they have happened and are not waited for.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

CALLS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")
PENDING_MAX = 4096  # pairs of events that have not happened


class StageWork:
    """Of the stages of one rank."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._sum_s = 0.0
        self._pending: deque[tuple[Any, Any]] = deque(maxlen=PENDING_MAX)

    def watch(self, stage: Any) -> None:
        """Of this `PipelineStage`, too."""
        for name in CALLS:
            setattr(stage, name, self.timed(getattr(stage, name)))

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same, and it counts."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            begun = self._now()
            try:
                return call(*args, **kwargs)
            finally:
                self._count(begun, self._now())

        return counted

    def seconds(self) -> float:
        """So far; of what a GPU has yet to do nothing."""
        while self._pending and self._pending[0][1].query():
            begun, ended = self._pending.popleft()
            self._sum_s += begun.elapsed_time(ended) / 1000
        return self._sum_s

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.monotonic()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _count(self, begun: Any, ended: Any) -> None:
        if self._on_gpu:
            self._pending.append((begun, ended))
        else:
            self._sum_s += ended - begun
