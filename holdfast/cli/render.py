"""`holdfast render`: everything a cluster needs for a job, printed as YAML for `kubectl apply`."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from holdfast.cli.cluster import namespace_named
from holdfast.cli.output import AsJson, json_result, talk, verbatim
from holdfast.errors import Error

if TYPE_CHECKING:
    from holdfast.drivers.kubernetes.manifests.request import Request
    from holdfast.spec.cluster import Engine

EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        "-e",
        help="Engine that creates the pods: pods, job, cronjob, jobset, pytorchjob, tfjob, "
        "jaxjob, xgboostjob, paddlejob, mpijob, rayjob, trainjob or volcano. Default: the engine "
        "in the job file.",
        show_default=False,
    ),
]


class ModeName(StrEnum):
    """Who recovers the job."""

    MANAGED = "managed"
    PLAIN = "plain"


class MpiVersion(StrEnum):
    """Versions of MPIJob."""

    V2BETA1 = "v2beta1"
    V1 = "v1"


Mode = Annotated[
    ModeName | None,
    typer.Option(
        "--mode", help="managed: with Holdfast's agents; plain: the engine's native manifests."
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Namespace of the manifests.", callback=namespace_named),
]
Version = Annotated[
    str,
    typer.Option("--kubernetes-version", metavar="1.N", help="Kubernetes version of the cluster."),
]
Mpi = Annotated[
    MpiVersion | None, typer.Option("--mpi-version", help="MPIJob version that the cluster serves.")
]
NEWEST = "1.37"


def render(
    file: Annotated[Path, typer.Argument(help="The job file.", show_default=False)],
    engine: EngineName = None,
    mode: Mode = None,
    namespace: Namespace = None,
    kubernetes_version: Version = NEWEST,
    mpi_version: Mpi = None,
    as_json: AsJson = False,
) -> None:
    """Print the manifests of a job: holdfast render job.yaml --engine job | kubectl apply -f -"""
    from holdfast.drivers.kubernetes.manifests.render import as_text, unchecked

    request = asked(file, engine, mode, namespace, kubernetes_version, mpi_version)
    require_sound(request)
    bodies = unchecked(request)
    if as_json:
        json_result(bodies)
    else:
        verbatim(as_text(bodies), end="")


def asked(
    file: Path,
    engine: str | None = None,
    mode: ModeName | None = None,
    namespace: str | None = None,
    kubernetes_version: str = NEWEST,
    mpi_version: MpiVersion | None = None,
) -> "Request":
    """The request that file and options make. Raises `Error` where one of them is wrong."""
    from holdfast.drivers.kubernetes.manifests.render import requested
    from holdfast.spec.load import job_as_written

    job = job_as_written(file)
    return requested(
        job,
        engine=engine_named(engine) if engine is not None else None,
        mode=cast('Literal["managed", "plain"] | None', mode and mode.value),
        namespace=namespace,
        version=version(kubernetes_version),
        mpi_version=mpi_version and mpi_version.value,
        code=code_of(file, job.code),
    )


def code_of(file: Path, folder: str | None) -> bytes:
    """The code that is shipped with a job file. Raises `Error` code-unusable."""
    if folder is None:
        return b""
    from holdfast.bundles import bundle

    return bundle(file.parent / folder)


def require_sound(request: "Request") -> None:
    """Raise if something is wrong with the request, all but one of its problems told before."""
    from holdfast.drivers.kubernetes.manifests.checks import problems

    refuse(problems(request))


def refuse(problems: Sequence[Error]) -> None:
    """Raise the last problem, if there is any, after the others have been told."""
    if not problems:
        return
    *others, last = problems
    for problem in others:
        talk(str(problem))
    raise last


def engine_named(name: str) -> "Engine":
    """The engine of this name. Raises `Error` usage, with the one that was probably meant."""
    import difflib

    from holdfast.spec.cluster import ENGINES

    for engine in ENGINES:
        if engine == name:
            return engine
    close = difflib.get_close_matches(name, ENGINES, n=1)
    raise Error(
        "usage",
        f"there is no engine {name}",
        why=f"engines: {', '.join(ENGINES)}",
        help=f"--engine {close[0]}" if close else "holdfast render --help",
    )


def version(text: str) -> tuple[int, int]:
    """`1.36`, `v1.36` or `v1.36.2` as (1, 36)."""
    import re

    from holdfast.drivers.kubernetes.manifests.request import NEWEST as NEW
    from holdfast.drivers.kubernetes.manifests.request import OLDEST as OLD

    found = re.fullmatch(r"v?(\d+)\.(\d+)(\.\d+)?([-+].*)?", text)
    number = (int(found[1]), int(found[2])) if found else (0, 0)
    if not OLD <= number <= NEW:
        raise Error(
            "usage",
            f"--kubernetes-version {text} is not supported",
            why=f"supported versions are 1.{OLD[1]} to 1.{NEW[1]}",
            help="kubectl version shows that of the cluster's server",
        )
    return number
