"""Weigh the exits of an attempt: which rank failed first and not merely because a peer was gone.

Each exit is given a cause from its signal, status and exception. Causes have a weight: what cannot
be a consequence of another rank's death outweighs what may be, and that outweighs what certainly
is. Among equals the earliest death decides. Time alone would not do: a survivor often reports its
broken connection before anybody has reaped the rank that broke it. Where everybody only waited, the
one they waited for is looked for in the progress pages (`stuck.py`).
"""

import re
import signal
from collections.abc import Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import NamedTuple

import msgspec

from holdfast.diagnosis.advice import FLUSH_FAILED
from holdfast.diagnosis.environment import is_environment, slug_of
from holdfast.diagnosis.limits import limit_reached
from holdfast.diagnosis.logs import interrupts_itself
from holdfast.diagnosis.mismatch import NOBODY as NOTHING
from holdfast.diagnosis.mismatch import Entered, says_so, who
from holdfast.diagnosis.numbers import first_broken
from holdfast.diagnosis.stuck import Still, stood_still
from holdfast.diagnosis.symptoms import is_symptom, waited
from holdfast.events import STORE_DIED_BEFORE, Ranks, WorkerError, WorkerExited, each_of
from holdfast.messages import WorkerReport


class Weight(IntEnum):
    """How well a cause explains the failure of the others."""

    NONE = 0  # exited as it should
    CONSEQUENCE = 1  # of a peer's death
    ODD = 2  # left without a word while others trained
    MAYBE = 3  # may be a reaction to something
    CAUSE = 4


class Origin(StrEnum):
    """Where a cause lies, which decides what trying again can do about it."""

    CODE = "code"  # the script or its set-up: the same error at the same place comes again
    ENVIRONMENT = "environment"  # what the script depends on: later it may be well again
    ELSEWHERE = "elsewhere"  # processes, devices, nodes: the next attempt may not meet it


class KnownCause(NamedTuple):
    """One kind of failure. `final`: not even a second attempt could change anything."""

    weight: Weight
    origin: Origin
    meaning: str
    final: bool = False


CODE, ENVIRONMENT, ELSEWHERE = Origin

