"""Which framework runs on which engine: operators know one each, agents all of them."""

from collections.abc import Iterator
from typing import get_args

from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.errors import Error
from holdfast.spec.cluster import ENGINES, Engine, Mode
from holdfast.spec.job import Framework

MANAGED: tuple[Framework, ...] = get_args(Framework)
GENERAL: tuple[Framework, ...] = ("pytorch", "command")
PLAIN: dict[Engine, tuple[Framework, ...]] = {
    "pods": GENERAL,
    "job": GENERAL,
    "cronjob": GENERAL,
    "jobset": GENERAL,
    "pytorchjob": ("pytorch",),
    "tfjob": ("tensorflow",),
    "jaxjob": ("jax",),
    "xgboostjob": ("xgboost",),
    "paddlejob": ("paddle",),
    "mpijob": ("mpi", "command"),
    "rayjob": GENERAL,
    "trainjob": (*GENERAL, "jax", "xgboost", "mpi"),
    "volcano": (*GENERAL, "mpi"),
}


def known(engine: Engine, mode: Mode) -> tuple[Framework, ...]:
    """Frameworks that this engine can start in this mode."""
    return MANAGED if mode == "managed" else PLAIN[engine]


def problems(request: Request) -> Iterator[Error]:
    """The framework does not fit the engine."""
    wanted = request.job.trains_with
    if request.managed and wanted == "mpi" and request.job.mpi.implementation == "Intel":
        yield Error(
            "engine-unsupported",
            "mpi.implementation: agents do not support Intel",
            why="they start OpenMPI and MPICH",
            help="use `--mode plain` on mpijob, or set mpi.implementation: MPICH, whose library "
            "Intel MPI is compatible with",
        )
    if wanted in known(request.engine, request.mode):
        return
    able = [engine for engine in ENGINES if wanted in PLAIN[engine]]
    plain = f"`--mode plain` on {', '.join(able)}"
    yield Error(
        "engine-unsupported",
        f"framework: {wanted} does not run on {request.engine} in {request.mode} mode",
        why=_why(request),
        help=f"use any engine in managed mode, or {plain}",
    )


def _why(request: Request) -> str:
    kinds = " and ".join(PLAIN[request.engine])
    return f"without agents, {request.engine} starts {kinds} only"
