"""Weigh the exits of an attempt: which rank failed first and not merely because a peer was gone.

Each exit is given a cause from its signal, status and exception. Causes have a weight: what cannot
be a consequence of another rank's death outweighs what may be, and that outweighs what certainly
is. Among equals the earliest death decides. Time alone would not do: a survivor often reports its
broken connection before anybody has reaped the rank that broke it.
"""

import re
import signal
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from holdfast.diagnosis.symptoms import is_symptom
from holdfast.events import WorkerError, WorkerExited


class Weight(IntEnum):
    """How well a cause explains the failure of the others."""

    NONE = 0  # exited as it should
    CONSEQUENCE = 1  # of a peer's death
    ODD = 2  # left without a word while others trained
    MAYBE = 3  # may be a reaction to something
    CAUSE = 4


class Cause(NamedTuple):
    """One kind of failure. `user`: the user's code or set-up, so trying again changes nothing."""

    weight: Weight
    user: bool
    meaning: str


CAUSES: dict[str, Cause] = {
    "worker-killed": Cause(
        Weight.CAUSE, False, "Something outside the worker killed it by a signal."
    ),
    "forkserver-died": Cause(
        Weight.CAUSE, False, "The process died that had forked the worker, and took it along."
    ),
    "worker-crashed": Cause(
        Weight.CAUSE, False, "The worker crashed in native code: a segmentation fault or the like."
    ),
    "worker-aborted": Cause(
        Weight.MAYBE, False, "Native code aborted the worker, in reaction to an error it found."
    ),
    "worker-exception": Cause(Weight.CAUSE, True, "The script raised an exception."),
    "import-error": Cause(Weight.CAUSE, True, "The script could not import a module."),
    "syntax-error": Cause(Weight.CAUSE, True, "A Python file could not be compiled."),
    "not-startable": Cause(Weight.CAUSE, True, "The script or program could not be started."),
    "worker-exit": Cause(Weight.MAYBE, True, "The script ended itself with an exit status."),
    "exited-early": Cause(
        Weight.CAUSE, True, "A worker exited with status 0 although it had steps left to do."
    ),
    "exited-silently": Cause(
        Weight.ODD, True, "A worker exited with status 0 while others still needed it."
    ),
    "out-of-memory": Cause(Weight.CAUSE, True, "An allocation failed for lack of memory."),
    "device-error": Cause(Weight.CAUSE, False, "The accelerator or its driver reported an error."),
    "disk-full": Cause(Weight.CAUSE, False, "A file could not be written: the disk is full."),
    "limit-reached": Cause(
        Weight.CAUSE,
        True,
        "A limit for each process was reached: open files (`ulimit -n`), or the size of a file "
        "(`ulimit -f`).",
    ),
    "port-taken": Cause(Weight.CAUSE, False, "The port of the rendezvous store was in use."),
    "peer-lost": Cause(
        Weight.CONSEQUENCE, False, "A worker lost its connection to a peer that was gone or stuck."
    ),
    "node-lost": Cause(Weight.CAUSE, False, "A node was gone, with all its workers."),
    "finished": Cause(Weight.NONE, False, "The worker had done all its steps."),
}
"""Every cause a verdict or an incident can name, with the sentence the documentation prints."""

CONFIDENCE = {
    Weight.CAUSE: 0.95,
    Weight.MAYBE: 0.6,
    Weight.ODD: 0.5,
    Weight.CONSEQUENCE: 0.3,
    Weight.NONE: 0.1,
}
"""Of a verdict that no other exit contradicts. A judgement, not a measurement."""
RIVALS = 0.7  # times that, when an exit of the same weight points elsewhere

CRASHES = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS", "SIGTRAP")
SHELL_SIGNALS = range(129, 160)  # exit status of a shell whose command a signal killed
MEMORY = re.compile(
    r"out of memory|can't allocate memory|Cannot allocate memory|HIP out of memory", re.IGNORECASE
)
LIMIT = re.compile(r"\[Errno (?:24|27)\]|Too many open files|File too large")
DEVICE = re.compile(r"(?:CUDA|HIP|cuDNN|cuBLAS|CUBLAS)(?:_STATUS| error| driver)|unhandled cuda")


class Verdict(NamedTuple):
    """Why an attempt failed."""

    cause: str  # a key of CAUSES
    chosen: WorkerExited | None  # the exit that explains the others; None without exits
    confidence: float  # 0 to 1
    user_error: bool
    signature: str | None  # type and place of the exception: equal for the same bug
    summary: str  # one sentence for a person
    also_failed: int  # workers that failed besides


def weigh(exits: Sequence[WorkerExited]) -> Verdict:
    """Which worker failed first, and of what.

    The ages of the exits have to be counted to one common moment: the larger, the earlier it died.
    Without exits no worker is to blame: the node was lost.
    """
    if not exits:
        return Verdict(
            "node-lost", None, 0.5, False, None, "No worker failed by itself; a node was lost.", 0
        )
    causes = [_cause(e) for e in exits]
    order = [(-CAUSES[c].weight, -e.ago_s, e.rank) for c, e in zip(causes, exits, strict=True)]
    first = min(range(len(exits)), key=order.__getitem__)
    cause, chosen = causes[first], exits[first]
    return Verdict(
        cause=cause,
        chosen=chosen,
        confidence=_confidence(first, causes, exits),
        user_error=CAUSES[cause].user,
        signature=_signature(cause, chosen),
        summary=_summary(cause, chosen),
        also_failed=sum(c != "finished" for i, c in enumerate(causes) if i != first),
    )