CAUSES: dict[str, KnownCause] = {
    "worker-killed": KnownCause(
        Weight.CAUSE,
        ELSEWHERE,
        "The worker, or a process that it had started, was killed by a signal from outside.",
    ),
    "forkserver-died": KnownCause(
        Weight.CAUSE,
        ELSEWHERE,
        "The forkserver, the parent process of the worker, died, and the worker with it.",
    ),
    "worker-crashed": KnownCause(
        Weight.CAUSE,
        ELSEWHERE,
        "The worker crashed in native code: a segmentation fault or similar.",
    ),
    "worker-aborted": KnownCause(
        Weight.MAYBE,
        ELSEWHERE,
        "Native code aborted the worker (SIGABRT) because of an error that it detected.",
    ),
    "collective-mismatch": KnownCause(
        Weight.MAYBE,
        CODE,
        "A rank entered another collective, or the same one with another size, than its peers.",
    ),
    "collective-skipped": KnownCause(
        Weight.CAUSE,
        ELSEWHERE,
        "A rank skipped a collective, or entered one too many, so that those of different steps "
        "were paired and gradients were wrong; see [a collective that was left out]"
        "(../concepts/diagnosis.md#a-collective-that-was-left-out).",
    ),
    "worker-exception": KnownCause(Weight.CAUSE, CODE, "The script raised an exception."),
    "environment": KnownCause(
        Weight.MAYBE,
        ENVIRONMENT,
        "Something the worker depends on failed: the network, DNS, a service (time-outs, HTTP 5xx, "
        "broken connections) or a file system (EIO, ESTALE).",
    ),
    "import-error": KnownCause(Weight.CAUSE, CODE, "The script could not import a module."),
    "syntax-error": KnownCause(Weight.CAUSE, CODE, "A Python file could not be compiled."),
    "not-startable": KnownCause(Weight.CAUSE, CODE, "The script or program could not be started."),
    "checkpoint-unusable": KnownCause(
        Weight.CAUSE, CODE, "Checkpoints exist, but none can be restored.", final=True
    ),
    "checkpoint-in-use": KnownCause(
        Weight.CAUSE,
        CODE,
        "Another job of the same name is running and saves in the same checkpoint location.",
        final=True,
    ),
    "declared-differently": KnownCause(
        Weight.CAUSE, CODE, "Ranks call `join()` with different values of `in_process`.", final=True
    ),
    "worker-exit": KnownCause(Weight.MAYBE, CODE, "The script exited with a nonzero status."),
    "exited-early": KnownCause(
        Weight.MAYBE,
        CODE,
        "A worker exited with status 0 before its last step while others trained on.",
    ),
    "exited-silently": KnownCause(
        Weight.ODD, CODE, "A worker exited with status 0 while others still needed it."
    ),
    "nan": KnownCause(
        Weight.CAUSE,
        ELSEWHERE,
        "The loss was NaN or infinite, gradients made parameters so, or the gradient norm was so "
        "for 20 steps in a row.",
    ),
    "corruption": KnownCause(
        Weight.CAUSE,
        ELSEWHERE,
        "Parameters that data-parallel ranks hold alike differed between them: silent data "
        "corruption.",
    ),
    "out-of-memory": KnownCause(
        Weight.CAUSE, CODE, "The worker ran out of memory: of the accelerator, or of the host."
    ),
    "device-error": KnownCause(
        Weight.CAUSE, ELSEWHERE, "The accelerator or its driver reported an error."
    ),
    "device-lost": KnownCause(
        Weight.CAUSE,
        ELSEWHERE,
        "The accelerator does not answer or is gone, or its memory is damaged: its node is "
        "replaced immediately if a spare is available.",
    ),
    "disk-full": KnownCause(
        Weight.CAUSE, ENVIRONMENT, "A file could not be written: the disk is full."
    ),
    "limit-reached": KnownCause(
        Weight.CAUSE,
        CODE,
        "A limit was reached: open files (`ulimit -n`), file size (`ulimit -f`), processes (`-u`).",
    ),
    "port-taken": KnownCause(
        Weight.CAUSE, ENVIRONMENT, "The port of the rendezvous store was in use."
    ),
    "store-lost": KnownCause(
        Weight.CAUSE,
        ELSEWHERE,
        "The rendezvous store of the attempt died, the process in which ranks find each other "
        "(TCPStore).",
    ),
    "peer-lost": KnownCause(
        Weight.CONSEQUENCE,
        ELSEWHERE,
        "A worker lost its connection to a peer that had exited or hung.",
    ),
    "hang": KnownCause(Weight.CAUSE, ELSEWHERE, "A worker hung while the others waited for it."),
    "hardware-fault": KnownCause(
        Weight.CAUSE,
        ELSEWHERE,
        "A GPU, disk or link of a node has a fault that will not pass by itself; see "
        "[health of nodes](../concepts/diagnosis.md#health-of-nodes).",
    ),
    "straggler": KnownCause(
        Weight.CAUSE,
        ELSEWHERE,
        "A rank made all others wait in each step, and the job asked to replace its node; see "
        "[stragglers](../concepts/diagnosis.md#a-straggler).",
    ),
    "node-lost": KnownCause(Weight.CAUSE, ELSEWHERE, "A node was lost, with all its workers."),
    "node-left": KnownCause(
        Weight.CAUSE,
        ELSEWHERE,
        "No fault: planned removal of a node, by a drain, a preemption or a spot market; see "
        "[preemption](../guides/preemption.md).",
    ),
    "orders-lost": KnownCause(
        Weight.CAUSE,
        ELSEWHERE,
        "A controller was lost with its newest orders, or a new version of Holdfast would not have "
        "given them; what they had started was stopped.",
    ),
    "resized": KnownCause(
        Weight.CAUSE,
        ELSEWHERE,
        "No fault: the job was stopped at the end of a step to train on another number of nodes; "
        "see [elastic training](../guides/elastic.md).",
    ),
    "updated": KnownCause(
        Weight.CAUSE,
        ELSEWHERE,
        "No fault: the job was stopped, as a rule at the end of a step, to continue with another "
        "version of its code or its arguments; see [hot update](../guides/update.md).",
    ),
    "repeated": KnownCause(
        Weight.CAUSE,
        ELSEWHERE,
        "No fault: the job was stopped at the end of a step because a repetition of a step was "
        "requested; see [repeating a step](../concepts/diagnosis.md#repeating-a-step).",
    ),
    "diverged": KnownCause(
        Weight.CAUSE,
        ELSEWHERE,
        "The loss rose far above the usual in the first steps after an update.",
    ),
    "finished": KnownCause(Weight.NONE, ELSEWHERE, "The worker had completed all its steps."),
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
SAID_CHARS_MAX = 200  # of an error in a summary; the incident has the whole traceback
SHELL_SIGNALS = range(129, 160)  # exit status of a shell whose command a signal killed
MEMORY = re.compile(
    r"out of memory|can't allocate memory|Cannot allocate memory|CUBLAS_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
RULES = re.compile(r"^(?:[=*#~_-]{8,}\n)+")
DEVICE = re.compile(
    r"(?:CUDA|HIP|cuDNN|cuBLAS|CUBLAS)(?:_STATUS| error| driver)|unhandled cuda"
    r"|uncorrectable NVLink error|CUDA_ERROR_(?:NVLINK_UNCORRECTABLE|ILLEGAL_ADDRESS)"
)
LOST = re.compile(
    r"GPU is lost|fallen off the bus|uncorrectable ECC error|(?:CUDA|HIP)_ERROR_ECC_UNCORRECTABLE"
    r"|cudaErrorECCUncorrectable|Unable to determine the device handle"
)
DEVICE_ASSERT = "device-side assert triggered"  # a kernel was given what it refuses: the script's


# What torch's DataLoader says when a process of its own has died (torch/csrc/DataLoader.cpp).
LOADER_KILLED = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\)"
    r"(?: is killed by signal: (?P<signal>[^.]+)\.| exited unexpectedly(?! with exit code))"
)
# What torch.multiprocessing.spawn, and torchrun inside a worker, say when a rank that they have
# started has died; torchrun names the one that failed first behind "Root Cause".
CHILD_KILLED = re.compile(
    r"(?:process \d+ terminated with signal |traceback : Signal \d+ \()(?P<signal>SIG[A-Z0-9]+)"
)
STARTERS = ("ProcessExitedException", "ChildFailedError")
LOADER_SHM = re.compile(r"out of shared memory|unable to allocate shared memory\(shm\)")


