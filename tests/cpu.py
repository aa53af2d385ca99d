"""What each test file costs in CPU seconds: a pytest plugin, on where HOLDFAST_TEST_CPU is set.

Around each test stand the CPU times of this process and its descendants, which other work on the
machine hardly changes; wall time is no measure where the cores are shared. At the end the sums per
file are printed, the dearest first. What nobody waits for does not count: `holdfast run --detach`.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest

SHOWN = 40


class CpuPerFile:
    """Adds up what the tests of each file used, also where several processes share them."""

    def __init__(self) -> None:
        self.used_s: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = _cpu_s()
        yield
        self.used_s[item.location[0]] += _cpu_s() - before  # type: ignore[assignment]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cpu_s"] = dict(self.used_s)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self.used_s.update(getattr(node, "workeroutput", {}).get("cpu_s", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"CPU seconds: {sum(self.used_s.values()):.0f}")
        for file, seconds in self.used_s.most_common(SHOWN):
            terminalreporter.line(f"{seconds:8.1f}  {file}")


def _cpu_s() -> float:
    """What this process, its descendants and those that any of them has waited for have used."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # user and system, its own and its children's
    return total
