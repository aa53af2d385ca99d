"""`holdfast sweep`: the trials of a sweep on this machine, and how well they did."""

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.output import AsJson
from holdfast.errors import Error

if TYPE_CHECKING:
    from holdfast.spec import Job


def sweep(
    name: Annotated[str, typer.Argument(help="Name of the sweep.", metavar="NAME")],
    as_json: AsJson = False,
) -> None:
    """Show the trials of a sweep on this machine, the best first."""
    from holdfast.cli.sweep_run import show
    from holdfast.drivers import sweeps

    show(sweeps.status(known(name)), as_json)


def known(name: str) -> "Job":
    """The job of this sweep. Raises `Error` job-not-found."""
    from holdfast.drivers import sweeps

    job = sweeps.found(name)
    if job is None:
        where = sweeps.sweep_dir(name).parent
        raise Error(
            "job-not-found",
            f"there is no sweep {name!r} in {where}",
            why="`holdfast run` of a job file with `sweep` makes one",
            help="holdfast list   (trials are jobs called NAME-NUMBER)",
        )
    return job