LEFT = ("exited-early", "exited-silently")  # of these each rank is one of its own

Pages = Mapping[int, WorkerReport]
NOBODY: Mapping[int, Ranks] = {}


class Verdict(NamedTuple):
    """Why an attempt failed."""

    cause: str  # a key of CAUSES
    rank: int | None  # that failed first; None: no worker is to blame
    chosen: WorkerExited | None  # its exit; None if it did not exit by itself
    confidence: float  # 0 to 1
    signature: str | None  # type and place of the exception: equal for the same bug
    summary: str  # one sentence for a person
    also_failed: int  # workers that failed besides
    step: int | None = None  # the first whose numbers were not finite, where that is the cause

    @property
    def origin(self) -> Origin:
        """Where the cause lies."""
        return CAUSES[self.cause].origin


def weigh(
    exits: Sequence[WorkerExited],
    pages: Pages | None = None,
    others: Mapping[int, Ranks] = NOBODY,
    entered: Entered = NOTHING,
) -> Verdict:
    """Which worker failed first, and of what.

    The ages of the exits have to be counted to one common moment: the larger, the earlier it died.
    Without exits no worker has failed: its numbers were not finite, or the node was lost. `pages`
    is the newest look at each rank. `others` died later than a rank in `exits`, by that rank, and
    in the same way (`kind_of`). `entered` are the last collectives of ranks that were stopped.
    """
    if all(cause_of(e) == "finished" for e in exits) and (bad := first_broken(pages or {})):
        alone = Weight.CAUSE if bad.rank is not None else Weight.MAYBE
        return Verdict(
            "nan", bad.rank, None, CONFIDENCE[alone], None, bad.summary, 0, step=bad.step
        )
    if not exits:
        summary = "No worker failed on its own; a node was lost."
        return Verdict("node-lost", None, None, 0.5, None, summary, 0)
    causes = [cause_of(e) for e in exits]
    order = [(-CAUSES[c].weight, -e.ago_s, e.rank) for c, e in zip(causes, exits, strict=True)]
    first = min(range(len(exits)), key=order.__getitem__)
    cause, chosen = causes[first], exits[first]
    alike = {rank: set(each_of(ranks)) for rank, ranks in others.items()}
    counts = [1 + len(alike.get(e.rank, ())) for e in exits]
    failed = sum(n for c, n in zip(causes, counts, strict=True) if c != "finished")
    gone = {e.rank for e in exits}.union(*alike.values())
    if cause == "peer-lost" and (still := _waited_for(exits, gone, pages or {})) is not None:
        return _hang(still, chosen, failed)
    if cause == "collective-mismatch":
        return _mismatch(exits, chosen, failed, entered)
    return Verdict(
        cause=cause,
        rank=chosen.rank,
        chosen=chosen,
        confidence=_confidence(first, causes, exits, alone=counts[first] == 1),
        signature=signature_of(cause, chosen),
        summary=_summary(cause, chosen),
        also_failed=failed - (cause != "finished"),
    )


