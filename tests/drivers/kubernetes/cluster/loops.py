"""The loop of a controller: whenever anything has changed, look at everything and act."""

import asyncio
import contextlib
from collections.abc import Callable

from tests.drivers.kubernetes.cluster.refusal import RefusalError
from tests.drivers.kubernetes.cluster.store import Store

LAG_S = 0.005  # between a change and whoever acts on it, as in a real cluster
RETRY_S = 0.1
Step = Callable[[], float | None]


async def reconciling(store: Store, step: Step) -> None:
    """Call `step` after every change, and after as many seconds as it asks for."""
    while True:
        version = store.version
        try:
            wait_s = step()
        except RefusalError:
            wait_s = RETRY_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await store.changed(version)
        await asyncio.sleep(LAG_S)


def soonest(*waits: float | None) -> float | None:
    """The shortest of some waits, None for one that never ends."""
    return min((wait for wait in waits if wait is not None), default=None)
