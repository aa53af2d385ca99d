"""The engine whose nodes are actors of a Ray cluster.

One placement group holds a bundle for every node and spare. An actor that is started anew takes
whatever bundle of the group is free; where a machine is lost, Ray moves its bundles to another one,
and the new actor waits for that. A job that is scaled up beyond the group gets another one. Groups
and actors are detached and live in a namespace of the job, so that they outlive their controller,
and the next one finds them by name.
"""

import asyncio
import contextlib
import hashlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import get_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from holdfast.drivers.fencing import KILL_TIMEOUT_S, Fenced, fence_job, fence_nodes
from holdfast.drivers.nodes import new_node
from holdfast.drivers.ray import room
from holdfast.drivers.ray.actor import AgentActor, Placed
from holdfast.errors import Error
from holdfast.spec import Job

THREADS = 3  # of an actor: one waits for the agent's end, one kills, one is asked
ANSWER_S = 5.0
WORDS_MAX = 300
UNAVAILABLE_S = 1.0  # between two questions to an actor that Ray does not reach
FENCE_S = KILL_TIMEOUT_S + 20.0  # Ray may have to start a process for it
PASSED_ON = "HOLDFAST_"  # variables of this command that agents get as well


def namespace_of(folder: Path) -> str:
    """Of the job in this folder, in which groups are found by their names."""
    return f"holdfast-{folder.name}-{_mark(os.fsencode(folder.absolute()))}"


def own_name(folder: Path) -> str:
    """Of the actors and groups of the job in this folder, and of no other: containers that share
    nothing but the cluster have their folders at the same path. Raises `OSError`."""
    return f"{namespace_of(folder)}-{_mark((folder / 'token').read_bytes())}"


def _mark(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def connect(address: str, folder: Path) -> str:
    """Connect this process to a Ray cluster; its address. Raises `Error` ray-unreachable."""
    if not ray.is_initialized():
        try:
            _require_listener(address)
            ray.init(
                address=address,
                namespace=namespace_of(folder),
                log_to_driver=False,
                logging_level="error",
            )
        except (OSError, RuntimeError, ValueError, RayError) as error:
            raise _unreachable(address, error) from error
    found: str = ray.get_runtime_context().gcs_address
    return found


def _unreachable(address: str, error: Exception) -> Error:
    """All that Ray says: where versions differ, they stand below each other."""
    why = " ".join(str(error).split())[:WORDS_MAX]
    if "version mismatch" in why.lower():
        return Error(
            "ray-unreachable",
            f"the Ray cluster at {address} has other versions than this machine",
            why=why,
            help="install Holdfast and Ray on all machines with the Python and Ray of the cluster",
        )
    return Error(
        "ray-unreachable",
        f"there is no Ray cluster at {address}",
        why=why or type(error).__name__,
        help="ray status   (this machine has to belong to the cluster: ray start)",
    )


def _require_listener(address: str) -> None:
    """Ray itself tries for minutes. Raises `OSError`."""
    named = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    host, _, port = named.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=ANSWER_S).close()


def reached(address: str, folder: Path, *, stay: bool) -> str:
    """The address of the cluster that this means; whether this process stays connected. Raises
    `Error` ray-unreachable."""
    found = connect(address, folder)
    if not stay:
        ray.shutdown()
    return found


@contextlib.contextmanager
def connected(folder: Path, address: str) -> "Iterator[RayActors]":
    """While this process is connected to the cluster. Raises `Error` ray-unreachable."""
    found = connect(address, folder)
    try:
        yield RayActors(folder, found)
    finally:
        ray.shutdown()


def bundle_of(job: Job) -> dict[str, float]:
    """What one node takes of its machine: Ray's names and amounts."""
    from holdfast.spec.quantities import amount

    asked = job.resources
    per_node = 1 if job.workers_per_node == "auto" else job.workers_per_node
    bundle = {"CPU": float(amount(asked.cpu)) if asked.cpu is not None else float(per_node)}
    if asked.gpus:
        bundle["GPU"] = float(asked.gpus)
    if asked.memory is not None:
        bundle["memory"] = float(amount(asked.memory))
    return {**bundle, **job.ray.resources}