def _waited_for(exits: Sequence[WorkerExited], gone: set[int], pages: Pages) -> Still | None:
    """Who stood still, if a failed worker says that it waited until the time was up."""
    errors = [e.error for e in exits if e.error is not None]
    return stood_still(errors, gone, pages) if any(map(waited, errors)) else None


def _hang(still: Still, waiting: WorkerExited, failed: int) -> Verdict:
    ranks = ", ".join(map(str, still.ranks))
    who = f"Rank{'s' if len(still.ranks) > 1 else ''} {ranks} hung"
    where = f" after step {still.step}" if still.step is not None else ""
    doing = f" ({still.doing})" if still.doing else ""
    said = f"; rank {waiting.rank} waited until {_said(waiting.error)}" if waiting.error else ""
    return Verdict(
        cause="hang",
        rank=still.ranks[0],
        chosen=next((w for w in (waiting,) if w.rank == still.ranks[0]), None),
        confidence=CONFIDENCE[Weight.MAYBE],
        signature=None,
        summary=f"{who}{where}{doing}{said}.",
        also_failed=failed,
    )


def _mismatch(
    exits: Sequence[WorkerExited], first: WorkerExited, failed: int, entered: Entered
) -> Verdict:
    """Often the one that fails first is not the one that was wrong."""
    wrong = who(exits, first, entered)
    said = _said(first.error) if first.error is not None else first.clue
    whose = "it" if wrong.rank == first.rank else f"rank {first.rank}"
    return Verdict(
        cause="collective-mismatch",
        rank=wrong.rank,
        chosen=next((e for e in exits if e.rank == wrong.rank), None),
        confidence=wrong.confidence,
        signature=signature_of("collective-mismatch", first),
        summary=f"Rank {wrong.rank} entered a collective that does not match: {wrong.text}; "
        f"{whose} failed because of it: {said}",
        also_failed=failed - any(e.rank == wrong.rank for e in exits),
    )


