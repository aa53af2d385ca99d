"""The environment of workers, as torchrun would give it, and what they run. Pure functions.

Everything that does not depend on the rank is set when the forkserver starts, because libraries
read it while they load (OMP_NUM_THREADS, PYTHONPATH, CUDA_VISIBLE_DEVICES). The rest comes with the
rank.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast import devices, dimensions, dumped_stacks, flight_recorder, rank
from holdfast.agent.fork_protocol import ChildKind, Preload, Program
from holdfast.agent.frameworks import variables
from holdfast.messages import Assignment, Start
from holdfast.spec import Job
from holdfast.spec.load import code_folder, script_in
from holdfast.versions import FIRST, Version

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
WITH_RANK = rank.VARIABLES | {
    *("HOLDFAST_CONTROL_FD", "HOLDFAST_PAGE_FD", "HOLDFAST_ARENA_FD", "HOLDFAST_STORAGE_PAGE_FD"),
    *(flight_recorder.VARIABLE, dumped_stacks.VARIABLE, "HOLDFAST_PARKING_FD"),
}
PARKING_MARGIN_S = 5.0

# What engines tell the processes of a pod about ranks and peers; ours are others.
ENGINE_PREFIXES = ("PET_", "OMPI_", "PMIX_", "PMI_", "PADDLE_", "VC_")
ENGINE_NAMES = frozenset(("TF_CONFIG", "COORDINATOR_ADDRESS", "COORDINATOR_PORT")) | frozenset(
    ("NUM_PROCESSES", "PROCESS_ID", "WORKER_ADDRS", "WORKER_PORT", "VK_TASK_INDEX")
)


def worker_count(job: Job, environ: Mapping[str, str]) -> int:
    """Workers of one node: as asked, or one per GPU, at least one. A worker of TensorFlow uses all
    GPUs of its node."""
    if job.trains_with == "tensorflow" and job.workers_per_node == "auto":
        return 1
    if job.workers_per_node != "auto":
        return job.workers_per_node
    return max(1, devices.count(job.device, {**environ, **job.env}))


def without_engine(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a pod without what its engine says about ranks and peers."""
    return {
        name: value
        for name, value in environ.items()
        if name not in ENGINE_NAMES and not name.startswith(ENGINE_PREFIXES)
    }


def node_environment(
    job: Job, node: str, workers: int, environ: Mapping[str, str], storage: Mapping[str, str]
) -> dict[str, str]:
    """What all workers of the node share; `storage` is what they are told of checkpoints.

    Variables that come with a rank are taken out."""
    env = {k: v for k, v in environ.items() if k not in WITH_RANK}
    if workers > 1:
        env.setdefault("OMP_NUM_THREADS", "1")
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")  # as torchrun does
    # torch.cuda.is_available() would load the driver, and no fork of that process could use a GPU
    env.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if job.instrument == "auto":
        env.setdefault(flight_recorder.SIZE, str(flight_recorder.ENTRIES))
    ours = {
        "HOLDFAST_JOB": job.name,
        "HOLDFAST_NODE": node,
        "HOLDFAST_SNAPSHOT_EVERY": str(job.snapshots.every_steps),
        "HOLDFAST_SNAPSHOT_MAX_OVERHEAD": str(job.snapshots.max_overhead),
        "HOLDFAST_ON_NAN": job.recovery.on_nan,
        "HOLDFAST_SKIP_BATCHES": str(job.recovery.skip_batches),
        "HOLDFAST_CHECK_REPLICAS": str(job.recovery.check_replicas_every),
    }
    ours |= devices.variables(job.device, job.trains_with)
    ours |= _elastic(job) | _parking(job) | _replicas(job) | _layout(job)
    ours |= variables.of_node(job)
    return env | job.env | ours | dict(storage)


def _layout(job: Job) -> dict[str, str]:
    """How the ranks divide the model, where the job says so."""
    if job.parallel is None:
        return {}
    return {dimensions.VARIABLE: dimensions.told(job.parallel.layout)}


