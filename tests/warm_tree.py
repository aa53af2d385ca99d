"""How processes of ours are ordered from a warm server, by tests and by other processes of ours.

`Forked` is a `subprocess.Popen` whose process is forked instead of executed. `adopt` makes this
process start `python -m holdfast.X` that way, and the `python -u FILE` of torchrun; everything else
is executed as ever, and so is that once the server is gone.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

MAX_BYTES = 1 << 18
MAX_FDS = 200
ROOM_OF_WORDS = "-" * (1 << 12)  # what the server is started with, so that it can write there
ROOM = {"HOLDFAST_TEST_ROOM": "-" * (1 << 16)}  # the same in the environment
GROWING = (
    "run",
    "resume",
    "replay",
    "agent",
    "controller",
)  # commands that start processes of ours
MODULES = {  # what may be forked, and whether it starts processes of ours
    "holdfast.agent": True,
    "holdfast.agent.forkserver": False,
    "holdfast.agent.storage": False,
    "holdfast.checks": True,
    "holdfast.checks.devices": False,
    "holdfast.checks.ranks": True,
    "holdfast.cli": True,
}
TORCHRUN = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
SCRIPT = "tests.warm_script"
_server: socket.socket | None = None


class Forked(subprocess.Popen[Any]):
    """Takes what `Popen` takes of streams, environment, folder, session and group."""

    def order(self, words: Any) -> dict[str, Any]:
        """What is to run: module, whether as `__main__`, words, whether it grows."""
        raise NotImplementedError

    def server(self) -> socket.socket:
        """Who is to fork it."""
        raise NotImplementedError

    def _execute_child(self, words: Any, *how: Any) -> None:
        """The places of `how` are those of the class above."""
        kept, folder, env = sorted(how[3]), how[4], how[5]
        ends = how[9:15]  # of standard input, output and errors: to read from, to write to
        streams = [own if fd < 0 else fd for own, fd in enumerate((ends[0], ends[3], ends[5]))]
        order = {
            "tests": False,
            **self.order(words),
            "env": dict(os.environ if env is None else env),
            "folder": os.fspath(folder or os.getcwd()),
            "kept": kept,
            "session": how[20],
            "group": how[21],
        }
        server = self.server()
        socket.send_fds(server, [json.dumps(order).encode()], [*streams, *kept])
        self.pid = json.loads(server.recv(MAX_BYTES))
        self._child_created = True
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]


class Child(Forked):
    """What a process of ours starts."""

    def order(self, words: Any) -> dict[str, Any]:
        """`python -P -m MODULE WORDS`, or `python -u FILE WORDS`."""
        _, option, module = (words := _without_safe_path(words))[:3]
        if option == "-u":
            script = [script_of(words[2:])]
            return {"module": SCRIPT, "is_main": False, "words": script, "tree": False}
        return {"module": module, "is_main": True, "words": words[3:], "tree": MODULES[module]}

    def server(self) -> socket.socket:
        """The one that `adopt` was given."""
        assert _server is not None
        return _server

    def _execute_child(self, words: Any, *how: Any) -> None:
        python, option, what = (*_without_safe_path(words), "", "", "")[:3]
        is_ours = (
            what in MODULES if option == "-m" else option == "-u" and what[:1] not in ("", "-")
        )
        if python == sys.executable and is_ours:
            try:
                super()._execute_child(words, *how)
            except (OSError, json.JSONDecodeError):
                pass  # the server has been killed: an agent does that to what it does not know
            else:
                return
        super(Forked, self)._execute_child(words, *how)  # type: ignore[misc]


def _without_safe_path(words: Sequence[str]) -> list[str]:
    """The server has no folder on `sys.path` that `-P` would keep away."""
    return [*words[:1], *words[2 if list(words[1:2]) == ["-P"] else 1 :]]


def script_of(words: Sequence[str]) -> str:
    """What does the same as `python FILE ARGUMENTS`, for `tests.warm_script`."""
    run = "runpy.run_path(sys.argv[0], run_name='__main__')"
    path = "sys.path.insert(0, os.path.dirname(sys.argv[0]))"
    return f"import os, runpy, sys; sys.argv = {list(words)!r}; {path}; {run}"


def adopt(server: socket.socket) -> None:
    """From now on this server forks what this process starts."""
    global _server
    _server = server
    for module in (subprocess, sys.modules.get(TORCHRUN)):
        if module is not None:
            module.Popen = Child  # type: ignore[attr-defined]