def cause_of(exited: WorkerExited) -> str:
    """What ended this worker, a key of CAUSES."""
    error, number = exited.error, _signal(exited)
    if exited.clue:
        return "collective-mismatch"
    below = loader_was_killed(error) or _killed_below(error) == signal.SIGKILL
    if exited.oom and (number == signal.SIGKILL or below):
        return "out-of-memory"
    if exited.forkserver and number == signal.SIGKILL:
        return "forkserver-died"
    if exited.store == STORE_DIED_BEFORE and number == signal.SIGKILL:  # its agent did that
        return "store-lost"
    itself = error is not None and (number == signal.SIGABRT or interrupts_itself(error))
    if number is not None and not itself:
        return _cause_of_signal(number)
    if exited.exit_code == 0:
        return _cause_of_success(exited)
    if error is not None and is_symptom(error):
        return "store-lost" if exited.store else "peer-lost"
    if error is not None:
        return _cause_of_exception(error)
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


def loader_was_killed(error: WorkerError | None) -> bool:
    """Whether a process of a data loader was killed, not the worker itself."""
    return error is not None and LOADER_KILLED.search(error.message) is not None


def _killed_below(error: WorkerError | None) -> int | None:
    """The signal that ended a rank that the worker had started by itself."""
    if error is None or error.type.rpartition(".")[2] not in STARTERS:
        return None
    _, root, rest = error.message.partition("Root Cause")
    found = CHILD_KILLED.search(rest if root else error.message)
    return getattr(signal, found.group("signal"), None) if found else None


def _cause_of_success(exited: WorkerExited) -> str:
    if exited.progress.finished:
        return "finished"
    return "exited-silently" if exited.progress.step is None else "exited-early"


def _cause_of_exception(error: WorkerError) -> str:
    if (slug := slug_of(error)) in CAUSES and CAUSES[slug].final:
        return slug
    match error.type.rpartition(".")[2]:
        case "KeyboardInterrupt" if not interrupts_itself(error):
            return "worker-killed"
        case _ if is_environment(error):
            return "environment"
        case "SystemExit":
            return "worker-exit"
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
    if says_so(error):
        return "collective-mismatch"
    if (number := _killed_below(error)) is not None:
        return _cause_of_signal(number)
    if LOADER_SHM.search(error.message):
        return "out-of-memory"
    if error.type == "RuntimeError" and LOADER_KILLED.search(error.message):
        return "worker-killed"
    if MEMORY.search(error.message):
        return "out-of-memory"
    if "EADDRINUSE" in error.message:
        return "port-taken"
    if "No space left on device" in error.message:
        return "disk-full"
    if limit_reached(error):
        return "limit-reached"
    if DEVICE_ASSERT in error.message:
        return "worker-exception"
    if LOST.search(error.message):
        return "device-lost"
    return "device-error" if DEVICE.search(error.message) else "worker-exception"


def _confidence(
    first: int, causes: Sequence[str], exits: Sequence[WorkerExited], *, alone: bool
) -> float:
    """Less when another exit is as good an explanation; the same bug on all ranks is one."""
    weight = CAUSES[causes[first]].weight
    mine = (causes[first], signature_of(causes[first], exits[first]))
    rivals = (not alone and causes[first] in LEFT) or any(
        CAUSES[c].weight == weight and (c, signature_of(c, e)) != mine
        for c, e in zip(causes, exits, strict=True)
    )
    return round(CONFIDENCE[weight] * (RIVALS if rivals else 1.0), 3)


