"""`dlrover-run` of DLRover 0.6.1 with a newer PyTorch than it was made for.

Its local master is started by `SubprocessHandler`, which takes one argument more since PyTorch 2.9.
Nothing else of it is changed.
"""

import functools
import runpy
from typing import Any

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

GIVEN = 7  # arguments of PyTorch's own callers, with the instance
begin = SubprocessHandler.__init__


@functools.wraps(begin)
def start(*given: Any, **named: Any) -> None:
    """With `numa_options`, whoever calls."""
    if len(given) < GIVEN + 1:
        named.setdefault("numa_options", None)
    begin(*given, **named)


SubprocessHandler.__init__ = start  # type: ignore[method-assign]
runpy.run_module("dlrover.trainer.torch.elastic_run", run_name="__main__", alter_sys=True)
