"""What a worker says when it only noticed that a peer was gone.

Those are never the cause: with thousands of ranks, all but one say this. The phrases were recorded
from real processes (tests/diagnosis/record.py); those of NCCL, which needs GPUs, are the ones that
users report (NVIDIA/nccl issues 934, 1514, 2076; zai-org/GLM-130B 132). An ordinary exception is
a symptom only with such a phrase, so that a user's own RuntimeError about a connection is not.
Those of JAX, TensorFlow and XGBoost were recorded from jobs of which one rank was killed.

A time-out among them says more: the peer was there and did not answer. Then somebody stood still.
"""

import re
from collections.abc import Iterator

from holdfast.diagnosis.logs import raised_in
from holdfast.events import WorkerError

GLOO = re.compile(
    r"Connection closed by peer"
    r"|(?:Read|Write) error \[|\[[\d.:a-f%]+\]:\d+: (?:Connection reset by peer|Broken pipe)"
    r"|Timed out waiting \d+ms for (?:recv|send) operation"
    r"|Application timeout caused pair closure"
    r"|failed to pass monitoredBarrier"
    r"|connectFullMesh failed"
    r"|Gloo connect|timed out connecting:"
    r"|Socket closed|recvValue failed|sendBytes failed"
)
STORE = re.compile(
    r"Connection was likely closed|Broken pipe|Connection reset|Connection refused"
    r"|timed? ?out|Timeout|remote server|failed to connect|waiting for clients",
    re.IGNORECASE,
)
NCCL = re.compile(
    r"remote process exited|ncclRemoteError|NCCL communicator was aborted"
    r"|Watchdog caught collective operation timeout|Connection (?:closed|reset) by|Broken pipe"
    r"|Socket Timeout|wait timeout"
)

JAX = re.compile(
    r"Gloo \S+ failed|coordination service|distributed service|Barrier .*(?:failed|timed out)"
)
TENSORFLOW = re.compile(
    r"[Cc]ollective ops is aborted|Connection (?:reset|refused)|Socket closed|failed to connect"
    r"|/job:\w+/replica:\d+/task:\d+"
)
XGBOOST = re.compile(r"\[(?:allreduce|allgather|broadcast|comm|socket|tracker|coll\w*)\.\w+:\d+\|")

WAITED = re.compile(
    r"Timed out waiting \d+ms|Application timeout caused pair closure|wait timeout after"
    r"|failed to pass monitoredBarrier|Watchdog caught collective operation timeout"
    r"|Socket Timeout"
)
MISSED = re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier")


def is_symptom(error: WorkerError) -> bool:
    """Whether an exception, or one it was raised from, says only that a peer is gone."""
    return any(_is_symptom(kind, text) for kind, text in _chain(error))


def _is_symptom(kind: str, message: str) -> bool:
    match kind.rpartition(".")[2]:
        case "RuntimeError":
            return bool(GLOO.search(message) or ("NCCL" in message and NCCL.search(message)))
        case "DistNetworkError" | "DistStoreError" | "DistError":
            return "EADDRINUSE" not in message and bool(STORE.search(message))
        case "DistBackendError":
            return bool(NCCL.search(message) or GLOO.search(message))
        case "JaxRuntimeError" | "XlaRuntimeError":
            return bool(JAX.search(message) or GLOO.search(message))
        case "UnavailableError" | "AbortedError" | "InternalError" | "CancelledError":
            return kind.startswith("tensorflow.") and bool(TENSORFLOW.search(message))
        case "XGBoostError":
            return bool(XGBOOST.search(message))
        case "PeerGoneError":
            return kind == "holdfast.pytrees.channel.PeerGoneError"
        case _:
            return False


def waited(error: WorkerError) -> bool:
    """Whether a symptom is that a peer did not answer in time, not that it was gone."""
    return any(WAITED.search(message) for _, message in _chain(error))


def missed_by(error: WorkerError) -> tuple[int, ...]:
    """The ranks that a symptom says did not come to the barrier."""
    found = [MISSED.search(message) for _, message in _chain(error)]
    named = [match.group(1) for match in found if match]
    return tuple(int(rank) for rank in re.findall(r"\d+", " ".join(named[-1:])))


def _chain(error: WorkerError) -> Iterator[tuple[str, str]]:
    """Type and message of the exception and of those it was raised from."""
    yield from ((raised.type, raised.message) for raised in raised_in(error.traceback))
    yield error.type, error.message
