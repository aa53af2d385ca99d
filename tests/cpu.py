"""What tests cost in CPU seconds: a pytest plugin, on where HOLDFAST_TEST_CPU says how many of them
are shown.

Around each test stand the CPU times of this process and its descendants, which other work on the
machine hardly changes; wall time is no measure where the cores are shared. Where this process may
make a control group, everything that it starts counts; elsewhere what nobody waits for does not,
such as orphans and what `holdfast run --detach` has started. At the end the dearest tests and the
sums per file and folder are printed, with the kernel's part of it (forks, page faults, ends of
processes) and that of the test's own process, and what was used outside tests, such as collecting
them.
"""

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

OUTSIDE = "(outside tests)"
ACCOUNTING = Path("/sys/fs/cgroup/cpuacct")  # of version 1, beside other groups
GROUP = "holdfast-test-{}"


class Cpu(NamedTuple):
    """Seconds."""

    all_s: float = 0.0
    kernel_s: float = 0.0
    own_s: float = 0.0


class CpuPerTest:
    """Keeps what each test used, also where several processes share them."""

    def __init__(self) -> None:
        self.used: dict[str, Cpu] = {}
        self._clock = _clock()
        self._began, self._in_tests = self._clock(), Cpu()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = self._clock()
        yield
        used = _between(before, self._clock())
        self._add({item.nodeid: used})
        self._in_tests = _sum(self._in_tests, used)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        used = _between(self._began, self._clock())
        self._add({OUTSIDE: _between(self._in_tests, used)})
        if hasattr(session.config, "workeroutput"):
            plain = {test: tuple(used) for test, used in self.used.items()}  # what can be sent
            session.config.workeroutput["cpu_s"] = plain

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self._add(getattr(node, "workeroutput", {}).get("cpu_s", {}))

    def _add(self, used: Mapping[str, Iterable[float]]) -> None:
        for test, more in used.items():
            self.used[test] = _sum(self.used.get(test, Cpu()), more)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total = functools.reduce(_sum, self.used.values(), Cpu())
        terminalreporter.section(
            f"CPU seconds: {total.all_s:.0f}, the kernel's {total.kernel_s:.0f}, "
            f"the tests' own processes' {total.own_s:.0f}"
        )
        shown = int(os.environ["HOLDFAST_TEST_CPU"])
        for part in (str, _file, lambda test: os.path.dirname(_file(test))):
            sums: dict[str, Cpu] = {}
            for test, used in self.used.items():
                sums[part(test)] = _sum(sums.get(part(test), Cpu()), used)
            for name, used in sorted(sums.items(), key=lambda one: -one[1].all_s)[:shown]:
                terminalreporter.line("".join(f"{seconds:8.1f}" for seconds in used) + f"  {name}")
            terminalreporter.line("")
        for group in ACCOUNTING.glob(GROUP.format("*")):
            with contextlib.suppress(OSError):  # somebody is still in it
                group.rmdir()


def _between(before: Cpu, after: Cpu) -> Cpu:
    return Cpu(*(then - first for first, then in zip(before, after, strict=True)))


def _sum(one: Iterable[float], other: Iterable[float]) -> Cpu:
    return Cpu(*map(sum, zip(one, other, strict=True)))


def _file(test: str) -> str:
    return test.partition("::")[0]


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
    return Cpu(used, kernel, time.process_time())


def _of_descendants() -> Cpu:
    """What this process, its descendants and those that any of them has waited for have used."""
    me = psutil.Process()
    total = kernel = 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()[:4]  # user and system, its own and its children's
            total += sum(times)
            kernel += times[1] + times[3]
    return Cpu(total, kernel, time.process_time())
