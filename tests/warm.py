"""The command line in processes that need not import it: forked from a warm Python process.

`holdfast(...)` and `Warm(...)` are `subprocess.run` and `subprocess.Popen` of `python -m
holdfast.cli`: children of ours with arguments, environment, streams and signals of their own.
Starting Python and importing the package costs half a second of a core, forking next to nothing,
and hundreds of tests ask the command line. What is promised of a fresh interpreter (imports, hash
seeds, missing modules) is tested with a fresh one.

Each test process has one server (`warm_server`): what is left of the image from which it has been
forked itself (`forked_workers`), or one that starts with the first command.
"""

import functools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S
from tests.warm_tree import GROWING, MODULES, ROOM, ROOM_OF_WORDS, SCRIPT, Forked, script_of

ROOT = Path(__file__).parents[1]
PIPE = subprocess.PIPE
OF_A_TEST = ("HOLDFAST_HOME", "KUBECONFIG")  # not for the server, which outlives the test
_lock = threading.Lock()
_started: list["subprocess.Popen[bytes]"] = []  # kept, so that nobody takes them for forgotten
_given: dict[int, socket.socket] = {}  # connections to servers that were forked with their process


def holdfast(
    *words: str, given: str = "", env: Mapping[str, str] | None = None, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """`holdfast WORDS` to its end; `env` is the whole environment, `variables` come on top."""
    process = start(*words, env={**(os.environ if env is None else env), **variables})
    return _to_its_end(process, given)


def start(*words: str, env: Mapping[str, str] | None = None) -> "Warm":
    """`holdfast WORDS`, started, with pipes for its streams."""
    return Warm(words, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env, text=True)


def program(module: str, *words: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    """What `python -m MODULE WORDS` does that calls its `main`, to its end."""
    process = _Program(words, module, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
    return _to_its_end(process, given)


def begin() -> socket.socket:
    """The server of this process, which imports while others do something else."""
    return _server(os.getpid())


def _to_its_end(process: "Warm", given: str) -> "subprocess.CompletedProcess[str]":
    out, err = process.communicate(given, timeout=PATIENCE_S)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


class Warm(Forked):
    """A command of ours; takes what `Popen` takes of streams, environment and folder."""

    module = "holdfast.cli"  # whose `main` is run

    def order(self, words: Any) -> dict[str, Any]:
        """The command."""
        grows = bool(words) and words[0] in GROWING
        return {"module": self.module, "is_main": False, "words": words, "tree": grows}

    def server(self) -> socket.socket:
        """That of this process."""
        return begin()

    def _execute_child(self, words: Any, *how: Any) -> None:
        with _lock:
            super()._execute_child(words, *how)


class _Program(Warm):
    """Another program than the command line."""

    def __init__(self, words: Sequence[str], module: str, **how: Any) -> None:
        self.module = module
        super().__init__(words, **how)


class Module(Warm):
    """`python -m MODULE WORDS`, of those that processes of ours start."""

    def __init__(self, module: str, words: Sequence[str], **how: Any) -> None:
        self.module = module
        super().__init__(words, **how)

    def order(self, words: Any) -> dict[str, Any]:
        """The module as `__main__`."""
        order = super().order(words)
        return {**order, "is_main": True, "tree": MODULES[self.module]}


class Script(Warm):
    """`python -c SCRIPT`, where torch has been imported already."""

    module = SCRIPT

    @classmethod
    def of_file(cls, words: Sequence[str], **how: Any) -> "Script":
        """`python FILE ARGUMENTS`."""
        return cls([script_of(words)], **how)

    def order(self, words: Any) -> dict[str, Any]:
        """The script, which is given what nodes are given."""
        return {**super().order(words), "tree": True}


def adopt(server: socket.socket) -> None:
    """From now on this server forks what this process orders."""
    _given[os.getpid()] = server


@functools.cache
def _server(pid: int) -> socket.socket:
    """The connection to the server of this process."""
    if pid in _given:
        return _given[pid]
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own = {name: value for name, value in os.environ.items() if name not in OF_A_TEST}
    words = [sys.executable, "-m", "tests.warm_server", str(its.fileno()), ROOM_OF_WORDS]
    env = {**own, **ROOM}
    _started.append(subprocess.Popen(words, pass_fds=[its.fileno()], env=env, cwd=ROOT))
    its.close()
    return ours
