"""Fixtures for everybody: a home of its own for each test, and the check that nothing is left.

`home` points HOLDFAST_HOME to a fresh folder. `nothing_left` fails a test after which a process of
that home still runs or a shared memory file of ours still exists; it kills what it found, so that
one bad test does not spoil the next. Processes are known by their environment, their command line
and their working folder, because a forgotten process is exactly one whose parent is gone.
"""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import forked_workers, limit
from tests.cpu import CpuPerTest
from tests.more import examples
from tests.patience import ENOUGH_S, until

LEFTOVERS_S = ENOUGH_S / 5  # what is left for good costs a test this long

settings.register_profile(
    "holdfast",
    max_examples=examples(100),
    deadline=None,  # a busy machine is no finding
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("holdfast")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` takes what is rendered now for right, and shows what that changes."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


def pytest_configure(config: pytest.Config) -> None:
    """A shell that runs us in the background has SIGINT ignored; the jobs we start must not."""
    if "HOLDFAST_TEST_CPU" in os.environ:
        config.pluginmanager.register(CpuPerTest())
    if config.getoption("timeout") is None:
        config.option.timeout = limit.LIMIT_S
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # collecting tests makes a million objects, and no garbage


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Of one test."""
    return limit.set_timer(item, settings)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Just before the processes of `-n` are started."""
    forked_workers.require_paths(config)
    forked_workers.prepare(config)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """All tests have been run, or none."""
    forked_workers.say_if_nothing_ran(session.config, exitstatus)


def pytest_collection_finish() -> None:
    """What has been collected stays: nobody looks at it again. Tests make much that is no garbage
    yet, such as the worlds of the simulator; looking at it often takes a tenth of their time."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are known by their number: what is compressed tells the second in which it was, and
    all processes of the suite must collect the same tests."""
    return f"{argname} of {len(val)} bytes" if isinstance(val, bytes) else None


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty HOLDFAST_HOME for this test, on a machine whose kernel says nothing.

    What other tests do to this one, such as running out of memory, is in no test's reports.
    """
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("HOLDFAST_HOME", str(folder))
    monkeypatch.setenv("HOLDFAST_HEALTH_ROOT", str(tmp_path / "quiet"))
    return folder


@pytest.fixture
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where programs put files that they do not remove, as TensorFlow and torchrun when killed."""
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def nothing_left(home: Path) -> Iterator[None]:
    """Fail unless every process and every shared memory file of this test is gone at its end."""
    before, others = _shared_memory(), _processes()

    def files() -> set[str]:
        return {name for name in _shared_memory() - before if not _is_of_others(name, home)}

    yield
    left = _processes_of(home, others)
    if left:
        until(lambda: not _processes_of(home, others), LEFTOVERS_S)
        left = _processes_of(home, others)
    story = "\n".join(f"  {pid}: {_command(pid)}" for pid in left)
    for pid in left:
        _kill(pid)
    until(lambda: not files(), LEFTOVERS_S)
    assert not left, f"processes left behind:\n{story}"
    assert not files(), f"shared memory left behind: {sorted(files())}"


def _processes() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def _processes_of(home: Path, others: set[int]) -> list[int]:
    """Processes that belong to a job below `home`; `others` were there before it."""
    needle = os.fsencode(home)
    return [pid for pid in sorted(_processes() - others) if _mentions(pid, needle)]


def _is_of_others(name: str, home: Path) -> bool:
    """Whether it is of a node, as its name says, that runs for another test."""
    carries = f"HOLDFAST_NODE={name.removeprefix('holdfast-')}\0".encode()
    there, needle = _processes(), os.fsencode(home)
    return any(carries in (told := _read(pid, "environ")) and needle not in told for pid in there)


def _mentions(pid: int, needle: bytes) -> bool:
    """Whether environment, command line or working folder of a live process names the home."""
    if _is_zombie(pid):
        return False
    found = (_read(pid, "environ"), _read(pid, "cmdline"), _folder(pid))
    return any(needle in text for text in found)


def _is_zombie(pid: int) -> bool:
    return _read(pid, "stat").rpartition(b")")[2].split()[:1] in ([], [b"Z"], [b"X"])


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _folder(pid: int) -> bytes:
    try:
        return os.fsencode(os.readlink(f"/proc/{pid}/cwd"))
    except OSError:
        return b""


def _command(pid: int) -> str:
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _shared_memory() -> set[str]:
    """Names below /dev/shm that are ours; memfds have no name and die with their holders."""
    return {name for name in os.listdir("/dev/shm") if "holdfast" in name}
