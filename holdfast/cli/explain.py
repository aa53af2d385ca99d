"""`holdfast explain`: the longer story of an error."""

import difflib
import textwrap
from typing import Annotated

import typer

from holdfast.cli.output import AsJson, json_result, result, styled, table
from holdfast.errors import SLUGS, Error


def explain(
    slug: Annotated[str | None, typer.Argument(help="What stands in error[...].")] = None,
    as_json: AsJson = False,
) -> None:
    """Explain an error; without a slug, list them all."""
    if slug is None:
        _list(as_json)
        return
    found = _plain(slug)
    if found not in SLUGS:
        raise _unknown(found)
    if as_json:
        json_result(_fields(found))
    else:
        _print(found)


def _plain(slug: str) -> str:
    """The slug, also when pasted with its brackets."""
    return slug.removeprefix("error").strip("[]:")


def _fields(slug: str) -> dict[str, str | int]:
    entry = SLUGS[slug]
    return {"slug": slug, "exit_status": int(entry.status), "explanation": entry.explanation}


def _list(as_json: bool) -> None:
    if as_json:
        json_result([_fields(slug) for slug in SLUGS])
        return
    rows = [(slug, str(int(entry.status)), entry.explanation) for slug, entry in SLUGS.items()]
    result(table(("SLUG", "EXIT", "MEANING"), ((s, e, x.split(". ")[0]) for s, e, x in rows)))


def _print(slug: str) -> None:
    entry = SLUGS[slug]
    result(f"{styled(slug, 'bold')} (exit status {int(entry.status)})")
    result(textwrap.fill(entry.explanation, 88))


def _unknown(slug: str) -> Error:
    close = difflib.get_close_matches(slug, SLUGS, n=1)
    return Error(
        "unknown-slug",
        f"there is no error called {slug!r}",
        why=f"did you mean {close[0]}?" if close else "no error has a similar name",
        help=f"holdfast explain {close[0]}" if close else "holdfast explain",
    )
