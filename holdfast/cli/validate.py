"""`holdfast validate`: is this job file good, here or on a cluster?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.output import AsJson, count, json_result, result, talk
from holdfast.cli.render import (
    NEWEST,
    EngineName,
    Mode,
    Namespace,
    Version,
    asked,
    require_sound,
)
from holdfast.errors import ExitStatus

if TYPE_CHECKING:
    from holdfast.drivers.kubernetes.manifests.request import Request
    from holdfast.spec import Job


def validate(
    file: Annotated[
        Path, typer.Argument(help="The job file; - for standard input.", show_default=False)
    ],
    engine: EngineName = None,
    mode: Mode = None,
    namespace: Namespace = None,
    kubernetes_version: Version = NEWEST,
    as_json: AsJson = False,
) -> None:
    """Check a job file; reports all problems in one pass.

    With --engine or --mode: whether that engine on Kubernetes supports it, and what `holdfast lint`
    says of its manifests. Without: whether it can run on this machine.
    """
    if engine is not None or mode is not None:
        request = asked(file, engine, mode, namespace, kubernetes_version)
        _on_cluster(file, request, as_json)
    else:
        _here(file, as_json)


def _here(file: Path, as_json: bool) -> None:
    from holdfast.spec import job_from_yaml
    from holdfast.spec.files import require_files
    from holdfast.spec.reading import named

    job = job_from_yaml(file)
    require_files(job)
    notes = [*_notes(job, job.workers_per_node), *_kept(job)]
    if as_json:
        json_result({"valid": True, "job": job.model_dump(mode="json"), "notes": notes})
    else:
        result("\n".join([f"{named(file)} is valid: job {job.name}, {size(job)}", *notes]))


def _on_cluster(file: Path, request: "Request", as_json: bool) -> None:
    from dataclasses import asdict

    from holdfast.cli.lint import told
    from holdfast.drivers.kubernetes.lint import lint
    from holdfast.drivers.kubernetes.manifests.consequences import consequences
    from holdfast.drivers.kubernetes.manifests.render import unchecked
    from holdfast.spec.reading import named

    require_sound(request)
    bodies = unchecked(request)
    findings = lint(bodies, request.version)
    valid = not any(finding.level == "error" for finding in findings)
    for text in told(named(file), findings):
        talk(text)
    notes = [*_notes(request.job, request.workers), *consequences(request)]
    if as_json:
        found = [asdict(finding) for finding in findings]
        job = request.job.model_dump(mode="json")
        json_result({"valid": valid, "job": job, "findings": found, "notes": notes})
    elif valid:
        where = f"{request.engine}, {request.mode}: {count(len(bodies), 'object')}"
        line = f"{named(file)} is valid on {where}: job {request.name}, {size(request.job)}"
        result("\n".join([line, *notes]))
    if not valid:
        raise typer.Exit(ExitStatus.USAGE)


def _notes(job: "Job", workers: int | str) -> list[str]:
    """What follows from the job file and is not written there."""
    from holdfast.dimensions import across_nodes

    found = [f"nodes.spares: {job.nodes.spares_why}"] if job.nodes.spares_why else []
    if job.parallel is not None and isinstance(workers, int):
        dimensions = job.parallel.layout.resolve(job.nodes.count * workers)
        if why := across_nodes(dimensions, workers):
            found.append(f"parallel: {why}")
    return found


def _kept(job: "Job") -> list[str]:
    """What `recovery.mode: auto` does, where the script tells."""
    from holdfast.agent.environment import program_of
    from holdfast.agent.script_source import declares_in_process, tree_of

    tree = tree_of(program_of(job)) if job.recovery.mode == "auto" else None
    declared = declares_in_process(tree) if tree is not None else None
    if declared is None:
        return []
    name = Path(job.script).name if job.script is not None else job.module
    declares = f"{name} {'declares' if declared else 'does not declare'} join(in_process=True)"
    if declared:
        return [f"recovery.mode: workers over gloo on the CPU keep their processes; {declares}"]
    return [f"recovery.mode: all workers are replaced when one fails; {declares}"]


def size(job: "Job") -> str:
    """How large a job is, in words."""
    spares = f" + {count(job.nodes.spare_count, 'spare')}" if job.nodes.spare_count else ""
    each = "one worker per GPU (at least one)" if job.workers_per_node == "auto" else _workers(job)
    return f"{count(job.nodes.count, 'node')}{spares}, {each}"


def _workers(job: "Job") -> str:
    assert isinstance(job.workers_per_node, int)
    return f"{count(job.workers_per_node, 'worker')} each"
