"""How long it takes here and now to read frames of C, for which the product takes NATIVE_S at most.

Those of a process with torch take a processor for a second, which a busy machine has not.
"""

import asyncio
import os
import time

from holdfast.agent.stack_dump import NATIVE_S, native_stack
from tests.patience import PATIENCE_S


def is_soon_read() -> bool:
    """Whether those of this process, which has imported torch like that of a rank, are."""
    began = time.monotonic()
    asyncio.run(native_stack(os.getpid(), PATIENCE_S))
    return time.monotonic() - began < NATIVE_S / 2