class RayAgent:
    """One agent below an actor, watched until it ends."""

    def __init__(self, node: str, name: str, actor: Any, group: str = "") -> None:
        self.node, self.name, self.actor = node, name, actor
        self.ours = bool(group)
        self.group = group
        self.ended = asyncio.Event()
        self.begun: Placed | None = None
        self._life: asyncio.Task[None] | None = None

    def does(self) -> str:
        """Its machine would have to be asked."""
        return ""

    def watch(
        self, on_begin: Callable[[], None], on_end: Callable[["RayAgent", str], None]
    ) -> None:
        """Call `on_begin` once Ray has found room for it, `on_end` with how it ended."""
        self._life = asyncio.create_task(self._live(on_begin, on_end))

    async def _live(
        self, on_begin: Callable[[], None], on_end: Callable[["RayAgent", str], None]
    ) -> None:
        try:
            self.begun = Placed(*await self.actor.start.remote(self.group))
            self.group = self.begun.group
            on_begin()
            how = await self._ended()
        except RayError as error:
            cause = getattr(error, "cause", None)
            how = str(cause) if isinstance(cause, OSError) else f"Ray: {_in_a_line(error)}"
        self.ended.set()
        on_end(self, how)

    async def _ended(self) -> str:
        while True:
            try:
                return str(await self.actor.wait.remote())
            except ActorUnavailableError:  # it may live: whether its agent does is heard from that
                await asyncio.sleep(UNAVAILABLE_S)


