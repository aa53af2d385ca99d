"""A terminal that takes nothing holds up nobody but itself."""

import contextlib
import os
import pty
import sys
import threading
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest

from holdfast.actions import Outcome
from holdfast.cli import aside, foreground
from holdfast.cli.aside import standard_error_aside
from holdfast.cli.output import talk
from holdfast.drivers.records import create
from holdfast.spec import Job

Full = Callable[[pytest.MonkeyPatch], contextlib.AbstractContextManager[int]]


def read_on(there: int) -> None:
    """As a pager that goes on: all that comes, until nobody can write any more. A terminal may wake
    who waits to write to it only once most of it has been read."""
    with contextlib.suppress(OSError):  # the end of a terminal
        while os.read(there, 1 << 16):
            pass
    os.close(there)


@contextlib.contextmanager
def full_pipe(patch: pytest.MonkeyPatch) -> Iterator[int]:
    """Standard error is a pipe that nobody reads; its other end."""
    there, here = os.pipe()
    with open(here, "w") as pipe:
        patch.setattr(sys, "stderr", pipe)
        fill(pipe)
        yield there
    os.close(there)


@contextlib.contextmanager
def full_terminal(patch: pytest.MonkeyPatch) -> Iterator[int]:
    """Standard error is a terminal that nobody looks at; its other end."""
    there, here = pty.openpty()
    tty.setraw(here)  # line ends as they are
    with open(here, "w") as terminal:
        patch.setattr(sys, "stderr", terminal)
        fill(terminal)
        yield there
    os.close(there)


def fill(pipe: TextIO) -> None:
    os.set_blocking(pipe.fileno(), False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe.fileno(), b"." * 4096)
    os.set_blocking(pipe.fileno(), True)


def read_all(there: int) -> str:
    found = bytearray()
    while not found.endswith(b"the end\n"):
        found += os.read(there, 65536)
    return found.decode().lstrip(".")


def test_what_is_said_to_a_terminal_that_was_stopped_is_shown_when_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch, full_pipe(patch) as there:
        with standard_error_aside():
            for number in range(aside.TEXTS_MAX // 4):  # more than a pipe holds; print writes twice
                talk(f"incident {number}")
            talk("the end")
            said = read_all(there)
        assert not isinstance(sys.stderr, aside.Aside)
    told = [f"incident {number}" for number in range(aside.TEXTS_MAX // 4)]
    assert said.splitlines() == [*told, "the end"]


def test_what_is_kept_for_it_is_bounded_and_the_rest_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch, full_pipe(patch) as there:
        with standard_error_aside():
            sys.stderr.write("first\n")
            for _ in range(3 * aside.TEXTS_MAX):
                sys.stderr.write("x\n")
            sys.stderr.write("the end\n")
            said = read_all(there)
    assert "messages were dropped here" in said
    assert said.count("x\n") <= 2 * aside.TEXTS_MAX


def test_standard_error_that_is_gone_or_full_fails_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", full)
        with standard_error_aside():
            print("holdfast: the disk is full", file=sys.stderr, flush=True)


def test_a_stream_that_was_told_not_to_wait_gets_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch, full_pipe(patch) as there:
        os.set_blocking(sys.stderr.fileno(), False)
        with standard_error_aside():
            sys.stderr.write("x" * 100_000 + "\nthe end\n")
            said = read_all(there)
    assert said == "x" * 100_000 + "\nthe end\n"


def test_a_process_without_standard_error_has_none_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with standard_error_aside():
        assert sys.stderr is None


@pytest.mark.parametrize("full", [full_pipe, full_terminal])
def test_a_job_is_driven_to_its_end_while_nobody_reads_what_is_said_of_it(
    full: Full, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The controller says what has happened in the middle of its work."""
    job = Job.model_validate({"name": "j", "command": ["true"], "logs": {"terminal": "none"}})
    os.close(create(job, tmp_path / "j", now=0.0))
    ended = []

    def run(_hear: object) -> Outcome:
        talk("incident 1: rank 1 was killed")
        ended.append(True)
        threading.Thread(target=read_on, args=[os.dup(there)], daemon=True).start()
        return Outcome.SUCCEEDED

    with monkeypatch.context() as patch, full(patch) as there:
        patch.setattr(foreground, "_summary", lambda *_: None)
        assert foreground.run_shown(job, tmp_path / "j", run, as_json=False) == 0
    assert ended
