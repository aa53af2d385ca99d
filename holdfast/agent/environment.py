"""The environment of workers, as torchrun would give it, and what they run. Pure functions.

Everything that does not depend on the rank is set when the forkserver starts, because libraries
read it while they load (OMP_NUM_THREADS, PYTHONPATH, CUDA_VISIBLE_DEVICES). The rest comes with the
rank.
"""

import ast
import importlib.machinery
import re
from collections.abc import Mapping
from pathlib import Path

from holdfast.agent.wire import Kind, Program
from holdfast.messages import Start
from holdfast.spec import Job

# The distributed stack imports these lazily: the first DDP() alone would load 822 modules.
TORCH_PRELOAD = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch._dynamo",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "torch.utils.data",
    "holdfast.train",
)
WITH_RANK = frozenset(
    (
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
        *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE"),
        *("HOLDFAST_ATTEMPT", "HOLDFAST_REDO_UNTIL", "HOLDFAST_CONTROL_FD"),
        "HOLDFAST_RESTORE_BELOW",
        *("HOLDFAST_PAGE_FD", "HOLDFAST_ARENA_FD", "HOLDFAST_BOARD_FD"),
    )
)

# What engines tell the processes of a pod about ranks and peers; ours are others.
ENGINE_PREFIXES = ("PET_", "OMPI_", "PMIX_", "PMI_", "PADDLE_", "VC_")
ENGINE_NAMES = frozenset(("TF_CONFIG", "COORDINATOR_ADDRESS", "COORDINATOR_PORT")) | frozenset(
    ("NUM_PROCESSES", "PROCESS_ID", "WORKER_ADDRS", "WORKER_PORT", "VK_TASK_INDEX")
)


def worker_count(job: Job, gpu_count: int) -> int:
    """Workers of one node: as asked, or one per GPU, at least one."""
    return max(1, gpu_count) if job.workers_per_node == "auto" else job.workers_per_node


def without_engine(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a pod without what its engine says about ranks and peers."""
    return {
        name: value
        for name, value in environ.items()
        if name not in ENGINE_NAMES and not name.startswith(ENGINE_PREFIXES)
    }


def gpu_count(environ: Mapping[str, str], devices: Path = Path("/dev")) -> int:
    """GPUs a worker could use, without loading any GPU library."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return sum(1 for entry in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", entry.name))


def node_environment(
    job: Job, node: str, workers: int, environ: Mapping[str, str], storage: Mapping[str, str]
) -> dict[str, str]:
    """What all workers of the node share; `storage` is what they are told of checkpoints.

    Variables that come with a rank are taken out."""
    env = {k: v for k, v in environ.items() if k not in WITH_RANK}
    if workers > 1:
        env.setdefault("OMP_NUM_THREADS", "1")
    ours = {
        "HOLDFAST_JOB": job.name,
        "HOLDFAST_NODE": node,
        "HOLDFAST_SNAPSHOT_EVERY": str(job.snapshots.every_steps),
        "HOLDFAST_SNAPSHOT_MAX_OVERHEAD": str(job.snapshots.max_overhead),
    }
    return env | job.env | ours | dict(storage)


def rank_environment(job: Job, start: Start, local_rank: int) -> dict[str, str]:
    """What a worker gets with its rank."""
    rank = start.node_rank * start.workers_per_node + local_rank
    world_size = start.node_count * start.workers_per_node
    values: dict[str, object] = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "GROUP_RANK": start.node_rank,
        "ROLE_RANK": rank,
        "ROLE_NAME": "default",
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": start.workers_per_node,
        "GROUP_WORLD_SIZE": start.node_count,
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": start.store.host,
        "MASTER_PORT": start.store.port,
        "TORCHELASTIC_RUN_ID": job.name,
        "TORCHELASTIC_RESTART_COUNT": start.restarts,
        "TORCHELASTIC_MAX_RESTARTS": job.recovery.restarts,
        "TORCHELASTIC_USE_AGENT_STORE": start.store.hosted,
        "HOLDFAST_ATTEMPT": start.attempt,
        "HOLDFAST_REDO_UNTIL": start.redo_until,
    }
    if start.restore_below is not None:
        values["HOLDFAST_RESTORE_BELOW"] = start.restore_below
    return {name: str(value) for name, value in values.items()}


def program_of(job: Job) -> Program:
    """What the workers run."""
    return Program(
        script=job.script,
        module=job.module,
        command=job.command or (),
        args=job.args,
        workdir=job.workdir,
    )


def kinds_of(job: Job, instrumented: bool) -> tuple[Kind, Kind | None]:
    """How a worker with a rank is made, and how a warm one; None where there are none."""
    if job.command is not None:
        return Kind.EXEC, None
    if job.warm.mode == "off":
        return Kind.RUN, None
    ahead = job.warm.mode == "script" or (job.warm.mode == "auto" and instrumented)
    return Kind.RUN, Kind.RUN if ahead else Kind.WAIT


def preload_of(job: Job) -> tuple[str, ...]:
    """Modules the forkserver loads ahead."""
    if job.warm.mode == "off":
        return ()
    return (TORCH_PRELOAD if job.uses_torch else ()) + job.warm.preload


def is_instrumented(program: Program) -> bool:
    """Whether the source of the script or module imports `holdfast.train`; it is not run."""
    source = _source(program)
    if source is None:
        return False
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    return any(_imports_train(found) for found in ast.walk(tree))


def _imports_train(found: ast.AST) -> bool:
    match found:
        case ast.Import(names=names):
            return any((alias.name + ".").startswith("holdfast.train.") for alias in names)
        case ast.ImportFrom(module="holdfast", names=names):
            return any(alias.name == "train" for alias in names)
        case ast.ImportFrom(module=str(module), level=0):
            return (module + ".").startswith("holdfast.train.")
        case _:
            return False


def _source(program: Program) -> Path | None:
    if program.script is not None:
        return Path(program.workdir, program.script)
    return _module_source(program.module, program.workdir) if program.module else None


def _module_source(module: str, workdir: str) -> Path | None:
    """The file `python -m module` would run, found without importing anything."""
    path: list[str] | None = [workdir]
    spec = None
    for part in module.split("."):
        spec = importlib.machinery.PathFinder.find_spec(part, path)
        if spec is None and path == [workdir]:  # not in the folder: an installed package
            spec = importlib.machinery.PathFinder.find_spec(part)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    assert spec is not None
    if path:
        spec = importlib.machinery.PathFinder.find_spec("__main__", path)
    return Path(spec.origin) if spec is not None and spec.origin else None
