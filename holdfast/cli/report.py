"""`holdfast report`: one page about a job for people who were not there."""

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.cluster import Context, Namespace, On, Reach, Session, connected, reached
from holdfast.cli.controller import Where
from holdfast.cli.locate import job_folder
from holdfast.cli.output import AsJson, JobName, json_result, talk
from holdfast.cli.source import LocalSource, Source, remote_source, tell
from holdfast.errors import Error

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any, TypeVar

    from holdfast.dashboard.job_record import JobRecord
    from holdfast.drivers.kubernetes.api import Api
    from holdfast.reporting.shapes import JobReport

    T = TypeVar("T")


def report(
    name: JobName = None,
    to: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write one self-contained page to this file."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file if there is one.")
    ] = False,
    no_advice: Annotated[
        bool, typer.Option("--no-advice", help="Do not simulate what could be changed.")
    ] = False,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Report what was trained, how it went, what it cost and what to change.

    NAME may be the folder of a job, as in ./jobs/gpt.
    """
    if to is not None:
        to = to.resolve()  # what a link names is replaced, not the link
        _require_place(to, force=force)
    elif force:
        raise Error(
            "usage",
            "--force is for --html",
            why="only a file can be replaced",
            help="holdfast report --html report.html --force",
        )
    with _opened(name, reached(on, context, namespace)) as (record, source):
        found = _made(record, advised=not no_advice)
        if to is not None:
            from holdfast.reporting.page import page

            _write(to, page(found), force=force)
            talk(f"{to} written")
        if as_json:
            json_result(found)
        elif to is None:
            from holdfast.cli.report_text import print_report

            print_report(found)
        tell(source.troubles())


@contextmanager
def _opened(name: str | None, reach: Reach | None) -> "Iterator[tuple[JobRecord, Source]]":
    from holdfast.dashboard.job_record import JobRecord

    if reach is None:
        folder = _folder(name)
        yield JobRecord(folder), LocalSource(folder)
        return
    import tempfile

    with connected(reach) as session, tempfile.TemporaryDirectory() as mirrors:
        from holdfast.dashboard.cluster_site import ClusterSite

        source = remote_source(session, name)
        mirror = Path(mirrors) / source.name
        mirror.mkdir()
        yield JobRecord(mirror, ClusterSite(SessionLine(session), mirror)), source


def _folder(name: str | None) -> Path:
    """Of a job of this machine or, where it is a path, that folder. Raises `Error`."""
    if name is None or os.sep not in name:
        return job_folder(name)
    from holdfast.drivers.records import JOURNAL

    folder = Path(name).absolute()
    if os.path.lexists(folder / JOURNAL):
        return folder
    raise Error(
        "job-not-found",
        f"{name} is not the folder of a job",
        why=f"there is no {JOURNAL} in it",
        help="holdfast report ~/.holdfast/jobs/NAME   (or only the name)",
    )


class SessionLine:
    """A session as readers of a cluster's jobs ask it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def cluster(self) -> "Api":
        """Which."""
        return self._session.cluster

    def ask(self, call: "Coroutine[Any, Any, T]", what: str) -> "T":
        """The answer to a call. Raises `Error`."""
        return self._session.do(call, what)


def _made(record: "JobRecord", *, advised: bool) -> "JobReport":
    import msgspec

    from holdfast.reporting.gather import gathered

    found, look = gathered(record, time.time())
    if not advised:
        return found
    from holdfast.reporting.changes import what_to_change

    advice = what_to_change(look)
    told = {"changes_missing": advice} if isinstance(advice, str) else {"changes": advice}
    return msgspec.structs.replace(found, **told)


# ── the file ──────────────────────────────────────────────────────────────────────────────────


def _require_place(path: Path, *, force: bool) -> None:
    """Before anything is worked out. Raises `Error`."""
    if not path.parent.is_dir():
        raise _unusable(path, f"{path.parent} is not a folder", f"mkdir -p {path.parent}")
    if not os.path.lexists(path):
        return
    if not path.is_file():
        raise _unusable(path, "it is not a file", "give the name of a file")
    if not force:
        raise _taken(path)


def _write(path: Path, text: str, *, force: bool) -> None:
    """All of it or nothing, and never over a file that somebody made meanwhile."""
    from holdfast.files import unusable

    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if not force:
            path.touch(exist_ok=False)
        temporary.replace(path)
    except FileExistsError as error:
        raise _taken(path) from error
    except OSError as error:
        raise unusable(error, f"{path} cannot be written") from error
    finally:
        temporary.unlink(missing_ok=True)


def _taken(path: Path) -> Error:
    return Error(
        "usage",
        f"{path} exists already",
        why="a page is written as a whole, and what is there would be lost",
        help=f"holdfast report --html {path} --force   (or give another name)",
    )


def _unusable(path: Path, why: str, remedy: str) -> Error:
    return Error("path-unusable", f"{path} cannot be written", why=why, help=remedy)
