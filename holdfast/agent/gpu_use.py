"""Whether the GPU of a worker has work, by what the watch over the machine reads anyhow.

A main thread that waits for a long kernel stands still and may use no processor, so nothing else
tells that it works. What was read before the worker stood still says nothing of that: the watch is
asked when a look begins, and heard when it ends. Only where it is plain which GPU is whose.
"""

from collections.abc import Callable, Mapping, Sequence

from holdfast.agent.health.watch import HealthWatch
from holdfast.devices import DEVICES
from holdfast.messages import TakeEntryTimes, TakeStacks

UTILIZATION = "gpu-utilization"
EACH = "gpu-lost"  # what is told of each GPU at each look, in the order of their numbers
BUSY_PERCENT = 90.0  # of the time; a single kernel that runs all the while is there for all of it
VISIBLE = DEVICES["cuda"].visible[0]

GpuBusy = Callable[[int], bool]


def during(
    order: TakeStacks | TakeEntryTimes,
    health: HealthWatch,
    environ: Mapping[str, str],
    workers: int,
) -> GpuBusy:
    """As `watched` for an order that has workers looked at more than once; for others, of which
    some come every few seconds, nothing is read, and what they answer does not rest on it."""
    if isinstance(order, TakeStacks) and order.looks > 1:
        return watched(health, environ, workers)
    return lambda _local_rank: False


def watched(health: HealthWatch, environ: Mapping[str, str], workers: int) -> GpuBusy:
    """Have the GPUs read now; what is returned says later of a local rank whether its own, or one
    of its own, was busy. `environ` is that of the workers, of whom there are so many."""
    heard = health.have_read()

    def busy(local_rank: int) -> bool:
        used = {one.device: one.value for one in heard() if one.kind == UTILIZATION}
        known = [one.device for one in health.readings if one.kind == EACH]
        own = gpus_of(local_rank, workers, known, environ)
        return any(used.get(gpu, 0.0) >= BUSY_PERCENT for gpu in own)

    return busy


def gpus_of(
    local_rank: int, workers: int, known: Sequence[str], environ: Mapping[str, str]
) -> Sequence[str]:
    """Those of this worker: all that are visible if it is the only one, else one for each; none
    where that cannot be told."""
    visible = list(known)
    if (chosen := environ.get(VISIBLE)) is not None:
        numbers = [one.strip() for one in chosen.split(",")]
        if not all(one.isdecimal() and int(one) < len(known) for one in numbers):
            return ()
        visible = [known[int(one)] for one in numbers]
    if workers == 1:
        return visible
    return visible[local_rank : local_rank + 1] if workers == len(visible) else ()
