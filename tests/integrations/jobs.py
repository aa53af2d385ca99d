"""Jobs of trainers for tests, and what they wrote down."""

import functools
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import rank
from holdfast.integrations import drive
from holdfast.train import session
from tests.end_to_end.local.jobs import TOGETHER, RunningJob
from tests.tidy.source import ROOT
from tests.warm import OF_A_TEST, Script, Warm

SCRIPTS = Path(__file__).parent / "scripts"


# A forkserver of our own for all jobs of these scripts: what it loads ahead takes seconds.
LOADED_ONCE = ("trainer.py", "fit.py")
LOADS = """
import socket
from holdfast.agent import environment, fork_protocol, preloading
from tests import huge_pages, warm_server
program = fork_protocol.Program(script={script!r})
preload = fork_protocol.Preload(framework=environment.TORCH_PRELOAD, imports=True)
assert preloading.load(program, preload, lambda _: None) == {{}}
huge_pages.share()
warm_server.serve(socket.socket(fileno={fd}))
"""
_started: list[Script] = []  # kept, so that nobody takes them for forgotten


@functools.cache
def loaded_for(script: Path) -> socket.socket:
    """A server of processes in which all is loaded that a forkserver loads for this script."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = {name: value for name, value in os.environ.items() if name not in OF_A_TEST}
    text = LOADS.format(script=str(script), fd=its.fileno())
    _started.append(Script([text], pass_fds=[its.fileno()], env=env, cwd=ROOT))
    its.close()
    return ours


class Loaded(Warm):
    """The command line of a job whose forkserver finds its libraries there."""

    def __init__(self, script: Path, words: Sequence[str], **how: Any) -> None:
        self._loaded = loaded_for(script)
        super().__init__(words, **how)

    def server(self) -> socket.socket:
        """That for the script."""
        return self._loaded


def job(home: Path, script: str, name: str, env: dict[str, str], **spec: Any) -> RunningJob:
    """Two ranks on one node, a snapshot after each step; it has begun."""
    made = RunningJob(
        home, name=name, script=str(SCRIPTS / script), args=[str(home.parent / name)],
        env=env, snapshots={"every_steps": 1}, **TOGETHER, **spec,
    )  # fmt: skip
    if script in LOADED_ONCE:
        made.by = functools.partial(Loaded, SCRIPTS / script)
    return made.start()


def written(home: Path, name: str) -> dict[str, list[str]]:
    """By file: each step's lines, of repeated steps once. What was repeated must be the same."""
    found = {}
    for path in sorted((home.parent / name).glob("*.jsonl")):
        lines = path.read_text().splitlines()
        by_step: dict[tuple[Any, ...], str] = {}
        for line in lines:
            said = json.loads(line)
            key = said["step"], *sorted(said)
            assert by_step.setdefault(key, line) == line, f"{path.name} repeated differently"
        found[path.name] = sorted(by_step.values())
    for path in sorted((home.parent / name).glob("final-*")):
        found[path.name] = [path.read_text()]
    return found


def own_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not joined yet, without any launcher."""
    monkeypatch.setattr(session, "_joined", False)
    monkeypatch.setattr(drive, "_taken_by", "")
    for name in rank.VARIABLES:
        monkeypatch.delenv(name, raising=False)
