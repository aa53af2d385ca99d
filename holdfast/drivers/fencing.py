"""Ending every process of local nodes, for certain, and nobody else's.

A process belongs to a node if it carries the node's id in its environment, and to a job if it also
carries the job's folder there. That folder is compared as a file, seen with the eyes of the process
itself: a job of the same name below another HOLDFAST_HOME, or in a container in which the same path
is another folder, is not this job. So agents are found whose `agent.json` is damaged or missing.
One that carries no id, because it was started without the environment or has written its title
over it (setproctitle), belongs to the node of its parent.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

from holdfast.agent import cleaners, node_memory, processes
from holdfast.agent.processes import parent_of, pids
from holdfast.drivers.nodes import FOLDER_VARIABLE, NODE_VARIABLE, KnownNode, known_nodes
from holdfast.errors import Error
from holdfast.files import require_proc

KILL_TIMEOUT_S = 10.0
PAUSE_S = 0.005
AGAIN_S = 0.1  # between two looks for processes at most, while some have not ended
ENDED = ("", "Z", "X")
SLEEPS = {"D": "uninterruptible sleep (state D)", "T": "a stop (state T)"}


class Stuck(NamedTuple):
    """A process that SIGKILL has not ended: the kernel does not let go of it.

    It runs no more code of its own, but it may hold memory, devices and ports.
    """

    pid: int
    node: str
    state: str  # as in /proc/PID/stat, of the thread that holds it up; "" where it was just found
    where: str  # kernel function it waits in, empty if the kernel does not say

    @property
    def words(self) -> str:
        """For people."""
        inside = f" in {self.where}" if self.where else ""
        who = f"process {self.pid} of {self.node}"
        if not self.state:
            return f"{who} is one of many that start others faster than they are killed"
        doing = SLEEPS.get(self.state, f"state {self.state}")
        return f"{who} is in {doing}{inside} and SIGKILL does not end it"


class Fenced(NamedTuple):
    """What became of an order to kill: how many processes there were, and which are still there."""

    killed: int
    stuck: tuple[Stuck, ...]

    @property
    def words(self) -> str:
        """Those that are still there, for people."""
        return "; ".join(one.words for one in self.stuck[:3])


def living(folder: Path) -> list[KnownNode]:
    """Nodes of this job whose agent runs (a pid alone may have been given to another process)."""
    nodes = known_nodes(folder)
    found = Search(folder, {node.node for node in nodes}).processes()
    return [node for node in nodes if found.get(node.pid) == node.node]


def fence_nodes(folder: Path, nodes: Iterable[str]) -> Fenced:
    """Kill every process of these nodes of a job, until none is left or time is up."""
    wanted = set(nodes)
    search = Search(folder, wanted)
    fenced = _kill(search, wanted.__contains__)
    _forget(wanted)
    return fenced


def fence_job(folder: Path, *, spared: frozenset[str] = frozenset()) -> Fenced:
    """Likewise of all nodes of a job, known or not, but those that are `spared`."""
    known = {node.node for node in known_nodes(folder)}
    search = Search(folder, known)
    fenced = _kill(search, lambda node: node not in spared)
    _forget((known | search.ours) - spared)
    return fenced


def _forget(nodes: Iterable[str]) -> None:
    for node in nodes:
        node_memory.forget(node)


class Search:
    """Looks for the processes of one job, again and again.

    A node counts as the job's once one of its processes names the folder. One whose folder is not
    to be found (moved, removed) does if its id is among those `known`.
    """

    def __init__(self, folder: Path, known: set[str]) -> None:
        self._folder = folder
        self._known = known
        self.ours: set[str] = set()
        self._groups: dict[int, int] = {}  # of all processes at the last look

    def processes(self) -> dict[int, str]:
        """Every live process of the job other than this one, with its node."""
        marks = _marks()
        self._groups = {pid: mark.group for pid, mark in marks.items()}
        carriers = {pid: mark.node for pid, mark in marks.items() if mark.node}
        found = {pid: self._is_ours(pid, marks[pid].folder) for pid in carriers}
        self.ours |= {carriers[pid] for pid, ours in found.items() if ours}
        carrying = {
            pid: carriers[pid]
            for pid, ours in found.items()
            if carriers[pid] in self.ours or (ours is None and carriers[pid] in self._known)
        }
        return carrying | _below(carrying, marks.keys() - carriers.keys())

    def groups_of_none_but(self, pids: AbstractSet[int]) -> set[int]:
        """The groups of these processes, as they were at the last look, that no other one was in
        which still lives."""
        others = self._groups.keys() - pids
        shared = {self._groups[pid] for pid in others if _state(f"{pid}") not in ENDED}
        return {self._groups[pid] for pid in pids & self._groups.keys()} - shared

    def _is_ours(self, pid: int, said: str) -> bool | None:
        """Whether what a process calls its job's folder is ours; None: there is no such folder."""
        try:
            return os.path.samefile(f"/proc/{pid}/root{said}", self._folder) if said else None
        except OSError:
            return None


