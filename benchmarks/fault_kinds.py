"""The kinds of faults of benchmarks/faults.py, and what Holdfast should call them.

Those of `NO_STEPS` are done by a script of which no steps are seen, and some of them are no fault.
"""

from typing import NamedTuple

from fault_stage import MEMORY, MOUNTS, NETWORK, WRITES
from holdfast.drivers.chaos import FAULTS
from holdfast.events import CheckpointFailed, Event, NumbersSpiked, StragglersFound


class Kind(NamedTuple):
    """Causes that are right for it; whether it is of one rank, or of all of them."""

    causes: tuple[str, ...]
    has_rank: bool = True
    everywhere: bool = False
    steps: int = 40  # until the next fault: what is usual is learned in 32
    fact: type[Event] | None = None  # that tells it, where it is told and nothing is done
    outside: bool = False  # done by benchmarks/faults.py, once the script has said that it is time
    needs: str = ""  # of benchmarks/fault_stage.py
    steps_seen: bool = True  # by a script that reports them
    with_problem: bool = False  # its causes say which known problem the incident has to name, too


def _outside(name: str) -> Kind:
    """One that can be done from outside, too: this script does it to itself."""
    return Kind(FAULTS[name].causes, FAULTS[name].has_rank)


def _only_outside(name: str) -> Kind:
    return _outside(name)._replace(outside=True)


NO_STEPS = "no steps: "
HANG = Kind(("hang",))
SILENT = HANG._replace(steps_seen=False)
MEANT = SILENT._replace(causes=(), has_rank=False)  # nothing is to be done about it
EXCEPTION = Kind(("worker-exception",))
KINDS: dict[str, Kind] = {
    "SIGKILL": _outside("SIGKILL"),
    "SIGKILL with 1 GB": _outside("SIGKILL"),  # the kernel takes a while to free them
    "SIGTERM": _outside("SIGTERM"),
    "SIGSEGV": _outside("SIGSEGV"),
    "SIGBUS": _outside("SIGBUS"),
    "abort": _outside("abort"),
    "exception": EXCEPTION,
    "exception on all ranks": Kind(("worker-exception",), has_rank=False, everywhere=True),
    "exception from another thread": EXCEPTION,
    "recursion": EXCEPTION,
    "import error": Kind(("import-error",)),
    "exit with status 3": Kind(("worker-exit",)),
    "exit with status 0": Kind(("exited-early",)),
    "host memory refused": Kind(("out-of-memory",)),
    "memory leak": Kind(("out-of-memory",), needs=MEMORY),
    "disk full": Kind(("disk-full",), needs=MOUNTS),
    "/dev/shm full": Kind(("out-of-memory", "disk-full"), needs=MOUNTS),  # its summary names it
    "read-only folder": Kind(
        ("worker-exception: read-only-file-system",), needs=MOUNTS, with_problem=True
    ),
    "open files": Kind(("limit-reached",)),
    "connection refused": Kind(("environment",)),
    "storage answers 503": Kind(("environment",)),
    "sleep": HANG,
    "deadlock": HANG,
    "GIL held": HANG,
    "SIGSTOP": _outside("SIGSTOP"),
    "loop in Python": HANG,
    "loop in C": HANG,
    "skipped collective": HANG,
    "mismatched collective": Kind(("collective-mismatch", "hang")),
    "input stops": HANG,
    "NaN": Kind(("nan",), has_rank=False),
    "NaN gradient": Kind(("nan",), has_rank=False),
    "loss spike": Kind(("spike",), has_rank=False, fact=NumbersSpiked),
    "bit flip": Kind(("corruption",), has_rank=False),
    "port taken": Kind(("worker-exception: port-taken",), with_problem=True),
    "rendezvous port squatted": _outside("SIGKILL"),  # of its worker, which takes the port first
    "slow rank": Kind(("straggler",), steps=900, fact=StragglersFound),
    "slow input": Kind(("straggler by input",), steps=900, fact=StragglersFound),
    "slow disk": Kind(("straggler",), steps=800, fact=StragglersFound, needs=WRITES),
    "checkpoint disk full": Kind(
        ("disk-full",), has_rank=False, steps=250, fact=CheckpointFailed, outside=True, needs=MOUNTS
    ),
    "partition": _only_outside("partition")._replace(needs=NETWORK, steps=200),
    "machine stopped": _only_outside("machine stopped"),
    "XID": Kind(("hardware-fault",), has_rank=False, outside=True),
    "connection cut": _only_outside("connection cut"),
    "agent killed": _only_outside("agent killed"),
    "agent stopped": _only_outside("agent stopped"),
    "forkserver killed": _only_outside("forkserver killed"),
    NO_STEPS + "deadlock": SILENT._replace(has_rank=False, everywhere=True),
    NO_STEPS + "rank deadlocked": SILENT,
    NO_STEPS + "rank reads": SILENT,
    NO_STEPS + "rank stopped": SILENT,
    NO_STEPS + "rank computes": MEANT,
    NO_STEPS + "rank sleeps": MEANT,
    NO_STEPS + "all sleep": MEANT._replace(everywhere=True),
}
