"""How a local agent ended is told with what it said last, where it failed by itself."""

import signal
from pathlib import Path

import pytest

from holdfast.drivers.nodes import LINE_CHARS, ended_words, silent_words

TRACEBACK = b"agent: begins\nTraceback (most recent call last):\n  File x\nOSError: no room\n\n"


@pytest.mark.parametrize(
    ("status", "log", "words"),
    [
        (None, TRACEBACK, "its agent process ended"),
        (-signal.SIGKILL, TRACEBACK, "its agent process was killed by SIGKILL"),
        (0, TRACEBACK, "its agent process ended with status 0"),
        (1, TRACEBACK, "its agent process ended with status 1: OSError: no room"),
        (1, b"", "its agent process ended with status 1"),
        (1, b"\xff\n", "its agent process ended with status 1: \ufffd"),
        (1, b"x" * 9999, f"its agent process ended with status 1: {'x' * LINE_CHARS}"),
    ],
)
def test_the_end_of_an_agent_is_told(
    tmp_path: Path, status: int | None, log: bytes, words: str
) -> None:
    path = tmp_path / "agent.log"
    path.write_bytes(log)
    assert ended_words(status, path) == words


def test_an_agent_without_a_log_is_told_of_as_well(tmp_path: Path) -> None:
    assert ended_words(3, tmp_path / "none") == "its agent process ended with status 3"


@pytest.mark.parametrize(
    ("state", "running", "words"),
    [
        ("T", 1, "its process is stopped (state T)"),
        ("D", 1, "its process is in uninterruptible sleep (state D)"),
        (
            "R",
            131,
            "its process waits for a processor: 131 processes or threads run on 2 processors",
        ),
        ("R", 3, ""),
        ("S", 131, ""),
    ],
)
def test_what_a_silent_agent_does_is_told(state: str, running: int, words: str) -> None:
    assert silent_words(state, running, processors=2) == words
