"""How long Python's garbage collector has kept a worker waiting, on its progress page.

A rank that collects while others train makes all of them wait, and nothing else of it shows why.
The interpreter calls us before and after each collection, which costs microseconds; whichever
thread it runs in, all of them wait. A child of the worker that is forked has the callback no more:
the page is not its own.
"""

import gc
import os
import time

from holdfast.page import Page


def watch(page: Page) -> None:
    """Add up what collections take from now on."""
    began = 0.0

    def collects(phase: str, _info: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.monotonic()
        elif began:
            page.collected_garbage(time.monotonic() - began)

    gc.callbacks.append(collects)
    os.register_at_fork(after_in_child=lambda: _forget(collects))


def _forget(callback: object) -> None:
    gc.callbacks[:] = [one for one in gc.callbacks if one is not callback]