def signature_of(cause: str, exited: WorkerExited) -> str | None:
    """Equal for the same bug: without the message, in which addresses and counts change, and
    without the folder of the file, which need not be the same on each node."""
    error = exited.error
    if error is not None and _killed_below(error) is None:
        return f"{error.type}@{error.file.rpartition('/')[2]}:{error.line}"
    if cause == "worker-exit":
        return f"exit status {exited.exit_code}"
    if cause == "out-of-memory":
        return "killed for memory"
    return f"exit status 0 of rank {exited.rank}" if cause in LEFT else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _summary(cause: str, exited: WorkerExited) -> str:
    who = f"Rank {exited.rank}"
    if (number := _killed_below(exited.error)) is not None and not exited.oom:
        ended = msgspec.structs.replace(exited, signal=number, error=None)
        return f"A process that {who} had started {_ending(ended)}."
    match cause:
        case "out-of-memory" if exited.oom:
            child = "data loader process" if loader_was_killed(exited.error) else "child process"
            whom = f"{who} was" if exited.error is None else f"A {child} of {who} was"
            return f"{whom} killed by the kernel's out-of-memory killer ({exited.oom})."
        case "out-of-memory" if exited.error is not None:
            return f"{who} failed with {_said(exited.error)}{_loader_hint(exited.error)}"
        case "finished":
            return f"{who} had completed all its steps."
        case "exited-early":
            step = exited.progress.step
            return f"{who} exited with status 0 after step {step} while the others trained on."
        case "exited-silently":
            return f"{who} exited with status 0 while others still needed it."
        case "worker-exit":
            return f"{who} {_ending(exited)}{_farewell(exited.error)}{_place(exited.error)}."
        case "forkserver-died":
            return f"{who} died with its forkserver ({exited.forkserver})."
        case "store-lost" if exited.error is None:
            return f"{who} was stopped before it trained: the attempt's rendezvous store was dead."
        case "store-lost":
            died = f"the rendezvous store died ({exited.store})"
            return f"{who} lost its connection because {died}."
        case "peer-lost":
            return f"{who} lost its connection to a peer that had exited or hung."
        case "limit-reached" if exited.error is not None:
            return f"{who} reached the {limit_reached(exited.error)}: {_said(exited.error)}"
        case "worker-killed" if exited.error is not None:
            return f"{who} failed with {_said(exited.error)}{_loader_hint(exited.error)}"
        case _ if exited.error is not None:
            return f"{who} failed with {_said(exited.error)}"
        case _:
            return f"{who} {_ending(exited)}."


def _loader_hint(error: WorkerError) -> str:
    """What kills a process of a data loader, by its signal."""
    said = [match.group("signal") for match in LOADER_KILLED.finditer(error.traceback)]
    found = LOADER_KILLED.search(error.message)
    name = next(filter(None, [*said, found.group("signal") if found else None]), None)
    if LOADER_SHM.search(error.message) or name == "Bus error":
        return "; /dev/shm of the node is too small for num_workers (resources.shm, --shm-size)"
    if name == "Killed":
        return "; possibly by the kernel's out-of-memory killer"
    return ""


def _said(error: WorkerError) -> str:
    """Type, message and place."""
    message = _first_line(error)
    return f"{error.type}{': ' if message else ''}{message}{_place(error)}"


def _first_line(error: WorkerError) -> str:
    """Of its message, as it is, without rules that are drawn above it; "…" where more follows."""
    whole = RULES.sub("", error.message.strip())
    message = whole.partition("\n")[0][:SAID_CHARS_MAX]
    return message + ("…" if len(message) < len(whole) else "")


def _farewell(error: WorkerError | None) -> str:
    """What a script has given to `sys.exit()`, where that is no number."""
    said = error is not None and error.type == "SystemExit" and _first_line(error)
    return f": {said}" if said and not said.lstrip("-").isdigit() else ""


def _place(error: WorkerError | None) -> str:
    return f" ({error.file}:{error.line})" if error is not None and error.file else ""


def _ending(exited: WorkerExited) -> str:
    number = _signal(exited)
    if number is None:
        flush = exited.exit_code == FLUSH_FAILED and exited.error is None
        why = ": Python could not write the rest of its output" if flush else ""
        return f"exited with status {exited.exit_code}{why}"
    name = _signal_name(number)
    if name == "SIGKILL":
        return "was killed by SIGKILL, possibly by the kernel's out-of-memory killer"
    verb = "crashed with" if name in (*CRASHES, "SIGABRT") else "was killed by"
    return f"{verb} {name}"
