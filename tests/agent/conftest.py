"""Fixtures for tests of the agent: `node(source, **job)` starts a stub controller and an agent."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.controller_stub import AgentProcess, StubController, running

Node = Callable[..., tuple[StubController, AgentProcess]]


@pytest.fixture
def node(home: Path, nothing_left: None) -> Iterator[Node]:  # noqa: ARG001
    """Start a node that runs this source; ended, and checked for leftovers, with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda source="", **job: stack.enter_context(running(home, source, **job))


@pytest.fixture
def small_disk(home: Path) -> Iterator[Callable[[], None]]:
    """Call it to put the job's logs on a disk of 256 KiB."""
    logs = home / "logs"
    mounted = []

    def mount() -> None:
        logs.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(logs)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        mounted.append(logs)

    yield mount
    if mounted:
        subprocess.run(["umount", "-l", str(logs)], check=True)
