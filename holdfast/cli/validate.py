"""`holdfast validate`: is this job file good?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.output import AsJson, count, json_result, result

if TYPE_CHECKING:
    from holdfast.spec import Job


def validate(
    file: Annotated[Path, typer.Argument(help="The job file.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Check a job file; every problem is told at once."""
    from holdfast.spec import job_from_yaml
    from holdfast.spec.files import require_files

    job = job_from_yaml(file)
    require_files(job)
    if as_json:
        json_result({"valid": True, "job": job.model_dump(mode="json")})
    else:
        result(f"{file} is valid: job {job.name}, {size(job)}")


def size(job: "Job") -> str:
    """How large a job is, in words."""
    spares = f" + {count(job.nodes.spares, 'spare')}" if job.nodes.spares else ""
    each = "one worker per GPU (at least one)" if job.workers_per_node == "auto" else _workers(job)
    return f"{count(job.nodes.count, 'node')}{spares}, {each}"


def _workers(job: "Job") -> str:
    assert isinstance(job.workers_per_node, int)
    return f"{count(job.workers_per_node, 'worker')} each"