def require_gone(fenced: Fenced, what: str, remedy: str) -> None:
    """Raise `Error` process-stuck if something is still there."""
    if fenced.stuck:
        raise Error("process-stuck", what, why=fenced.words, help=remedy)


def say_stuck(fenced: Fenced) -> None:
    """Tell the person at the terminal what could not be ended."""
    if fenced.stuck:
        print(f"holdfast: {fenced.words}", file=sys.stderr, flush=True)


def _kill(search: Search, meant: Callable[[str], bool]) -> Fenced:
    """Cleaners end by themselves, once the others are gone."""
    killed: dict[int, str] = {}
    began = time.monotonic()
    deadline = began + KILL_TIMEOUT_S
    while left := _left(search, meant, killed):
        if killed and time.monotonic() > deadline:
            return Fenced(len(killed), tuple(_still(left, killed)))
        spared = cleaners.spared(left, began)
        processes.kill_all(left.keys(), spared, search.groups_of_none_but(left.keys()))
        killed |= left
        _give_time(left)
    return Fenced(len(killed), ())


def _left(
    search: Search, meant: Callable[[str], bool], killed: Mapping[int, str]
) -> dict[int, str]:
    found = {pid: node for pid, node in search.processes().items() if meant(node)}
    return found | {pid: node for pid, node in killed.items() if _lingers(pid)}


def _still(left: Mapping[int, str], killed: Mapping[int, str]) -> Iterator[Stuck]:
    """Those that SIGKILL has not ended; where there is none, one that has just been found."""
    alive = {p: n for p, n in left.items() if _lingers(p) or _state(f"{p}") not in ENDED}
    stuck = alive.keys() & killed.keys()
    for pid in sorted(stuck):
        yield _stuck(pid, left[pid])
    for pid in [] if stuck else sorted(alive)[:1]:
        yield Stuck(pid, left[pid], "", "")


def _give_time(pids: Iterable[int]) -> None:
    """For those that were killed to end: whether others have come meanwhile takes a look at every
    process of the machine."""
    until = time.monotonic() + AGAIN_S
    time.sleep(PAUSE_S)
    while time.monotonic() < until and any(_state(f"{pid}") not in ENDED for pid in pids):
        time.sleep(PAUSE_S)


class _Marks(NamedTuple):
    """What a process carries in its environment; both empty: it belongs to no node, or hides it."""

    node: str
    folder: str  # what it calls the job's folder
    group: int  # its process group; 0: it was gone


def _marks() -> dict[int, _Marks]:
    """Of every process but this one and those of other users. Raises `Error` where numbers of
    processes may mean others: they are about to be killed."""
    require_proc()
    found = {}
    for pid in pids():
        environment = _environment(pid)
        if environment is not None and pid != os.getpid():
            node, folder = (_value(environment, n) for n in (NODE_VARIABLE, FOLDER_VARIABLE))
            found[pid] = _Marks(node, folder, processes.group_of(pid))
    return found


def controllers_without_folder(folder: Path) -> list[int]:
    """Processes of ours that hold the lock of a job whose folder was removed from there."""
    gone = f"{folder.parent.resolve() / folder.name}/lock (deleted)"
    return [pid for pid in sorted(pids()) if pid != os.getpid() and _has_open(pid, gone)]


def _has_open(pid: int, link: str) -> bool:
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for number in numbers:
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{number}") == link:
                return True
    return False


def _below(nodes: Mapping[int, str], unmarked: Iterable[int]) -> dict[int, str]:
    """Live processes among the `unmarked` whose next ancestor that is not is one of `nodes`."""
    if not nodes:
        return {}
    parents = {pid: parent for pid in unmarked if (parent := parent_of(pid)) is not None}
    found: dict[int, str] = {}
    for pid in parents:
        above, seen = parents[pid], set[int]()
        while above in parents and above not in seen:  # numbers are given again meanwhile
            seen.add(above)
            above = parents[above]
        if above in nodes:
            found[pid] = nodes[above]
    return found


def _environment(pid: int) -> bytes | None:
    """As it was when the process started; empty for zombies, None for those of other users."""
    try:
        return b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None


def _value(environment: bytes, name: str) -> str:
    _, _, rest = environment.partition(f"\0{name}=".encode())
    return os.fsdecode(rest.partition(b"\0")[0])


def _lingers(pid: int) -> bool:
    """Whether a process that has lost its memory still has threads, which hold on to something."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return len(threads) > 1 and _state(f"{pid}") in "ZX"


def _stuck(pid: int, node: str) -> Stuck:
    """The thread that holds it up, if there is one, speaks for the process."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            if _state(f"{pid}/task/{thread}") == "D":
                return Stuck(pid, node, "D", _wchan(f"{pid}/task/{thread}"))
    return Stuck(pid, node, _state(f"{pid}") or "?", _wchan(f"{pid}"))


def _state(path: str) -> str:
    try:
        text = Path("/proc", path, "stat").read_text(errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]


def _wchan(path: str) -> str:
    try:
        name = Path("/proc", path, "wchan").read_text()
    except OSError:
        return ""
    return "" if name == "0" else name
