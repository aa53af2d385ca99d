"""The agent as the first process of a pod: what it is told, the folder it works in, how it exits.

The manifests say everything in the environment. From it a folder of the job is made like the one of
a laptop, so that all below is the same there and here. A node is known by the pod's UID; where the
engine starts a container again in its pod, that is another node, `UID.2` and so on.

Exit statuses are for the engine: the one that the controller names at the job's end, 2 for what no
new pod would do better, and `REPLACE` for everything else.
"""

import asyncio
import math
import os
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.agent import interfaces, launcher, probes, processes
from holdfast.agent.agent import Agent
from holdfast.agent.environment import without_engine
from holdfast.agent.log_copies import LogCopies
from holdfast.agent.node import AgentOptions, NodeIdentity
from holdfast.agent.notes import note
from holdfast.agent.pod_log import PodLog, unblock
from holdfast.checkpoint.settings import PLACES
from holdfast.checkpoint.tiers import Tier
from holdfast.errors import Error, ExitStatus
from holdfast.spec import Job
from holdfast.spec.cluster import fatal_status
from holdfast.spec.load import job_as_written, located

RAY = "rayjob"  # the engine that runs an entrypoint once, and ends workers itself
REPLACE = 143  # let a new pod take this one's place
JOB_FILE = "/etc/holdfast/job/job.yaml"
STORE_PORTS = 16  # from `network.ports.stores` on
ATTEMPTS_KEPT = 20  # of which the pod holds logs; what a pod holds is limited
NEEDED = (
    *("HOLDFAST_JOB", "HOLDFAST_ENGINE", "HOLDFAST_CONTROLLER", "HOLDFAST_TOKEN_FILE"),
    *("HOLDFAST_NODE", "HOLDFAST_POD", "HOLDFAST_ADDRESS", "HOLDFAST_HOME"),
)


@dataclass(frozen=True)
class PodEnvironment:
    """What the environment says."""

    job: str
    engine: str
    host: str  # of the controller, resolved anew at each connection
    port: int
    token: Path
    uid: str
    name: str
    address: str
    home: Path
    job_file: Path

    @property
    def folder(self) -> Path:
        """Of the job."""
        return self.home / "jobs" / self.job

    @property
    def fatal(self) -> int:
        """Exit status that tells this engine to give up."""
        return fatal_status(self.engine)


def run(environ: Mapping[str, str], *, wait: bool) -> int:
    """Be the agent of this pod, or (`wait`) only wait for the job's end; the exit status.

    Raises `Error` for what a new pod would not do better.
    """
    pod = described(environ)
    job = job_in(pod.job_file, Path.cwd()).model_copy(update={"name": pod.job})
    try:
        _make_folder(pod, job)
        if wait:
            patience_s = math.inf if pod.engine == RAY else job.recovery.controller_absence_s
            return launcher.wait(pod.folder, pod.fatal, REPLACE, patience_s)
        asyncio.run(_live(pod, job, environ))
    except Error as error:
        if error.status is ExitStatus.USAGE:
            raise
        note(f"agent: {error}")
    except Exception:
        note(f"agent: {traceback.format_exc()}")
    return REPLACE


async def _live(pod: PodEnvironment, job: Job, environ: Mapping[str, str]) -> None:
    """Until the node ends, and then the process: a name server that does not answer, asked in a
    thread, must not hold that up."""
    for fd in (1, 2):
        unblock(fd)
    processes.adopt_orphans()
    first = job.network.ports.stores
    options = AgentOptions(
        let_go=REPLACE,
        broken=REPLACE,
        pod_log=PodLog(1),
        store_ports=tuple(range(first, first + STORE_PORTS)),
        storage_port=job.network.ports.storage,
        attempts_kept=ATTEMPTS_KEPT,
        draws=False,  # the controller does: nobody else reads this folder
    )
    me = NodeIdentity(next_life(pod), pod.name, pod.address, pod.folder)
    agent = Agent(me, job, worker_environment(pod, environ), options)
    await probes.serve(pod.address, job.network.ports.agent, agent.health)
    status = await _copied(agent, pod, environ.get(PLACES[Tier.SHARED]))
    if status == 0 and pod.engine == RAY:
        # KubeRay makes a worker anew that has ended, and submits nothing before all are ready, so
        # this one stays as it is until the RayCluster goes.
        await agent.leaving.asked.wait()
    os._exit(status)


