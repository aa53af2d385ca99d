"""What tests cost in CPU seconds: a pytest plugin, on where HOLDFAST_TEST_CPU is set.

Around each test stand the CPU times of this process and its descendants, which other work on the
machine hardly changes; wall time is no measure where the cores are shared. At the end the dearest
tests and the sums per file are printed. What nobody waits for does not count, such as what
`holdfast run --detach` has started.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest

SHOWN = 120


class CpuPerTest:
    """Keeps what each test used, also where several processes share them."""

    def __init__(self) -> None:
        self.used_s: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = _cpu_s()
        yield
        self.used_s[item.nodeid] += _cpu_s() - before  # type: ignore[assignment]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cpu_s"] = dict(self.used_s)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self.used_s.update(getattr(node, "workeroutput", {}).get("cpu_s", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files: Counter[str] = Counter()
        for test, seconds in self.used_s.items():
            files[test.partition("::")[0]] += seconds
        terminalreporter.section(f"CPU seconds: {sum(files.values()):.0f}")
        for used_s in (self.used_s, files):
            for name, seconds in used_s.most_common(SHOWN):
                terminalreporter.line(f"{seconds:8.1f}  {name}")
            terminalreporter.line("")


def _cpu_s() -> float:
    """What this process, its descendants and those that any of them has waited for have used."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # user and system, its own and its children's
    return total
