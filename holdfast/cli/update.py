"""`holdfast update`: continue with other code or arguments, from the next step boundary on."""

import secrets
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from holdfast.cli import story
from holdfast.cli.cluster import Context, Namespace, On, Reach, connected, reached
from holdfast.cli.controller import Where
from holdfast.cli.locate import job_folder
from holdfast.cli.output import AsJson, json_result, result, talk
from holdfast.errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.messages import UpdateJob
    from holdfast.spec import Job
    from holdfast.status import JobStatus, UpdateStatus

LOOK_S, LOOK_FAR_S = 0.1, 1.0  # between two looks at a job here, and in a cluster


class Moment(StrEnum):
    """When a version is used."""

    NOW = "now"
    NEXT_STEP = "next-step"
    NEXT_FAILURE = "next-failure"


PREPARING = "preparing"
CODE = "the code of the update"


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
    image: Annotated[
        str | None,
        typer.Option(
            help="Another container image, with --on kubernetes: pods are replaced one by one. By "
            "itself, without --code and --set."
        ),
    ] = None,
    when: Annotated[
        Moment,
        typer.Option(
            help="`next-step`: at the end of a step. `now`: from the newest snapshot, without "
            "waiting for a step. `next-failure`: with the next recovery, or after 24 "
            "hours at the end of a step."
        ),
    ] = Moment.NEXT_STEP,
    canary: Annotated[
        bool, typer.Option("--canary", help="Prepare one node, a spare if any, before the others.")
    ] = False,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Return to the previous version.")
    ] = False,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Continue with other code, arguments or another image, without losing a step."""
    _require_one_change(code, sets or [], image, rollback=rollback)
    wish = _Wish(code, parsed(sets or []), image or "", when, canary, rollback)
    reach = reached(on, context, namespace)
    if image is not None and reach is None:
        raise _image_of_nothing(name)
    job, found = _remote(reach, name, wish) if reach is not None else _local(name, wish)
    if found is not None and found.stage == "refused":
        raise _refused(job, found, "" if reach is None else " --on kubernetes")
    if as_json:
        json_result({"job": job, "update": found})
    elif found is not None:
        result(f"{job}: {story.update(found)}")


class _Wish(NamedTuple):
    """What was asked for."""

    code: Path | None
    sets: dict[str, str]
    image: str
    when: Moment
    canary: bool
    back: bool


def _local(name: str, wish: _Wish) -> "tuple[str, UpdateStatus]":
    """The bundle lies where agents look for it, then the controller is asked."""
    from holdfast import bundles
    from holdfast.drivers import started_code
    from holdfast.drivers.client import request, status
    from holdfast.drivers.records import load_job

    folder = job_folder(name)
    job = load_job(folder)
    data, now = _checked(job, wish), status(folder)
    _require_possible(folder.name, now, wish, "")
    if (data or wish.back) and not started_code.settle(job, folder):
        talk("the code that the job was started with is not kept: version 1 is what lies there now")
    order = _order(wish, bundles.keep(data, folder / bundles.FOLDER) if data else "")
    try:
        request(folder, order)
    except ConnectionError as error:
        raise _undelivered(folder.name, str(error), f"holdfast resume {folder.name}") from error
    return folder.name, _prepared(folder.name, order.id, lambda: status(folder), LOOK_S)


def _remote(reach: Reach, name: str, wish: _Wish) -> "tuple[str, UpdateStatus | None]":
    """The bundle goes into ConfigMaps, then the request where the controller reads it."""
    from holdfast import bundles
    from holdfast.drivers.kubernetes.origin import origin
    from holdfast.drivers.kubernetes.remote import look, require_managed, status
    from holdfast.drivers.kubernetes.remote_orders import ask_to_update
    from holdfast.drivers.kubernetes.shipped_code import needed, ship

    with connected(reach) as session:
        cluster, words = session.cluster, session.words
        cache: dict[str, Any] = {}
        seen = session.do(look(cluster, name, words))
        require_managed(seen, words)
        assert seen.job is not None, "require_managed comes first"
        data, now = _checked(seen.job, wish), status(seen)
        on = f" --on kubernetes{words}"
        _require_possible(name, now, wish, on)
        order = _order(wish, bundles.digest(data) if data else "")
        if data:
            owner = session.do(origin(cluster, name), f"ConfigMap {name}-job").owner
            session.do(ship(cluster, name, data, owner, needed(now.updates)), CODE)
        session.do(ask_to_update(cluster, name, order), f"ConfigMap {name}-job")
        if not seen.kept:
            talk(
                "its controller is not running, so the update is pending: "
                f"holdfast resume {name}{on}"
            )
            return name, None

        def seen_now() -> "JobStatus":
            return status(session.do(look(cluster, name, words, cache)))

        return name, _prepared(name, order.id, seen_now, LOOK_FAR_S, on)


def _require_one_change(
    code: Path | None, sets: list[str], image: str | None, *, rollback: bool
) -> None:
    given = bool(code is not None or sets or image is not None)
    if image is not None and (code is not None or sets):
        raise Error(
            "usage",
            "--image takes no other changes",
            why="while pods are replaced one by one, some have the previous image, in which "
            "other code may not run",
            help="update the image first, then the code or the arguments",
        )
    if given and rollback:
        why = "--rollback returns to the previous version, as it was"
        raise Error("usage", "--rollback takes no changes", why=why, help="leave out one of them")
    if not (given or rollback):
        raise Error(
            "usage",
            "nothing to update",
            why="none of --code, --set, --image and --rollback is given",
            help="holdfast update --help",
        )


def parsed(sets: list[str]) -> dict[str, str]:
    """What is to be set. Raises `Error` usage."""
    found = {}
    for text in sets:
        said, sign, value = text.partition("=")
        key = said.removeprefix("--")
        if not (key and sign) or key == "env.":
            raise Error(
                "usage",
                f"--set {text}: not understood",
                why="KEY=VALUE is expected",
                help="--set lr=0.1   (sets option --lr; a variable: --set env.NAME=VALUE)",
            )
        if said == key and _is_of_the_job_file(key):
            raise Error(
                "usage",
                f"--set {text}: {key} is a key of the job file",
                why="an update sets options of the script and its variables (env.NAME); other keys "
                "stay as the job was started with them",
                help=f"--set --{text}   (if the script has an option --{key})",
            )
        found[key] = value
    return found


def _is_of_the_job_file(key: str) -> bool:
    """Whether it looks like one, as in `args.0` or `nodes.count`; scripts have dots, too."""
    from holdfast.spec.job import Job

    first, dot, _ = key.partition(".")
    return bool(dot) and first != "env" and first in Job.model_fields


def _checked(job: "Job", wish: _Wish) -> bytes:
    """The bundle, if there is to be one, once it is known that the request makes a job."""
    _require_valid(job, wish)
    return b"" if wish.code is None else _bundle(job, wish.code)


def _require_possible(name: str, now: "JobStatus", wish: _Wish, on: str) -> None:
    """Raise `Error` where nothing can be updated."""
    if now.outcome is not None:
        raise _undelivered(name, f"it has ended ({now.outcome})", f"holdfast why {name}{on}")
    if wish.back and now.version == 1 and not _is_unused(now):
        raise Error(
            "update-first",
            f"job {name!r} has no previous version",
            why="it runs what it was started with",
            help=f"holdfast status {name}{on}",
        )


def _order(wish: _Wish, code: str) -> "UpdateJob":
    from holdfast.messages import UpdateJob

    return UpdateJob(
        by="holdfast update",
        id=secrets.token_hex(8),
        code=code,
        sets=wish.sets,
        image=wish.image,
        when=wish.when.value,
        canary=wish.canary,
        back=wish.back,
    )


def _require_valid(job: "Job", wish: _Wish) -> None:
    """Raise `Error` job-invalid for what could be no job file."""
    from holdfast.spec import job_from_dict
    from holdfast.versions import Version

    version = Version(sets=wish.sets)
    data: dict[str, Any] = job.model_dump(mode="json", exclude_unset=True)
    data |= {"args": version.args(job.args), "env": {**job.env, **version.env}}
    if wish.image:
        data["image"] = {**data.get("image", {}), "name": wish.image}
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


def _prepared(
    name: str, id_: str, look: "Callable[[], JobStatus]", pause_s: float, on: str = ""
) -> "UpdateStatus":
    """Wait until its nodes have prepared it, or one could not."""
    said = ""
    while True:
        now = look()
        found = next((one for one in now.updates if one.id == id_), None)
        if found is not None and found.stage != PREPARING:
            return found
        if now.outcome is not None or now.controller not in ("alive", "starting"):
            why = f"it has ended ({now.outcome})" if now.outcome else "its controller has died"
            raise _undelivered(name, why, f"holdfast why {name}{on}")
        if found is not None and not said:
            said = f"version {found.version} is being prepared on the nodes of {name}"
            talk(said)
        time.sleep(pause_s)


def _refused(name: str, found: "UpdateStatus", on: str) -> Error:
    return Error(
        "update-refused",
        f"version {found.version} of job {name!r} cannot be used",
        why=found.why or "",
        help="correct it and update again; the job continues with the version that it has "
        f"(holdfast status {name}{on})",
    )


def _undelivered(name: str, why: str, remedy: str) -> Error:
    return Error("update-undelivered", f"job {name!r} cannot be updated", why=why, help=remedy)


def _image_of_nothing(name: str) -> Error:
    return Error(
        "update-image",
        f"job {name!r} has no image",
        why="it runs on this machine, with the Python environment that it was started in",
        help=f"holdfast update {name} --code DIR",
    )