async def _copied(agent: Agent, pod: PodEnvironment, shared: str | None) -> int:
    """The agent's life, its logs copied to the `shared` folder if there is one."""
    if not shared:
        return await agent.live()
    copies = LogCopies(pod.folder / "logs", Path(shared, "logs", pod.name))
    copying = asyncio.create_task(copies.run())
    status = await agent.live()
    copying.cancel()
    await copies.finish()
    return status


# ── what it is told ──


def described(environ: Mapping[str, str]) -> PodEnvironment:
    """What the manifests said. Raises `Error` pod-incomplete."""
    if missing := [name for name in NEEDED if not environ.get(name)]:
        raise _incomplete(f"{', '.join(missing)} not set")
    host, _, port = environ["HOLDFAST_CONTROLLER"].rpartition(":")
    if not host or not port.isdecimal():
        told = environ["HOLDFAST_CONTROLLER"]
        raise _incomplete(f"HOLDFAST_CONTROLLER is {told!r}, not HOST:PORT")
    return PodEnvironment(
        job=environ["HOLDFAST_JOB"],
        engine=environ["HOLDFAST_ENGINE"],
        host=host.strip("[]"),
        port=int(port),
        token=Path(environ["HOLDFAST_TOKEN_FILE"]),
        uid=environ["HOLDFAST_NODE"],
        name=environ["HOLDFAST_POD"],
        address=environ["HOLDFAST_ADDRESS"],
        home=Path(environ["HOLDFAST_HOME"]).absolute(),
        job_file=Path(environ.get("HOLDFAST_JOB_FILE", JOB_FILE)),
    )


def job_in(file: Path, folder: Path) -> Job:
    """The job of a container that starts in `folder`, its paths absolute. Raises `Error`.

    The container's working folder has the job's `workdir` in it already, and `script` does not
    start there but where `workdir` does.
    """
    job = job_as_written(file)
    inner = Path(job.workdir).parts
    if job.image is not None and job.image.workdir is not None:
        folder = Path(job.image.workdir)
    elif inner and not Path(job.workdir).is_absolute() and folder.parts[-len(inner) :] == inner:
        folder = folder.parents[len(inner) - 1]
    return located(job, folder)


def worker_environment(pod: PodEnvironment, environ: Mapping[str, str]) -> dict[str, str]:
    """What workers find besides what the job says: not the engine's own idea of the job, and the
    interface of the pod's address unless somebody has named another."""
    return {**interfaces.socket_variables(pod.address), **without_engine(environ)}


def next_life(pod: PodEnvironment) -> str:
    """The node's id; each call counts as a new start of the container."""
    path = pod.home / "lives" / pod.uid
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(b".")
    count = path.stat().st_size
    return pod.uid if count == 1 else f"{pod.uid}.{count}"


# ── the folder ──


def _make_folder(pod: PodEnvironment, job: Job) -> None:
    """The job's folder as agents know it. Raises `OSError`."""
    folder = pod.folder
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "job.json").write_text(job.model_dump_json(), encoding="utf-8")
    address = msgspec.json.encode({"host": pod.host, "port": pod.port})
    (folder / "controller.json").write_bytes(address)
    token = folder / "token"
    token.unlink(missing_ok=True)
    token.symlink_to(pod.token.absolute())


def _incomplete(why: str) -> Error:
    return Error(
        "pod-incomplete",
        "this is not a pod of a job",
        why=why,
        help="holdfast render job.yaml   (shows the environment that a pod needs)",
    )
