"""What tests cost in CPU seconds: a pytest plugin, on where HOLDFAST_TEST_CPU is set.

Around each test stand the CPU times of this process and its descendants, which other work on the
machine hardly changes; wall time is no measure where the cores are shared. Where this process may
make a control group, everything that it starts counts; elsewhere what nobody waits for does not,
such as orphans and what `holdfast run --detach` has started. At the end the dearest tests and the
sums per file and folder are printed, with the kernel's part of it (forks, page faults, ends of
processes), and what was used outside tests, such as collecting them.
"""

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

SHOWN = 120
OUTSIDE = "(outside tests)"
ACCOUNTING = Path("/sys/fs/cgroup/cpuacct")  # of version 1, beside other groups
GROUP = "holdfast-test-{}"


class Cpu(NamedTuple):
    """Seconds."""

    all_s: float = 0.0
    kernel_s: float = 0.0


class CpuPerTest:
    """Keeps what each test used, also where several processes share them."""

    def __init__(self) -> None:
        self.all_s: Counter[str] = Counter()
        self.kernel_s: Counter[str] = Counter()
        self._clock = _clock()
        self._began, self._in_tests = self._clock(), Cpu()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = self._clock()
        yield
        used = _between(before, self._clock())
        self._add(item.nodeid, used)
        self._in_tests = Cpu(*map(sum, zip(self._in_tests, used, strict=True)))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        used = _between(self._began, self._clock())
        self._add(OUTSIDE, _between(self._in_tests, used))
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cpu_s"] = [dict(self.all_s), dict(self.kernel_s)]

    def _add(self, test: str, used: Cpu) -> None:
        self.all_s.update({test: used.all_s})
        self.kernel_s.update({test: used.kernel_s})

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        all_s, kernel_s = getattr(node, "workeroutput", {}).get("cpu_s", ({}, {}))
        self.all_s.update(all_s)
        self.kernel_s.update(kernel_s)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total, kernel = (sum(used.values()) for used in (self.all_s, self.kernel_s))
        terminalreporter.section(f"CPU seconds: {total:.0f}, the kernel's {kernel:.0f}")
        for part in (str, _file, lambda test: os.path.dirname(_file(test))):
            all_s, kernel_s = (_sums(used, part) for used in (self.all_s, self.kernel_s))
            for name, seconds in all_s.most_common(SHOWN):
                terminalreporter.line(f"{seconds:8.1f}{kernel_s[name]:8.1f}  {name}")
            terminalreporter.line("")
        for group in ACCOUNTING.glob(GROUP.format("*")):
            with contextlib.suppress(OSError):  # somebody is still in it
                group.rmdir()


def _between(before: Cpu, after: Cpu) -> Cpu:
    return Cpu(after.all_s - before.all_s, after.kernel_s - before.kernel_s)


def _file(test: str) -> str:
    return test.partition("::")[0]


def _sums(used: "Counter[str]", part: Callable[[str], str]) -> "Counter[str]":
    """By what `part` makes of the names of the tests."""
    sums: Counter[str] = Counter()
    for test, seconds in used.items():
        sums[part(test)] += seconds
    return sums


def _clock() -> Callable[[], Cpu]:
    """What reads the CPU seconds used by this process and what it has started."""
    group = ACCOUNTING / GROUP.format(os.getpid())
    try:
        group.mkdir()
        for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
            (group / "cgroup.procs").write_text(str(process.pid))
    except OSError:
        return _of_descendants
    return functools.partial(_of_group, group)


def _of_group(group: Path) -> Cpu:
    used, kernel = (
        int((group / name).read_text()) / 1e9 for name in ("cpuacct.usage", "cpuacct.usage_sys")
    )
    return Cpu(used, kernel)


def _of_descendants() -> Cpu:
    """What this process, its descendants and those that any of them has waited for have used."""
    me = psutil.Process()
    total = kernel = 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()[:4]  # user and system, its own and its children's
            total += sum(times)
            kernel += times[1] + times[3]
    return Cpu(total, kernel)
