"""The command line: `main` runs one command and turns every outcome into an exit status.

Results go to standard output, talk to standard error; each command has `--json`. One module per
verb, light to import: whatever needs pydantic, msgspec or the network is imported inside the
function that needs it, so that `holdfast --help` answers at once.

An `Error` is printed as it is, usage errors of the parser take the same form, and a Python
traceback appears only for a mistake of ours.
"""

import signal
import sys
from collections.abc import Sequence

from holdfast import interrupts, stray_signals
from holdfast.errors import Error, ExitStatus

LIVE_LONG = "run", "resume", "controller", "agent", "operator", "federate", "dashboard"  # commands


NO_THREAD = "can't start new thread"


def command() -> int:
    """What the shell starts. Once all is said, another Ctrl-C has nothing left to end: it would
    only hide how the job has ended behind a traceback of Python's own exit."""
    status = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command (default: of this process) and return its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        if given[:1] in (["run"], ["resume"]):  # asyncio has its own way for commands that look
            interrupts.keep()
        if given and given[0] in LIVE_LONG:
            stray_signals.outlive()
        _prepare_streams()
        _require_text(given)
        return _run(given)
    except Error as error:
        return _failed(error)
    except BrokenPipeError:
        return _reader_gone()
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    except OSError as exc:
        return _failed(_of_the_system(exc))
    except UnicodeEncodeError as exc:
        return _failed(_of_the_locale(exc))
    except RuntimeError as exc:
        return _failed(_without_what_it_needs(exc))
    except MemoryError as exc:
        return _failed(_without_memory(exc))


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


def _prepare_streams() -> None:
    """A stream that was closed (`>&-`) swallows what is written; one of another encoding than UTF-8
    gets escapes for what it cannot hold."""
    import os

    _keep_standard_descriptors()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure") and (
            stream.errors == "strict" or stream.encoding.lower() != "utf-8"
        ):  # in the locale C the errors are surrogateescape, which takes no character beyond it
            stream.reconfigure(errors="backslashreplace")


def _keep_standard_descriptors() -> None:
    """Of one that is closed the next file would get the number: the lock of a job, which its
    controller then does not inherit, or a journal, in which the errors of libraries end up."""
    import os

    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _require_text(given: list[str]) -> None:
    """Raise unless every argument, and the name of our folder, is UTF-8: they end up in JSON."""
    import os

    words = {f"argument {i}": word for i, word in enumerate(given, 1)}
    home = "HOLDFAST_HOME" if os.environ.get("HOLDFAST_HOME") else "HOME"
    words[home] = os.environ.get(home, "")
    for name, word in words.items():
        if not word.isascii():
            _require_text_of(given, name, word)


def _require_text_of(given: list[str], name: str, word: str) -> None:
    from holdfast.cli.usage import heed_json
    from holdfast.files import require_text

    try:
        require_text(name, word)
    except Error:
        heed_json(given)
        raise


def _version() -> int:
    from holdfast import __version__

    print(f"holdfast {__version__}", flush=True)
    return ExitStatus.OK


def _failed(error: Error) -> int:
    from holdfast.cli.output import show_error

    show_error(error)
    return error.status


def _reader_gone() -> int:
    """`holdfast logs | head`: whoever read has had enough, which is no error."""
    from holdfast.cli.output import abandon

    abandon(sys.stdout)
    return ExitStatus.OK


def _of_the_system(exc: OSError) -> Error:
    """An error of the operating system in our form; without its number it is a mistake of ours."""
    from holdfast.cli.output import unwritable
    from holdfast.files import unusable

    if exc.errno is None:
        raise exc
    try:
        sys.stdout.flush()  # fails again if that is what failed: the help, which typer prints
    except OSError as again:
        return unwritable(again)
    return unusable(exc)


def _of_the_locale(exc: UnicodeEncodeError) -> Error:
    """What the system cannot be given in the encoding of the locale; in UTF-8 it is a mistake of
    ours."""
    from holdfast.files import not_text

    if sys.getfilesystemencoding() == "utf-8":
        raise exc
    return not_text("a name", exc.object)


def _without_what_it_needs(exc: RuntimeError) -> Error:
    """What pathlib raises for `~` where there is no home, or Python where it may start no thread;
    anything else is a mistake of ours."""
    from holdfast.drivers.limits import no_more_tasks
    from holdfast.files import require_home

    if NO_THREAD in str(exc):
        return no_more_tasks(f"{exc}: neither may the processes of a job")
    try:
        require_home()
    except Error as error:
        return error
    raise exc


def _without_memory(exc: MemoryError) -> Error:
    """A limit of the shell on it; without one the traceback says what took so much."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        raise exc
    return Error(
        "limit-too-small",
        f"the limit on virtual memory, in KiB (ulimit -v), is {limit // 1024}: too little for this",
        why="the command ran out of memory",
        help="ulimit -S -v unlimited   (in another shell if the hard limit of this one is lower)",
    )
