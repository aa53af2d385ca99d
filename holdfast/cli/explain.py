"""`holdfast explain`: the longer story of an error."""

import difflib
import textwrap
from typing import Annotated

import typer

from holdfast.cli.output import AsJson, json_result, result, styled, table
from holdfast.errors import SLUGS, Error, ExitStatus, Slug


def explain(
    slug: Annotated[str | None, typer.Argument(help="The slug in error[...].")] = None,
    as_json: AsJson = False,
) -> None:
    """Explain an error; without a slug, list all of them."""
    if slug is None:
        _list(as_json)
        return
    found = _plain(slug)
    entry = SLUGS.get(found) or _check(found)
    if as_json:
        json_result(_fields(found, entry))
    else:
        result(f"{styled(found, 'bold')} (exit status {int(entry.status)})")
        result(textwrap.fill(entry.explanation, 88))


def _plain(slug: str) -> str:
    """The slug, also when pasted with its brackets."""
    return slug.removeprefix("error").removeprefix("warning").strip("[]:")


def _check(slug: str) -> Slug:
    """What a check of `holdfast lint` says; an error if there is none of that name either."""
    from holdfast.drivers.kubernetes.lint import CHECKS

    if slug not in CHECKS:
        raise _unknown(slug, [*SLUGS, *CHECKS])
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
    close = difflib.get_close_matches(slug, known, n=1)
    return Error(
        "unknown-slug",
        f"there is no error {slug!r}",
        why=f"did you mean {close[0]}?" if close else "no error has a similar name",
        help=f"holdfast explain {close[0]}" if close else "holdfast explain",
    )
