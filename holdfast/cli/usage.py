"""Errors of the command line parser in the form of all other errors.

The parser is the one that typer brings along, whose exceptions typer does not export under a
stable name: they are known by what they offer, a message and an exit status.
"""

from holdfast.cli import output
from holdfast.errors import Error


def usage_error(exc: Exception, given: list[str]) -> Error | None:
    """The `Error` that stands for a parser's exception, None if it is something else."""
    if isinstance(exc, Error) or not callable(getattr(exc, "format_message", None)):
        return None
    heed_json(given)
    message = str(exc.format_message()).strip()  # type: ignore[attr-defined]
    what, _, rest = message.partition("\n")
    return Error(
        "usage",
        _lowered(what).rstrip(".") or "a command is missing",
        why=rest.strip() or "the command line is invalid",
        help=f"{_command_path(exc)} --help",
    )


def heed_json(given: list[str]) -> None:
    """Have errors come as JSON too if that is asked for among our own arguments."""
    if _json_asked(given):
        output.want_json()


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _command_path(exc: Exception) -> str:
    context = getattr(exc, "ctx", None)
    return str(context.command_path) if context is not None else "holdfast"


def _json_asked(given: list[str]) -> bool:
    """Whether `--json` stands among our own arguments, not those of a script."""
    ours = given
    if given[:1] == ["run"]:
        ends = (i for i, word in enumerate(given) if word.endswith((".py", ".sh")) or word == "--")
        ours = given[: next(ends, len(given))]
    return "--json" in ours
