"""The command line: `main` runs one command and turns every outcome into an exit status.

Results go to standard output, talk to standard error; each command has `--json`. One module per
verb, light to import: whatever needs pydantic, msgspec or the network is imported inside the
function that needs it, so that `holdfast --help` answers at once.

An `Error` is printed as it is, usage errors of the parser take the same form, and a Python
traceback appears only for a mistake of ours.
"""

import sys
from collections.abc import Sequence

from holdfast.errors import Error, ExitStatus


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command (default: of this process) and return its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(given)
    except Error as error:
        return _failed(error)
    except BrokenPipeError:
        return _reader_gone()
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    except OSError as exc:
        return _failed(_of_the_system(exc))


def _run(given: list[str]) -> int:
    if given in (["version"], ["--version"]):
        return _version()  # without the parser, which alone costs three times as much

    import typer

    from holdfast.cli.app import app
    from holdfast.cli.usage import usage_error

    try:
        status = app(given, prog_name="holdfast", standalone_mode=False, obj=given)
    except typer.Abort:
        return ExitStatus.INTERRUPTED  # what typer makes of Ctrl-C
    except SystemExit as exc:
        if isinstance(exc.__context__, BrokenPipeError):
            raise exc.__context__ from None  # typer would make it status 1: "the job failed"
        raise
    except Exception as exc:
        error = usage_error(exc, given)
        if error is None:
            raise
        raise error from None
    return int(status or 0)


def _version() -> int:
    from holdfast import __version__

    print(f"holdfast {__version__}")
    return ExitStatus.OK


def _failed(error: Error) -> int:
    from holdfast.cli.output import show_error

    show_error(error)
    return error.status


def _reader_gone() -> int:
    """`holdfast logs | head`: whoever read has had enough, which is no error."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitStatus.OK


def _of_the_system(exc: OSError) -> Error:
    """An error of the operating system in our form; without its number it is a mistake of ours."""
    from holdfast.files import unusable

    if exc.errno is None:
        raise exc
    return unusable(exc)
