"""A trace as Kineto writes it: Chrome's trace event format, and the kinds of events in it.

Only complete events (`ph` X) tell of time. Their category (`cat`) says who has seen them: `cpu_op`
an operator of PyTorch, on a thread of the host; `user_annotation` a stretch that somebody has
named, gloo its collectives among them; `kernel`, `gpu_memcpy` and `gpu_memset` what ran on a GPU,
each with the `correlation` of the call (`cuda_runtime`, `cuda_driver`) that has queued it.
Sources: ActivityType of pytorch/kineto (libkineto/include/ActivityType.h); names of NCCL's kernels
are those of its source (`ncclDevKernel_...`, before 2.19 `ncclKernel_...`, since 2.27 those on
symmetric memory `ncclSymkDevKernel_...`), those of PyTorch's own collectives on symmetric memory of
CUDASymmetricMemoryOps.cu.
"""

import bisect
import re

import msgspec

from holdfast.profiles import SNAPSHOT
from holdfast.profiling.intervals import Span, Spans, united

KERNEL = "kernel"
ON_GPU = (KERNEL, "gpu_memcpy", "gpu_memset")
OPERATOR, ANNOTATION = "cpu_op", "user_annotation"
LOADER = "enumerate(DataLoader)#"  # how torch.utils.data names the wait for a batch
COLLECTIVE_KERNEL = re.compile(
    r"\b(nccl|rccl|msccl|nvshmem|multimem_|(one|two)_shot_all_reduce)"  # also after `void at::`
)
AMONG_ALL = re.compile("all_?(reduce|gather|to_?all)|reduce_?scatter|barrier", re.IGNORECASE)
COLLECTIVES = ("gloo:", "nccl:", "mpi:", "ucc:", "xccl:", "c10d::", "_c10d_functional::")
COPIES = ("aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize")


Thread = tuple[int | str, int | str]


class EventArgs(msgspec.Struct, frozen=True, gc=False):
    """Of a collective's kernel: what it does, and who takes part, as PyTorch writes both. Of what
    runs on a GPU, and of the call that has queued it: a number that both have in common."""

    collective: object = msgspec.field(name="Collective name", default="")
    group_ranks: object = msgspec.field(name="Process Group Ranks", default="")  # "[0, 2, 4]"
    correlation: object = 0


class TraceEvent(msgspec.Struct, gc=False):
    """Times in microseconds. A thread is known by process and number, which may be words."""

    ph: str
    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = 0
    tid: int | str = 0
    args: EventArgs = EventArgs()

    @property
    def thread(self) -> Thread:
        """Whose it is."""
        return self.pid, self.tid

    @property
    def span(self) -> Span:
        """When it was."""
        return self.ts, self.ts + self.dur


class Trace(msgspec.Struct, rename="camel"):
    """Times are since `base_time_nanoseconds` after the epoch, by the clock of the wall."""

    trace_events: list[TraceEvent]
    base_time_nanoseconds: int = 0
    host_name: str = msgspec.field(name="host_name", default="")

    def at(self, wall_ns: int) -> float:
        """This time of the wall's clock on the trace's own axis, in microseconds."""
        return (wall_ns - self.base_time_nanoseconds) / 1000


_decoder = msgspec.json.Decoder(Trace)


def read(text: bytes) -> Trace:
    """A trace. Raises `msgspec.MsgspecError` if it is none."""
    return _decoder.decode(text)


def has_kernels(trace: Trace) -> bool:
    """Whether a GPU was seen."""
    return any(event.cat == KERNEL for event in trace.trace_events)


def snapshot_spans(trace: Trace) -> dict[Thread, Spans]:
    """When each thread did something for a snapshot of Holdfast."""
    found: dict[Thread, list[Span]] = {}
    for event in trace.trace_events:
        if event.ph == "X" and event.cat == ANNOTATION and event.name == SNAPSHOT:
            found.setdefault(event.thread, []).append(event.span)
    return {thread: united(spans) for thread, spans in found.items()}


def is_within(event: TraceEvent, spans: Spans) -> bool:
    """Whether it began in one of these."""
    at = bisect.bisect_right(spans, (event.ts, float("inf")))
    return at > 0 and event.ts < spans[at - 1][1]


def part_on_gpu(event: TraceEvent) -> str:
    """What this is of a step, where a GPU was seen; empty for what happens on the host."""
    if event.ph != "X" or event.cat not in ON_GPU:
        return ""
    if event.cat != KERNEL:
        return "copies"
    return "communication" if COLLECTIVE_KERNEL.search(event.name) else "compute"


def ends_together(event: TraceEvent, on_gpu: bool) -> bool:
    """Whether this is a collective that ends on all its ranks at about the same time, as none can
    end before the last has come. A broadcast is not, nor the call that queues one (`c10d::`, and
    beside a GPU `nccl:`)."""
    if on_gpu:
        itself = part_on_gpu(event) == "communication"
    else:
        named = event.cat == ANNOTATION and event.name.startswith(("gloo:", "mpi:"))
        itself = named and event.ph == "X"
    return itself and AMONG_ALL.search(f"{event.args.collective} {event.name}") is not None


def part_on_host(event: TraceEvent) -> str:
    """What this is of a step, where there is no GPU."""
    if event.ph != "X" or event.cat not in (OPERATOR, ANNOTATION):
        return ""
    if event.name.startswith(COLLECTIVES):
        return "communication"
    if event.cat == ANNOTATION:
        return ""
    return "copies" if event.name in COPIES else "compute"


def is_loader(event: TraceEvent) -> bool:
    """Whether the host waits here for a DataLoader."""
    return event.ph == "X" and event.cat == ANNOTATION and event.name.startswith(LOADER)