def _cause(exited: WorkerExited) -> str:
    number = _signal(exited)
    if exited.forkserver and number == signal.SIGKILL:
        return "forkserver-died"
    aborted_after = number == signal.SIGABRT and exited.error is not None
    if number is not None and not aborted_after:
        return _cause_of_signal(number)
    if exited.exit_code == 0:
        return _cause_of_success(exited)
    if exited.error is not None:
        return _cause_of_exception(exited.error)
    return "not-startable" if exited.exit_code in (126, 127) else "worker-exit"


def _signal(exited: WorkerExited) -> int | None:
    """The signal that ended the worker, or its command under a shell."""
    code = exited.exit_code or 0
    if exited.signal is None and exited.error is None and code in SHELL_SIGNALS:
        return code - 128
    return exited.signal


def _cause_of_signal(number: int) -> str:
    name = _signal_name(number)
    if name == "SIGABRT":
        return "worker-aborted"
    return "worker-crashed" if name in CRASHES else "worker-killed"


def _cause_of_success(exited: WorkerExited) -> str:
    if exited.progress.finished:
        return "finished"
    return "exited-silently" if exited.progress.step is None else "exited-early"


def _cause_of_exception(error: WorkerError) -> str:
    if is_symptom(error):
        return "peer-lost"
    match error.type.rpartition(".")[2]:
        case "SystemExit":
            return "worker-exit"
        case "KeyboardInterrupt":
            return "worker-killed"
        case "ImportError" | "ModuleNotFoundError":
            return "import-error"
        case "SyntaxError" | "IndentationError" | "TabError":
            return "syntax-error"
        case "OutOfMemoryError" | "MemoryError":
            return "out-of-memory"
        case "FileNotFoundError" | "PermissionError" if error.line == 0:
            return "not-startable"
        case _:
            return _cause_of_message(error)


def _cause_of_message(error: WorkerError) -> str:
    if MEMORY.search(error.message):
        return "out-of-memory"
    if "EADDRINUSE" in error.message:
        return "port-taken"
    if "No space left on device" in error.message:
        return "disk-full"
    if LIMIT.search(error.message):
        return "limit-reached"
    return "device-error" if DEVICE.search(error.message) else "worker-exception"


def _confidence(first: int, causes: Sequence[str], exits: Sequence[WorkerExited]) -> float:
    """Less when another exit is as good an explanation; the same bug on all ranks is one."""
    weight = CAUSES[causes[first]].weight
    mine = (causes[first], _signature(causes[first], exits[first]))
    rivals = any(
        CAUSES[c].weight == weight and (c, _signature(c, e)) != mine
        for c, e in zip(causes, exits, strict=True)
    )
    return round(CONFIDENCE[weight] * (RIVALS if rivals else 1.0), 3)


def _signature(cause: str, exited: WorkerExited) -> str | None:
    """Without the message, in which addresses and counts change from time to time."""
    error = exited.error
    if error is not None:
        return f"{error.type}@{error.file}:{error.line}"
    return f"exit status {exited.exit_code}" if cause == "worker-exit" else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _summary(cause: str, exited: WorkerExited) -> str:
    who = f"Rank {exited.rank}"
    match cause:
        case "finished":
            return f"{who} had done all its steps."
        case "exited-early":
            return f"{who} exited with status 0 after step {exited.progress.step}, before the end."
        case "exited-silently":
            return f"{who} exited with status 0 while others still needed it."
        case "worker-exit":
            return f"{who} {_ending(exited)}{_place(exited.error)}."
        case "forkserver-died":
            return f"{who} was taken along by its forkserver, which died ({exited.forkserver})."
        case "peer-lost":
            return f"{who} lost its connection to a peer that was gone or stuck."
        case "limit-reached" if exited.error is not None:
            which = "-f" if "File too large" in exited.error.message else "-n"
            return f"{who} reached the limit of ulimit {which}: {_said(exited.error)}"
        case _ if exited.error is not None:
            return f"{who} failed with {_said(exited.error)}"
        case _:
            return f"{who} {_ending(exited)}."


def _said(error: WorkerError) -> str:
    """Type, message (its first line) and place."""
    message = error.message.strip().partition("\n")[0][:200]
    return f"{error.type}{': ' if message else ''}{message}{_place(error)}"


def _place(error: WorkerError | None) -> str:
    return f" ({error.file}:{error.line})" if error is not None and error.file else ""


def _ending(exited: WorkerExited) -> str:
    number = _signal(exited)
    if number is None:
        return f"exited with status {exited.exit_code}"
    name = _signal_name(number)
    if name == "SIGKILL":
        return "was killed by SIGKILL, possibly by the kernel's out-of-memory killer"
    verb = "crashed with" if name in (*CRASHES, "SIGABRT") else "was killed by"
    return f"{verb} {name}"
