"""`holdfast delete`: take everything of a job out of a cluster.

A job of this machine is a folder that its owner removes: whoever means one is told which, also
where no cluster was named and none is there, or none that knows the job.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.cluster import Context, Namespace, On, Reach, connected
from holdfast.cli.controller import Where
from holdfast.cli.locate import all_jobs, job_folder
from holdfast.cli.output import AsJson, count, json_result, result, talk
from holdfast.errors import Error

GONE_WITHIN_S = 300.0
NOT_THERE = ("kubernetes-missing", "kubeconfig-unusable", "cluster-unreachable", "job-not-found")


def delete(
    call: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the job.", show_default=False)],
    force: Annotated[
        bool, typer.Option("--force", help="Also delete a job that has not ended.")
    ] = False,
    storage: Annotated[
        bool,
        typer.Option(
            "--storage",
            help="Also delete the PersistentVolumeClaims that were created for its checkpoints.",
        ),
    ] = False,
    wait: Annotated[bool, typer.Option(help="Wait until its pods are deleted.")] = True,
    on: On = Where.KUBERNETES,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Delete a job from a cluster: pods, objects and record, but not its checkpoints."""
    if on is not Where.KUBERNETES:
        raise _is_here(job_folder(name))
    source = call.get_parameter_source("on")
    implied = source is not None and source.name == "DEFAULT"
    from holdfast.drivers.kubernetes.remote import look
    from holdfast.drivers.kubernetes.submit_withdraw import until_gone, withdraw

    with _may_be_here(name, implied), connected(Reach(context, namespace)) as session:
        cluster, words = session.cluster, session.words
        seen = session.do(look(cluster, name, words))
        if not force and seen.outcome is None and any(not pod.ended for pod in seen.pods):
            raise _runs(name, words)
        gone = session.do(withdraw(cluster, name, storage=storage), f"job {name}")
        within_s = GONE_WITHIN_S if wait and not gone.held else 0.0
        left = wait and not session.do(until_gone(cluster, name, within_s=within_s))
    if as_json:
        json_result({"job": name, "deleted": gone.deleted, "kept": gone.kept, "held": gone.held})
    else:
        result(f"{name}: {count(len(gone.deleted), 'object')} deleted")
    if gone.kept:
        talk(f"kept: {', '.join(gone.kept)}   (--storage deletes them too, with their contents)")
    if gone.held:
        talk(
            f"{', '.join(gone.held)} is still being deleted, and what it depends on is kept until "
            "then; a pod on an unreachable machine may block it (kubectl get pods -l "
            f"holdfast.dev/job={name}); then once more: holdfast delete {name}{words}"
        )
    elif left:
        talk(f"some pods still exist: kubectl get pods -l holdfast.dev/job={name}")


@contextmanager
def _may_be_here(name: str, implied: bool) -> Iterator[None]:
    """Unless a cluster was asked for, one that is not there is not what was meant."""
    try:
        yield
    except Error as error:
        here = [folder for folder in all_jobs() if folder.name == name]
        if not implied or error.slug not in NOT_THERE or not here:
            raise
        raise _is_here(here[0]) from error


def _is_here(folder: Path) -> Error:
    return Error(
        "usage",
        f"job {folder.name!r} is on this machine, and delete is for jobs in a cluster",
        why=f"a job on this machine is the folder {folder}, with its logs and local checkpoints; "
        "`holdfast run --replace` replaces it",
        help=f"holdfast stop {folder.name} && rm -r {shlex.quote(str(folder))}   "
        "(in a cluster: --on kubernetes)",
    )


def _runs(name: str, words: str) -> Error:
    return Error(
        "job-running",
        f"job {name!r} has not ended",
        why="deleting it loses all training since its last checkpoint",
        help=f"holdfast stop {name} --on kubernetes{words}   (or add --force)",
    )
