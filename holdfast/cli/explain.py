"""`holdfast explain`: the longer story of an error, and known problems in anybody's log."""

import difflib
import os
import shlex
import stat
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.output import AsJson, json_result, result, styled, table, talk
from holdfast.errors import SLUGS, Error, ExitStatus, Slug

if TYPE_CHECKING:
    from holdfast.diagnosis.signatures import Spotted

LINE_CHARS = 4_000  # of a line of a log are looked at


def explain(
    slug: Annotated[
        str | None,
        typer.Argument(help="The slug in error[...], or `-`: find known problems in a log."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain an error, or a log on standard input; without a slug, list all errors."""
    if slug == "-" or (slug is None and _input_is(stat.S_ISREG)):
        _log(as_json)
        return
    if slug is None:
        _list(as_json)
        if _input_is(stat.S_ISFIFO):  # which may stay open without a word, so it is not read
            talk("a log that comes by a pipe is read by: COMMAND | holdfast explain -")
        return
    found = _plain(slug)
    entry = SLUGS.get(found) or _known(found) or _check(found)
    if as_json:
        json_result(_fields(found, entry))
    else:
        result(f"{styled(found, 'bold')} (exit status {int(entry.status)})")
        result(textwrap.fill(entry.explanation, 88))


def _input_is(kind: Callable[[int], bool]) -> bool:
    """Whether standard input is of this kind, a file or a pipe."""
    try:
        return kind(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):  # closed, or not there at all
        return False


def _log(as_json: bool) -> None:
    from holdfast.diagnosis.signatures import spotted

    found = spotted(_lines())
    if as_json:
        json_result({"problems": [_problem(one) for one in found]})
    elif not found:
        result("no known problem was found in this log")
    else:
        result("\n\n".join(_shown(one) for one in found))


def _lines() -> Iterator[str]:
    """Whatever it contains."""
    for line in sys.stdin.buffer:
        yield line[:LINE_CHARS].decode(errors="replace")


def _problem(one: "Spotted") -> dict[str, Any]:
    known = one.signature
    return {
        "slug": known.slug,
        "blame": known.blame,
        "cause": known.cause,
        "remedy": known.remedy,
        "line": one.line,
        "count": one.lines,
        "text": one.text,
    }


def _shown(one: "Spotted") -> str:
    known = one.signature
    times = f", {one.lines} times" if one.lines > 1 else ""
    return "\n".join(
        [
            f"{styled(known.slug, 'bold')} ({known.blame}; line {one.line}{times})",
            textwrap.shorten(one.text, 160, placeholder=" ..."),
            textwrap.fill(known.cause, 88, initial_indent="  ", subsequent_indent="  "),
            textwrap.fill(known.remedy, 88, initial_indent="  help: ", subsequent_indent="    "),
        ]
    )


def _known(slug: str) -> Slug | None:
    """A problem of logs that has this name."""
    from holdfast.diagnosis.signatures import SIGNATURES

    one = SIGNATURES.get(slug)
    if one is None:
        return None
    text = f"A known problem of logs ({one.blame}). {one.cause} {one.remedy}"
    return Slug(ExitStatus.OK, text)


def _plain(slug: str) -> str:
    """The slug, also when pasted with its brackets."""
    return slug.removeprefix("error").removeprefix("warning").strip("[]:")


def _check(slug: str) -> Slug:
    """What a check of `holdfast lint` says; an error if there is none of that name either."""
    from holdfast.diagnosis.signatures import SIGNATURES
    from holdfast.drivers.kubernetes.lint import CHECKS

    if slug not in CHECKS:
        raise _unknown(slug, [*SLUGS, *SIGNATURES, *CHECKS])
    check = CHECKS[slug]
    status = ExitStatus.USAGE if check.level == "error" else ExitStatus.OK
    text = f"A {check.level} of holdfast lint: {check.why}. Help: {check.help}."
    return Slug(status, text)


def _fields(slug: str, entry: Slug) -> dict[str, str | int]:
    return {"slug": slug, "exit_status": int(entry.status), "explanation": entry.explanation}


def _list(as_json: bool) -> None:
    if as_json:
        json_result([_fields(slug, entry) for slug, entry in SLUGS.items()])
        return
    rows = [(slug, str(int(entry.status)), entry.explanation) for slug, entry in SLUGS.items()]
    result(table(("SLUG", "EXIT", "MEANING"), ((s, e, x.split(". ")[0]) for s, e, x in rows)))


def _unknown(slug: str, known: list[str]) -> Error:
    if Path(slug).is_file():
        return Error(
            "unknown-slug",
            f"there is no error {slug!r}",
            why="it is the name of a file; a log is read from standard input",
            help=f"holdfast explain - < {shlex.quote(slug)}",
        )
    close = difflib.get_close_matches(slug, known, n=1)
    return Error(
        "unknown-slug",
        f"there is no error {slug!r}",
        why=f"did you mean {close[0]}?" if close else "no error has a similar name",
        help=f"holdfast explain {close[0]}" if close else "holdfast explain",
    )
