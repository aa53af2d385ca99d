"""What a person or a program gets to see: results on standard output, talk on standard error.

A result is text or, with `--json`, one JSON object; the shapes are those of `holdfast.status`.
Colour only on a terminal and never with NO_COLOR. Talk never raises: a closed terminal must not
end a job. What is printed may quote anything, so characters that a terminal obeys are made visible;
only `verbatim`, for what workers wrote and for JSON, hands on every character as it is.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TextIO

import typer

from holdfast.counts import count as count
from holdfast.errors import Error, visible

STYLES = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "dim": "2"}
_BEYOND_ASCII = re.compile("[^\x00-\x7f]")
_OURS = re.compile(f"(\x1b\\[(?:0|{'|'.join(STYLES.values())})m)")

_json_wanted = False


def want_json(value: bool = True) -> bool:
    """Remember that this process was asked for JSON, so that errors come as JSON too."""
    global _json_wanted
    _json_wanted = _json_wanted or value
    return value


AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print JSON on standard output.",
        callback=want_json,
        is_eager=True,
    ),
]
JobName = Annotated[
    str | None, typer.Argument(help="Name of the job. Default: the newest.", metavar="[NAME]")
]


def talk(text: str = "") -> None:
    """Say something to the person in front of the terminal."""
    try:
        print(printable(text, sys.stderr), file=sys.stderr, flush=True)
    except OSError:
        return


def result(text: str) -> None:
    """Print (part of) the answer."""
    verbatim(printable(text, sys.stdout))


def verbatim(text: str, end: str = "\n") -> None:
    """Print (part of) the answer as it is: the output of workers, or JSON.

    Raises `Error` output-unwritable, and `BrokenPipeError` when its reader has gone.
    """
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise unwritable(exc) from exc


def unwritable(exc: OSError) -> Error:
    """The error for a standard output that takes nothing; it is given up."""
    abandon(sys.stdout)
    return Error(
        "output-unwritable",
        "standard output cannot be written",
        why=exc.strerror or str(exc) or type(exc).__name__,
        help="redirect it to a writable file, or remove the redirection (`>`)",
    )


def abandon(stream: TextIO) -> None:
    """Let what `stream` still holds and will be told go nowhere: it failed once, and would fail
    again when Python ends, which then makes the exit status 120."""
    with contextlib.suppress(OSError, ValueError):  # it has no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def printable(text: str, stream: TextIO) -> str:
    """`text` with visible escapes for what a terminal obeys, but for the styles of `styled`."""
    if not _coloured(stream):
        return visible(text)
    parts = _OURS.split(text)
    return "".join(part if i % 2 else visible(part) for i, part in enumerate(parts))


def json_result(value: Any) -> None:
    """Print the answer as one JSON value; indented on a terminal, else on one line."""
    verbatim(json_text(value, indent=2 if sys.stdout.isatty() else 0))


def json_text(value: Any, indent: int = 0) -> str:
    """One JSON value, as standard output can hold it; on one line without `indent`."""
    import json

    import msgspec

    encoded = msgspec.json.encode(value)
    text = (msgspec.json.format(encoded, indent=indent) if indent else encoded).decode()
    if text.isascii() or (sys.stdout.encoding or "utf-8").lower() == "utf-8":
        return text
    return _BEYOND_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


def show_error(error: Error) -> None:
    """The error on standard error, and as an object on standard output if JSON was asked for."""
    _told(error)
    if not _json_wanted:
        return
    try:
        json_result({"error": error_fields(error)})
    except BrokenPipeError:
        abandon(sys.stdout)
    except Error as another:
        _told(another)


def _told(error: Error) -> None:
    head, _, rest = str(error).partition(": ")
    talk(f"{styled(head, 'red', sys.stderr)}: {rest}")


def error_fields(error: Error) -> dict[str, str | int]:
    """The JSON shape of an error."""
    return {
        "slug": error.slug,
        "what": error.what,
        "why": error.why,
        "help": error.help,
        "exit_status": int(error.status),
    }


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at `stream`."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _coloured(stream: TextIO) -> bool:
    return not os.environ.get("NO_COLOR") and is_terminal(stream)


def styled(text: str, style: str, stream: TextIO | None = None) -> str:
    """`text` in a style where `stream` (default: standard output) shows it."""
    if not _coloured(sys.stdout if stream is None else stream):
        return text
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns padded to their widest cell; the last one is left as it is."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    padded = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in lines]
    head, *body = (line.rstrip() for line in padded)
    return "\n".join([styled(head, "bold"), *body])


def duration(seconds: float) -> str:
    """A length of time as a person would say it."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
