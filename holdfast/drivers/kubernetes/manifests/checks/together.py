"""Settings that an engine honours one by one, but not together.

The table of limits knows single settings. Here stand the pairs: both would be rendered, and the
engine would do something else than what they say.
"""

from collections.abc import Iterator

from holdfast.drivers.kubernetes.manifests.checks.limits import LIMITS, told
from holdfast.drivers.kubernetes.manifests.engines import mpijob
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.errors import Error


def problems(request: Request) -> Iterator[Error]:
    """One problem for each pair."""
    yield from _time_limit(request)
    yield from _queue(request)
    yield from _variables(request)


def _time_limit(request: Request) -> Iterator[Error]:
    """A JobSet has no limit of its own, and that of the Job inside begins anew with it."""
    restarts = request.job.recovery.restarts
    limit = request.job.lifetime.time_limit_s
    if request.engine != "jobset" or request.managed or limit is None or not restarts:
        return
    yield Error(
        "settings-conflict",
        "lifetime.time_limit_s contradicts recovery.max_restarts",
        why=f"a JobSet recreates its Job at every restart, which resets the limit of {limit} s: "
        f"up to {restarts + 1} times as long in total",
        help="set recovery.max_restarts: 0, or use --engine job or trainjob, which count the time "
        "across restarts; with Kueue, scheduling.kueue.max_time_s does too",
    )


def _queue(request: Request) -> Iterator[Error]:
    job = request.job
    if request.engine != "mpijob" or job.kubernetes.mpi_version != "v1":
        return
    if job.scheduling.kueue is not None:
        others = told(frozenset(p for p in LIMITS["scheduling.kueue"].where if p[0] != "mpijob"))
        yield Error(
            "engine-unsupported",
            "scheduling.kueue: Kueue does not support MPIJobs of version v1",
            why="Kueue suspends only those of v2beta1; this one would bypass the queue",
            help=f"use --mpi-version v2beta1 where the mpi-operator serves it, or {others}",
        )


def _variables(request: Request) -> Iterator[Error]:
    """Ranks that are started through sshd have only those variables that mpirun hands on."""
    if not mpijob.through_sshd(request):
        return
    job = request.job
    if job.mpi.implementation == "OpenMPI":
        for index, secret in enumerate(job.secrets):
            if secret.all_env:
                yield _unnamed(f"secrets[{index}].all_env", secret.name)
    archive = job.checkpoints.archive
    if archive is not None and archive.secret is not None:
        yield _unnamed("checkpoints.archive.secret", archive.secret)


def _unnamed(path: str, secret: str) -> Error:
    return Error(
        "settings-conflict",
        f"{path}: its variables would not reach the ranks",
        why="ranks are started by sshd, which does not inherit the container's environment, and "
        "mpirun forwards only variables that are listed by name; the keys of a Secret are "
        "not known when rendering",
        help=f"list the variables: secrets: [{{name: {secret}, env: {{VARIABLE: key}}}}]",
    )