class RayActors:
    """Starts, finds and ends agents of one job on Ray."""

    shares_processors = False

    def __init__(self, folder: Path, address: str) -> None:
        self._folder, self._address = folder, address
        self._job = Job.model_validate_json((folder / "job.json").read_bytes())
        self._bundle = bundle_of(self._job)
        self._agents: dict[str, RayAgent] = {}
        self._own_name = own_name(folder)
        self.host: str = ray.util.get_node_ip_address()

    # ── agents ──

    def living(self) -> list[RayAgent]:
        """Actors of the job that live, whoever started them."""
        for found in ray.util.list_named_actors(all_namespaces=True):
            node = found["name"]
            if found["namespace"] != self._own_name or node in self._agents:
                continue
            with contextlib.suppress(ValueError):  # it has died meanwhile
                actor = ray.get_actor(node, self._own_name)
                self._agents[node] = RayAgent(node, node.rpartition("-")[0], actor)
        return list(self._agents.values())

    def start(self, name: str) -> RayAgent:
        """Ask Ray for an actor; it begins once there is room."""
        node, group = new_node(name), self._group()
        told = {k: v for k, v in os.environ.items() if k.startswith(PASSED_ON)}
        told["RAY_ADDRESS"] = self._address  # a script that calls `ray.init()` joins this cluster
        others = {k: v for k, v in self._bundle.items() if k not in ("CPU", "GPU", "memory")}
        options = {
            "name": node,
            "namespace": self._own_name,
            "lifetime": "detached",
            "max_concurrency": THREADS,
            "num_cpus": self._bundle["CPU"],
            "num_gpus": self._bundle.get("GPU", 0),
            "memory": self._bundle.get("memory"),
            "resources": others or None,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(get_placement_group(group)),
        }
        try:
            actor = ray.remote(AgentActor).options(**options).remote(
                str(self._folder), node, name, told
            )  # fmt: skip
        except RayError as error:
            raise OSError(0, _in_a_line(error)) from error
        self._agents[node] = RayAgent(node, name, actor, group)
        return self._agents[node]

    def see_room(self, wanted: int) -> None:
        """See that there are bundles for so many nodes: at first, and when the job is scaled up."""
        groups = self._groups()
        missing = wanted - sum(len(group["bundles"]) for group in groups.values())
        if missing > 0:
            placement_group(
                [self._bundle] * missing,
                strategy=self._job.ray.strategy,
                name=f"{self._own_name}-{len(groups)}",
                lifetime="detached",
            )

    def _group(self) -> str:
        """The one with the most bundles that no agent of ours has. Where a machine was lost, one is
        free as soon as Ray has found another machine for it."""
        free = {name: len(group["bundles"]) for name, group in self._groups().items()}
        for agent in list(self._agents.values()):
            if not agent.ended.is_set() and agent.group in free:
                free[agent.group] -= 1
        return max(sorted(free), key=lambda name: free[name])

    def _groups(self) -> dict[str, dict[str, Any]]:
        """Groups of this job that are not removed, by their names."""
        groups = (g for g in placement_group_table().values() if g["state"] != "REMOVED")
        return {g["name"]: g for g in groups if g["name"].startswith(f"{self._own_name}-")}

    # ── ends ──

    def fence(self, nodes: set[str]) -> Fenced:
        """Kill every process of these nodes, each on its own machine, and then their actors."""
        ended = [self._fence(agent) for node in nodes if (agent := self._agents.get(node))]
        stuck = tuple(one for fenced in ended for one in fenced.stuck)
        return Fenced(sum(fenced.killed for fenced in ended), stuck)

    def _fence(self, agent: RayAgent) -> Fenced:
        fenced = self._killed_by_its_actor(agent)
        ray.kill(agent.actor)
        if fenced is None and agent.begun is not None:
            fenced = self._killed_on(agent.begun.ray_node, agent.node)
        self._agents.pop(agent.node, None)
        return fenced or Fenced(0, ())

    def _killed_by_its_actor(self, agent: RayAgent) -> Fenced | None:
        if agent.begun is None and agent.ours:
            return Fenced(0, ())  # its actor waits for room, or dies with what it is starting
        try:
            return Fenced(*ray.get(agent.actor.fence.remote(), timeout=FENCE_S))
        except RayError:
            return None

    def _killed_on(self, machine: str, node: str) -> Fenced | None:
        """Its actor was killed: what is left of the node is for another process there to kill. A
        machine that Ray has lost has killed what Ray ran there, or is as good as off."""
        there = NodeAffinitySchedulingStrategy(machine, soft=False)
        task = ray.remote(fence_nodes).options(num_cpus=0, scheduling_strategy=there)
        try:
            return Fenced(*ray.get(task.remote(self._folder, {node}), timeout=FENCE_S))
        except RayError:
            return None

    def clear(self, spared: frozenset[str] = frozenset()) -> Fenced:
        """Kill everything of the job but what is `spared`."""
        fenced = self.fence({agent.node for agent in self.living()} - spared)
        here = fence_job(self._folder, spared=spared)
        if not spared:
            self.give_back()
        return Fenced(fenced.killed + here.killed, (*fenced.stuck, *here.stuck))

    def give_back(self) -> None:
        """Remove what was reserved."""
        for name in self._groups():
            with contextlib.suppress(ValueError):  # its removal is on the way
                remove_placement_group(get_placement_group(name))

    def waits_for(self) -> str | None:
        """How many nodes Ray has no room for, what they ask for, and what it has."""
        waiting = [agent.name for agent in list(self._agents.values()) if agent.begun is None]
        if not waiting:
            return None
        states = sorted({str(group["state"]).lower() for group in self._groups().values()})
        return (
            f"Ray, to place {len(waiting)} of its nodes ({', '.join(sorted(waiting)[:3])}); each "
            f"asks for {{{room.asked(self._bundle)}}}, {self._job.ray.strategy}; "
            f"free: {self._free()}; placement group: {', '.join(states)}"
        )

    def _free(self) -> str:
        """Of what nodes ask for."""
        try:
            alive = sum(bool(node["Alive"]) for node in ray.nodes())
            return room.free(
                self._bundle, ray.available_resources(), ray.cluster_resources(), alive
            )
        except RayError as error:
            return f"not known ({_in_a_line(error)})"


def _in_a_line(error: BaseException) -> str:
    """What Ray says, or of its many lines the one that gives the reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = [line for line in lines if " because " in line]
    return next(iter([*reasons, *lines]), type(error).__name__)[:WORDS_MAX]
