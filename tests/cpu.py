"""What tests cost in CPU seconds: a pytest plugin, on where HOLDFAST_TEST_CPU is set.

Around each test stand the CPU times of this process and its descendants, which other work on the
machine hardly changes; wall time is no measure where the cores are shared. Where this process may
make a control group, everything that it starts counts; elsewhere what nobody waits for does not,
such as orphans and what `holdfast run --detach` has started. At the end the dearest tests and the
sums per file and folder are printed, and what was used outside tests, such as collecting them.
"""

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

SHOWN = 120
OUTSIDE = "(outside tests)"
ACCOUNTING = Path("/sys/fs/cgroup/cpuacct")  # of version 1, beside other groups
GROUP = "holdfast-test-{}"


class CpuPerTest:
    """Keeps what each test used, also where several processes share them."""

    def __init__(self) -> None:
        self.used_s: Counter[str] = Counter()
        self._cpu_s = _clock()
        self._outside_s = -self._cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = self._cpu_s()
        yield
        used_s = self._cpu_s() - before
        self.used_s[item.nodeid] += used_s  # type: ignore[assignment]
        self._outside_s -= used_s

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.used_s[OUTSIDE] += self._outside_s + self._cpu_s()  # type: ignore[assignment]
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cpu_s"] = dict(self.used_s)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self.used_s.update(getattr(node, "workeroutput", {}).get("cpu_s", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files: Counter[str] = Counter()
        folders: Counter[str] = Counter()
        for test, seconds in self.used_s.items():
            file = test.partition("::")[0]
            files[file] += seconds
            folders[os.path.dirname(file)] += seconds
        terminalreporter.section(f"CPU seconds: {sum(files.values()):.0f}")
        for used_s in (self.used_s, files, folders):
            for name, seconds in used_s.most_common(SHOWN):
                terminalreporter.line(f"{seconds:8.1f}  {name}")
            terminalreporter.line("")
        for group in ACCOUNTING.glob(GROUP.format("*")):
            with contextlib.suppress(OSError):  # somebody is still in it
                group.rmdir()


def _clock() -> Callable[[], float]:
    """What reads the CPU seconds used by this process and what it has started."""
    group = ACCOUNTING / GROUP.format(os.getpid())
    try:
        group.mkdir()
        for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
            (group / "cgroup.procs").write_text(str(process.pid))
    except OSError:
        return _of_descendants
    return functools.partial(_of_group, group / "cpuacct.usage")


def _of_group(usage: Path) -> float:
    return int(usage.read_text()) / 1e9


def _of_descendants() -> float:
    """What this process, its descendants and those that any of them has waited for have used."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # user and system, its own and its children's
    return total
