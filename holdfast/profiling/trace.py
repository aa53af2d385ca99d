"""A trace as Kineto writes it: Chrome's trace event format, and the kinds of events in it.

Only complete events (`ph` X) tell of time. Their category (`cat`) says who has seen them: `cpu_op`
an operator of PyTorch, on a thread of the host; `user_annotation` a stretch that somebody has
named, gloo its collectives among them; `kernel`, `gpu_memcpy` and `gpu_memset` what ran on a GPU.
Sources: ActivityType of pytorch/kineto (libkineto/include/ActivityType.h); names of NCCL's kernels
are those of its source (`ncclDevKernel_...`, before 2.19 `ncclKernel_...`).
"""

import msgspec

from holdfast.profiling.intervals import Span

KERNEL = "kernel"
ON_GPU = (KERNEL, "gpu_memcpy", "gpu_memset")
OPERATOR, ANNOTATION = "cpu_op", "user_annotation"
LOADER = "enumerate(DataLoader)#"  # how torch.utils.data names the wait for a batch
COLLECTIVE_KERNELS = ("ncclDevKernel", "ncclKernel", "nvshmem", "rcclDevKernel", "mscclKernel")
COLLECTIVES = ("gloo:", "nccl:", "mpi:", "ucc:", "xccl:", "c10d::", "_c10d_functional::")
COPIES = ("aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize")


class TraceEvent(msgspec.Struct, gc=False):
    """Times in microseconds. A thread is known by process and number, which may be words."""

    ph: str
    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = 0
    tid: int | str = 0

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


def part_on_gpu(event: TraceEvent) -> str:
    """What this is of a step, where a GPU was seen; empty for what happens on the host."""
    if event.ph != "X" or event.cat not in ON_GPU:
        return ""
    if event.cat != KERNEL:
        return "copies"
    return "communication" if event.name.startswith(COLLECTIVE_KERNELS) else "compute"


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
