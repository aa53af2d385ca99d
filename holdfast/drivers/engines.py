"""What supplies the nodes of a job whose folder they share with its controller.

Processes of this machine, or actors of a Ray cluster over a file system that all of its machines
see. `opened` says which it is for the job in a folder: the file `ray.json` there is the difference.
All else (driver, journal, logs, every command) is the same for both.
"""

import asyncio
import contextlib
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec

from holdfast.drivers.fencing import Fenced, fence_job, fence_nodes, living
from holdfast.drivers.nodes import AgentProcess, start_agent
from holdfast.errors import Error
from holdfast.files import read_plain, write_durable

HERE = "127.0.0.1"
RAY_FILE = "ray.json"


class StartedAgent(Protocol):
    """One agent, watched until it ends."""

    node: str
    name: str
    ended: asyncio.Event

    @property
    def ours(self) -> bool:
        """Whether this very process has started it."""

    def does(self) -> str:
        """What its process does that says nothing; empty if nothing is known."""

    def watch(self, on_begin: Callable[[], None], on_end: Callable[[Any, str], None]) -> None:
        """Call `on_begin` once its process runs, `on_end` with how it ended as soon as it does."""


class NodeEngine(Protocol):
    """Starts, finds and ends agents."""

    @property
    def host(self) -> str:
        """The address of this machine that nodes know; the controller listens there."""

    @property
    def shares_processors(self) -> bool:
        """Whether all nodes run on this machine, so that one that starts slows the others down."""

    def living(self) -> list[Any]:
        """`StartedAgent`s of the job that live, whoever started them."""

    def see_room(self, wanted: int) -> None:
        """So many nodes are to run at once."""

    def start(self, name: str) -> Any:
        """A new `StartedAgent`. Raises `OSError`."""

    def fence(self, nodes: set[str]) -> Fenced:
        """Kill everything of these nodes; blocks, and is called in a thread."""

    def clear(self, spared: frozenset[str] = frozenset()) -> Fenced:
        """Kill everything of the job but what is known and `spared`; blocks."""

    def give_back(self) -> None:
        """The job is over: what was reserved for its nodes is free again."""

    def waits_for(self) -> str | None:
        """What nodes that were asked for wait for; None: they do not."""


class Processes:
    """Agents as processes of this machine, each with a session of its own."""

    host = HERE
    shares_processors = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def living(self) -> list[AgentProcess]:
        """Agents that a former controller of this job started."""
        found = living(self._folder)
        return [AgentProcess(node.node, node.name, node.pid, None) for node in found]

    def see_room(self, wanted: int) -> None:
        """A machine has room for any number of processes."""

    def start(self, name: str) -> AgentProcess:
        """Start one. Raises `OSError`."""
        return start_agent(self._folder, name)

    def fence(self, nodes: set[str]) -> Fenced:
        """Kill every process of these nodes."""
        return fence_nodes(self._folder, nodes)

    def clear(self, spared: frozenset[str] = frozenset()) -> Fenced:
        """Kill every process of the job's nodes."""
        return fence_job(self._folder, spared=spared)

    def give_back(self) -> None:
        """Nothing was reserved."""

    def waits_for(self) -> str | None:
        """For nothing: a process starts at once."""
        return None


class OnRay(msgspec.Struct, frozen=True):
    """Content of `ray.json`: the cluster that has the job's nodes."""

    address: str


def use_ray(folder: Path, address: str) -> None:
    """Have the job whose folder is being made run on this Ray cluster."""
    write_durable(folder / RAY_FILE, msgspec.json.encode(OnRay(address)))


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[NodeEngine]:
    """The engine of the job in this folder. Raises `Error` ray-unreachable."""
    try:
        ray = msgspec.json.decode(read_plain(folder / RAY_FILE), type=OnRay)
    except FileNotFoundError:
        yield Processes(folder)
        return
    with contextlib.ExitStack() as held:
        try:
            engine = held.enter_context(ray_engine().connected(folder, ray.address))
        except Error as error:
            if error.slug != "ray-unreachable":
                raise
            raise _for_a_job(folder, error) from error
        yield engine


def _for_a_job(folder: Path, error: Error) -> Error:
    """Its help also says how to end a job whose cluster will never answer again."""
    forced = f"holdfast stop --force {folder.name}   (if that cluster is gone for good)"
    return Error("ray-unreachable", error.what, why=error.why, help=f"{error.help}; or: {forced}")


def ray_engine() -> Any:
    """The module for Ray. Raises `Error` ray-missing."""
    try:
        return importlib.import_module("holdfast.drivers.ray.engine")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise Error(
            "ray-missing",
            "Ray is not installed",
            why="--on ray connects to a Ray cluster, with the version of Ray that it has",
            help="pip install 'holdfast[ray]'",
        ) from None


def clear(folder: Path) -> Fenced:
    """Kill everything of the job in this folder, wherever it runs."""
    with opened(folder) as engine:
        return engine.clear()