def compile_caches(compiled: Path) -> dict[str, str]:
    """Where compiled code is kept: beside the jobs of this node, so that it outlives attempts and
    jobs. Inductor keeps there what AOTAutograd and the C++ compiler have made, too; what is found
    is looked up by content. Defaults: whoever sets these variables is heard."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(compiled / "inductor"),
        "TRITON_CACHE_DIR": str(compiled / "triton"),
        "CUDA_CACHE_PATH": str(compiled / "cuda"),
        "JAX_COMPILATION_CACHE_DIR": str(compiled / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",  # a restart waits for small ones, too
    }


def _parking(job: Job) -> dict[str, str]:
    """How long a worker whose peers are gone waits to be told so: longer than it takes to find out
    that a node is lost. Which workers those are, and whether they may take another rank."""
    if not job.recovery.keeps_processes:
        return {}
    patience_s = job.recovery.heartbeat_timeout_s + PARKING_MARGIN_S
    told = {"HOLDFAST_PARKING_PATIENCE_S": f"{patience_s:g}"}
    match job.recovery.mode:
        case "auto":
            told["HOLDFAST_PARKING_IF_DECLARED"] = "1"
        case "replicas":
            told["HOLDFAST_PARKING_MOVES"] = "1"
    return told


def _replicas(job: Job) -> dict[str, str]:
    """What replicas are, and how those that train by themselves are brought together."""
    groups = job.recovery.replicas
    if groups is None:
        return {}
    nodes = {"HOLDFAST_REPLICA_NODES": str(groups.nodes_each)}
    if not groups.sync_every:
        return nodes
    told = {"every": groups.sync_every, "lr": groups.outer_lr, "momentum": groups.outer_momentum}
    return nodes | {"HOLDFAST_OUTER_STEPS": msgspec.json.encode(told).decode()}


def _elastic(job: Job) -> dict[str, str]:
    """What a script has to know where the number of ranks may change."""
    elastic = job.elasticity
    if elastic is None:
        return {}
    told = {"nodes": job.nodes.count, "batch": elastic.batch, "warmup_steps": elastic.warmup_steps}
    return {"HOLDFAST_ELASTIC": msgspec.json.encode(told).decode()}


def rank_environment(job: Job, start: Start, local_rank: int) -> dict[str, str]:
    """What a worker gets with its rank."""
    number = start.node_rank * start.workers_per_node + local_rank
    world_size = start.node_count * start.workers_per_node
    values: dict[str, object] = {
        "RANK": number,
        "LOCAL_RANK": local_rank,
        "GROUP_RANK": start.node_rank,
        "ROLE_RANK": number,
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
    if start.committed is not None:
        values["HOLDFAST_RESTORE_COMMITTED"] = start.committed
    if start.restore_below is not None:
        values["HOLDFAST_RESTORE_BELOW"] = start.restore_below
    if start.bad_steps:
        values["HOLDFAST_BAD_STEPS"] = msgspec.json.encode(start.bad_steps).decode()
    if start.skips:
        values["HOLDFAST_SKIPS"] = msgspec.json.encode(start.skips).decode()
    return {name: str(value) for name, value in values.items()}


def assignment(job: Job, start: Start, local_rank: int) -> Assignment:
    """What a worker of this node is told."""
    return Assignment(
        attempt=start.attempt,
        rank=start.node_rank * start.workers_per_node + local_rank,
        local_rank=local_rank,
        world_size=start.node_count * start.workers_per_node,
        redo_until=start.redo_until,
        env=rank_environment(job, start, local_rank),
    )


def program_of(job: Job, version: Version = FIRST, code: Path | None = None) -> Program:
    """What the workers run; the code of a version lies in `code`, if it has its own.

    The working folder belongs to the code where the job says what its code is, and for a command,
    which has nothing else to find it by. Elsewhere scripts read and write what is not code there.
    """
    origin = root = code_folder(job)
    script, workdir = job.script, job.workdir
    if code is not None:
        root = code.resolve()
        script = str(root / script_in(job)) if script is not None else None
        if job.code is not None or job.command is not None:
            workdir = str(root / os.path.relpath(job.workdir, origin))
    args = version.args(job.args)
    command = job.command or ()
    if job.trains_with == "mpi":
        command, args = variables.by_mpirun(job, script, args), ()
        script = None
    return Program(
        script=script,
        module=None if job.trains_with == "mpi" else job.module,
        command=command,
        args=args,
        workdir=workdir,
        instrument=job.instrument == "auto",
        integrate=job.integrate == "auto",
        env=version.env,
        root=str(root),
        origin=str(origin),
    )


def kinds_of(job: Job, instrumented: bool) -> tuple[ChildKind, ChildKind | None]:
    """How a worker with a rank is made, and how a warm one; None where there are none."""
    if job.command is not None or job.trains_with == "mpi":
        return ChildKind.EXEC, None
    if job.warm.mode == "off":
        return ChildKind.RUN, None
    ahead = job.warm.mode == "script" or (job.warm.mode == "auto" and instrumented)
    return ChildKind.RUN, ChildKind.RUN if ahead else ChildKind.WAIT


def preload_of(job: Job) -> Preload:
    """What the forkserver loads ahead; `modules` may turn out to be unfit for that."""
    if job.warm.mode == "off":
        return Preload()
    framework = TORCH_PRELOAD if job.uses_torch else variables.PRELOAD.get(job.trains_with, ())
    modules, layout = job.warm.preload, job.parallel
    if job.uses_torch and layout is not None:
        framework += ("torch.distributed.pipelining",) if layout.pp != 1 else ()
        modules += ("holdfast.train.compiler_ahead",) if layout.compile else ()
    return Preload(framework=framework, modules=modules, imports=job.warm.preload_imports)
