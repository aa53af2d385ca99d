"""Data-parallel training whose sums do not depend on when the worker started.

DDP puts all gradients into one bucket for its first step and then regroups them by the order in
which they became ready. With three or more ranks the place of a gradient in a bucket decides the
order in which its ranks are added, so the step after a restart would differ in the last bit from
the same step of an undisturbed run. Here the regrouping is done before the first step, in reverse
order of definition (about the order in which gradients appear), so the buckets never change.
"""

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from holdfast.train import huge_pages

LEAST_BYTES = 16 << 20  # of a model: less is found ahead (`memory_ahead`), and to look takes longer


class SteadyBuckets(DistributedDataParallel):
    """DDP with the same gradient buckets from the first step to the last."""

    def __init__(self, module: torch.nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        self.settle()

    def settle(self) -> None:
        """Regroup now. Does nothing with find_unused_parameters, where DDP never does."""
        self.reducer._push_all_rebuilt_params()
        self.reducer._rebuild_buckets()

    def _build_params_for_reducer(self) -> tuple[list[torch.nn.Parameter], list[bool]]:
        parameters, sparse = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        return parameters[::-1], sparse[::-1]


def data_parallel(
    model: torch.nn.Module, device: torch.device, *, settled: bool, options: dict[str, Any]
) -> SteadyBuckets:
    """`model` wrapped so that gradients are averaged over all ranks.

    `settled` skips sending the parameters of rank 0 to all, for ranks that will load the same
    snapshot anyway. Gradients live in the buckets unless `options` say otherwise: a second copy of
    them would have to be made and touched in the first step after each restart.
    """
    options = {"gradient_as_bucket_view": True, **options}
    device_ids = [device.index] if device.type != "cpu" else None
    small = sum(one.nbytes for one in model.parameters()) < LEAST_BYTES
    with nullcontext() if small else huge_pages.for_new_memory(device):  # of the buckets
        return SteadyBuckets(model, device_ids=device_ids, init_sync=not settled, **options)


def spread(model: torch.nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor, src=0)
