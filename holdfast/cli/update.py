"""`holdfast update`: continue with other code or arguments, from the next step boundary on."""

import secrets
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import story
from holdfast.cli.cluster import Context, Namespace, On, reached
from holdfast.cli.controller import Where
from holdfast.cli.locate import job_folder
from holdfast.cli.output import AsJson, json_result, result, talk
from holdfast.errors import Error

if TYPE_CHECKING:
    from holdfast.messages import UpdateJob
    from holdfast.spec import Job
    from holdfast.status import JobStatus, UpdateStatus

LOOK_S = 0.1


class Moment(StrEnum):
    """When a version is used."""

    NOW = "now"
    NEXT_STEP = "next-step"
    NEXT_FAILURE = "next-failure"


PREPARING = "preparing"


def update(
    name: Annotated[str, typer.Argument(help="Name of the job.", show_default=False)],
    code: Annotated[
        Path | None, typer.Option(help="Folder with the new code.", show_default=False)
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set option `--KEY` of the script, or (`env.NAME=VALUE`) a variable. Repeatable.",
        ),
    ] = None,
    image: Annotated[str | None, typer.Option(help="Another container image.")] = None,
    when: Annotated[
        Moment,
        typer.Option(
            help="At the end of a step; not waiting for that; or with the next recovery, after a "
            "day at the latest."
        ),
    ] = Moment.NEXT_STEP,
    canary: Annotated[
        bool, typer.Option("--canary", help="Prepare one node, a spare if any, before the others.")
    ] = False,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Return to the version before.")
    ] = False,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Continue with other code or arguments, without losing a step."""
    _require_one_wish(code, sets or [], image, rollback=rollback)
    if reached(on, context, namespace) is not None:
        raise _on_a_cluster(name, image)
    if image is not None:
        raise _image_of_nothing(name)
    folder = job_folder(name)
    order = _order(folder, code, sets or [], when, canary=canary, back=rollback)
    found = _told(folder, order)
    if found.stage == "refused":
        raise _refused(folder.name, found)
    if as_json:
        json_result({"job": folder.name, "update": found})
    else:
        result(f"{folder.name}: {story.update(found)}")


def _require_one_wish(
    code: Path | None, sets: list[str], image: str | None, *, rollback: bool
) -> None:
    given = bool(code is not None or sets or image is not None)
    if given and rollback:
        why = "--rollback returns to the version before, as it was"
        raise Error("usage", "--rollback takes no changes", why=why, help="leave out one of them")
    if not (given or rollback):
        raise Error(
            "usage",
            "nothing to update",
            why="none of --code, --set and --rollback is given",
            help="holdfast update --help",
        )


def parsed(sets: list[str]) -> dict[str, str]:
    """What is to be set. Raises `Error` usage."""
    found = {}
    for text in sets:
        key, sign, value = text.partition("=")
        key = key.removeprefix("--")
        if not (key and sign) or key == "env.":
            raise Error(
                "usage",
                f"--set {text}: not understood",
                why="KEY=VALUE is expected",
                help="--set lr=0.1   (sets option --lr; a variable: --set env.NAME=VALUE)",
            )
        found[key] = value
    return found


def _order(
    folder: Path, code: Path | None, sets: list[str], when: Moment, *, canary: bool, back: bool
) -> "UpdateJob":
    """The wish, once it is known that it can be one; the bundle lies where agents look for it."""
    from holdfast import bundles
    from holdfast.drivers.client import status
    from holdfast.drivers.records import load_job
    from holdfast.messages import UpdateJob

    job, values = load_job(folder), parsed(sets)
    _require_valid(job, values)
    data = b"" if code is None else _bundle(job, code)
    now = status(folder)
    if now.outcome is not None:
        raise _unheard(folder.name, f"it has ended ({now.outcome})", f"holdfast why {folder.name}")
    if back and now.version == 1 and not _is_unused(now):
        raise Error(
            "update-first",
            f"job {folder.name!r} has no version before this one",
            why="it runs what it was started with",
            help=f"holdfast status {folder.name}",
        )
    name = bundles.keep(data, folder / "code") if data else ""
    return UpdateJob(
        by="holdfast update",
        id=secrets.token_hex(8),
        code=name,
        sets=values,
        when=when.value,
        canary=canary,
        back=back,
    )


def _require_valid(job: "Job", values: dict[str, str]) -> None:
    """Raise `Error` job-invalid for what could be no job file."""
    from holdfast.spec import job_from_dict
    from holdfast.versions import Version

    version = Version(sets=values)
    data: dict[str, Any] = job.model_dump(mode="json", exclude_unset=True)
    data |= {"args": version.args(job.args), "env": {**job.env, **version.env}}
    job_from_dict(data, where="the job with what is set")


def _bundle(job: "Job", folder: Path) -> bytes:
    from holdfast import bundles
    from holdfast.spec.load import code_folder, script_in

    if job.script is not None and not (folder / script_in(job)).is_file():
        raise Error(
            "code-unusable",
            f"{folder} is not the code of job {job.name!r}",
            why=f"it has no {script_in(job)}, which lies in {code_folder(job)} now",
            help=f"holdfast update {job.name} --code DIR   (DIR: what took the place of that "
            "folder, or the folder itself)",
        )
    return bundles.bundle(folder)


def _is_unused(status: "JobStatus") -> bool:
    return bool(status.updates) and status.updates[-1].stage in (PREPARING, "waiting")


def _told(folder: Path, order: "UpdateJob") -> "UpdateStatus":
    """Ask for it, and wait until its nodes have prepared it, or one could not."""
    from holdfast.drivers.client import request, status

    try:
        request(folder, order)
    except ConnectionError as error:
        raise _unheard(folder.name, str(error), f"holdfast resume {folder.name}") from error
    said = ""
    while True:
        now = status(folder)
        found = next((one for one in now.updates if one.id == order.id), None)
        if found is not None and found.stage != PREPARING:
            return found
        if now.outcome is not None or now.controller != "alive":
            why = f"it has ended ({now.outcome})" if now.outcome else "its controller has died"
            raise _unheard(folder.name, why, f"holdfast why {folder.name}")
        if found is not None and not said:
            said = f"version {found.version} is being prepared on the nodes of {folder.name}"
            talk(said)
        time.sleep(LOOK_S)


def _refused(name: str, found: "UpdateStatus") -> Error:
    return Error(
        "update-refused",
        f"version {found.version} of job {name!r} cannot be used",
        why=found.why or "",
        help="correct it and update again; the job continues with the version that it has "
        f"(holdfast status {name})",
    )


def _unheard(name: str, why: str, remedy: str) -> Error:
    return Error("update-unheard", f"job {name!r} cannot be updated", why=why, help=remedy)


def _image_of_nothing(name: str) -> Error:
    return Error(
        "update-image",
        f"job {name!r} has no image",
        why="it runs on this machine, with the Python environment that it was started in",
        help=f"holdfast update {name} --code DIR",
    )


def _on_a_cluster(name: str, image: str | None) -> Error:
    of_image = "another image needs new pods" if image is not None else ""
    return Error(
        "update-unsupported",
        f"job {name!r} cannot be updated while it runs on Kubernetes",
        why=of_image or "`holdfast update` reaches jobs on this machine only",
        help="change the job file, then: holdfast submit job.yaml --replace --on kubernetes   "
        "(the job continues from its newest checkpoint)",
    )
