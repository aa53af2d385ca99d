"""The time limit of one test, which pytest-timeout ends: like `patience`, it does not count time in
which the test and what it has started were ready to run and got no processor."""

import signal
import threading
from typing import Any

import pytest

from tests.patience import ENOUGH_S, Patience

LIMIT_S = 3 * ENOUGH_S  # more than a test waits for one thing
LOOKS = 10  # within it


def set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Instead of that of pytest-timeout, which counts seconds; None: leave it to that one."""
    if settings.method != "signal" or threading.current_thread() is not threading.main_thread():
        return None
    every_s = settings.timeout / LOOKS
    patience = Patience(settings.timeout, turn_s=2 * every_s)
    plugin: Any = item.config.pluginmanager.getplugin("timeout")

    def look(*_: object) -> None:
        __tracebackhide__ = True
        if patience.is_over:
            cancel()
            plugin.timeout_sigalrm(item, settings)

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]  # what pytest-timeout calls
    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
    return True
