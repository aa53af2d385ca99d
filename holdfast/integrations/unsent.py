"""Models of DDP that are made while a snapshot waits: rank 0 need not send them to all.

DDP sends every parameter when it is made, so that all ranks begin alike, and the snapshot replaces
all of them a moment later. What the snapshot does not have (buffers that are not persistent) is
sent afterwards; everything is, where nothing was restored after all, at the latest before the
model is used.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from holdfast.train.parallel import spread


class Unsent:
    """Those of one training."""

    def __init__(self) -> None:
        self._models: list[DistributedDataParallel] = []
        self._guards: list[RemovableHandle] = []

    @contextmanager
    def making(self) -> Iterator[None]:
        """Models that are made within are not sent."""
        plain = DistributedDataParallel.__init__

        @wraps(plain)
        def __init__(model: DistributedDataParallel, *given: Any, **named: Any) -> None:  # noqa: N807
            plain(model, *given, **{"init_sync": False, **named})
            self.take(model)

        DistributedDataParallel.__init__ = __init__  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            DistributedDataParallel.__init__ = plain  # type: ignore[method-assign]

    def take(self, model: DistributedDataParallel) -> None:
        """This one was not sent."""
        self._models.append(model)
        settle = partial(self.settle, restored=False)
        self._guards.append(model.register_forward_pre_hook(lambda *_: settle()))

    def settle(self, *, restored: bool) -> None:
        """All ranks have restored the same snapshot, or none."""
        for guard in self._guards:
            guard.remove()
        self._guards.clear()
        models, self._models = self._models, []
        for model in models:
            if not restored:
                spread(model)
                continue
            for buffer in _left_out(model.module):
                dist.broadcast(buffer, src=0, group=model.process_group)


def _left_out(model: nn.Module) -> list[Tensor]:
    """Buffers that no snapshot has."""
    kept = model.state_dict(keep_vars=True)
    return [buffer for name, buffer in model.named_buffers() if name not in kept]
