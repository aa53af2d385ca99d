"""Local nodes: agent processes of this machine, known by the id in their environment.

A pidfd tells at once when an agent ends, also when it is not our child because another controller
process started it.
"""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from holdfast.counts import count
from holdfast.drivers.explained import last_lines
from holdfast.files import read_plain

NODE_VARIABLE = "HOLDFAST_NODE"
FOLDER_VARIABLE = "HOLDFAST_JOB_DIR"
NAMES_VARIABLE = "HOLDFAST_NODE_NAMES"  # of the first nodes of a job, where these stand for others
LOOKED_AT = 20  # lines at the end of a log, of which the last one with words is told
LINE_CHARS = 300
CROWD = 4  # as many that run for each processor: one may wait for seconds
DOES = {"T": "is stopped", "t": "is stopped by a debugger", "D": "is in uninterruptible sleep"}


class KnownNode(msgspec.Struct, frozen=True):
    """What an agent writes about itself into `agent.json`."""

    node: str
    name: str
    pid: int
    metrics: int = 0  # port on which it is scraped; 0: none
    protocol: int = 0  # of its messages; 0: it has not said


def known_nodes(folder: Path) -> list[KnownNode]:
    """Every node that ever registered here, dead or alive, in the order of their numbers."""
    found = []
    for path in (folder / "nodes").glob("node-*/agent.json"):
        try:
            found.append(msgspec.json.decode(read_plain(path), type=KnownNode))
        except (OSError, ValueError):
            continue
    return sorted(found, key=lambda node: number_of(node.name))


def number_of(name: str) -> int:
    """The number in a node's name, -1 if it has none."""
    tail = name.rpartition("-")[2]
    return int(tail) if tail.isdigit() else -1


def new_names(folder: Path, count: int) -> list[str]:
    """Names for so many nodes that the job has not had: those asked for, then the next numbers."""
    taken = {path.name for path in (folder / "nodes").glob("node-*")}
    asked = os.environ.get(NAMES_VARIABLE, "").split(",")
    names = [name for name in asked if name and name not in taken][:count]
    first = max(map(number_of, taken | set(names)), default=-1) + 1
    return names + [f"node-{number}" for number in range(first, first + count - len(names))]


class AgentProcess:
    """One agent on this machine, watched until it ends."""

    def __init__(
        self,
        node: str,
        name: str,
        pid: int,
        child: "subprocess.Popen[bytes] | None",
        log: Path | None = None,
    ):
        self.node = node
        self.name = name
        self.pid = pid
        self.ended = asyncio.Event()
        self._child = child
        self._log = log

    @property
    def ours(self) -> bool:
        """Whether this very process has started it."""
        return self._child is not None

    def does(self) -> str:
        """What its process does that says nothing; empty if nothing is known."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
        except OSError:
            return ""
        return silent_words(state, running, os.cpu_count() or 1)

    def watch(
        self, on_begin: Callable[[], None], on_end: Callable[["AgentProcess", str], None]
    ) -> None:
        """It runs: call `on_begin`; and `on_end` with how it ended, as soon as it does."""
        on_begin()
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self._finish(on_end)
            return
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(fd)
            os.close(fd)
            self._finish(on_end)

        loop.add_reader(fd, ended)

    def _finish(self, on_end: Callable[["AgentProcess", str], None]) -> None:
        self.ended.set()
        on_end(self, ended_words(self._child.wait() if self._child else None, self._log))


def silent_words(state: str, running: int, processors: int) -> str:
    """What a process does that says nothing, by its state as in /proc/PID/stat and by how many run
    on this machine; empty if that explains nothing."""
    if state == "R" and running > CROWD * processors:
        there = count(processors, "processor")
        return f"its process waits for a processor: {running} processes or threads run on {there}"
    return f"its process {DOES[state]} (state {state})" if state in DOES else ""


def ended_words(status: int | None, log: Path | None = None) -> str:
    """How an agent ended, from the status of its process if that is known; where it failed by
    itself, with the last line of its log."""
    if status is None:
        return "its agent process ended"
    if status < 0:
        return f"its agent process was killed by {signal.Signals(-status).name}"
    said = _last_line(log) if status and log else ""
    return f"its agent process ended with status {status}{': ' if said else ''}{said}"


def _last_line(log: Path) -> str:
    lines = reversed(last_lines(log, LOOKED_AT))
    return next((said[:LINE_CHARS] for line in lines if (said := line.strip())), "")


def start_agent(folder: Path, name: str) -> AgentProcess:
    """Start a new node. It lives in a session of its own and does not end with us."""
    node = new_node(name)
    child = spawn_agent(folder, node, name, [], os.environ)
    return AgentProcess(node, name, child.pid, child, log_of(folder, name))


def log_of(folder: Path, name: str) -> Path:
    return folder / "nodes" / name / "agent.log"


def new_node(name: str) -> str:
    """An id that no other life of a node has had."""
    return f"{name}-{secrets.token_hex(4)}"


def spawn_agent(
    folder: Path, node: str, name: str, options: Sequence[str], environ: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """The process of an agent, with its log. Raises `OSError`."""
    path = log_of(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-P", "-m", "holdfast.agent", "--job-dir", str(folder)]
    with path.open("ab") as log:
        return subprocess.Popen(
            [*command, "--node", node, "--name", name, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**environ, NODE_VARIABLE: node, FOLDER_VARIABLE: str(folder.absolute())},
        )
