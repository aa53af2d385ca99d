"""Which framework runs on which engine: operators know one each, agents know processes."""

from collections.abc import Iterator

from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.errors import Error
from holdfast.spec.cluster import ENGINES, Engine, Mode
from holdfast.spec.job import Framework

MANAGED: tuple[Framework, ...] = ("pytorch", "command")
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
    "trainjob": (*GENERAL, "jax", "xgboost", "mpi"),
    "volcano": (*GENERAL, "mpi"),
}


def known(engine: Engine, mode: Mode) -> tuple[Framework, ...]:
    """Frameworks that this engine can start in this mode."""
    return MANAGED if mode == "managed" else PLAIN[engine]


def problems(request: Request) -> Iterator[Error]:
    """The framework does not fit the engine."""
    wanted = request.job.trains_with
    if wanted in known(request.engine, request.mode):
        return
    able = [engine for engine in ENGINES if wanted in PLAIN[engine]]
    plain = f"`--mode plain` on {', '.join(able)}"
    everywhere = "any engine in managed mode, or " if wanted in MANAGED else ""
    yield Error(
        "engine-unsupported",
        f"framework: {wanted} does not run on {request.engine} in {request.mode} mode",
        why=_why(request),
        help=f"use {everywhere}{plain}",
    )


def _why(request: Request) -> str:
    if request.managed:
        return "agents support only PyTorch and plain programs"
    kinds = " and ".join(PLAIN[request.engine])
    return f"without agents, {request.engine} starts {kinds} only"
