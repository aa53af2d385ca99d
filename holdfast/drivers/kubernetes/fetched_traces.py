"""The traces of a profile, from the pods of a job to a folder of whoever asks.

They come the way that stacks come, by ConfigMap `NAME-stacks`, part by part: whoever may ask for a
profile needs no other right, and nothing is left in the cluster but the last part. That is slow and
wears the API server's store, so what comes is bounded; what is too large stays where it is.
"""

import secrets
from collections.abc import Sequence
from pathlib import Path

from holdfast.drivers.kubernetes.cluster import ApiError, Cluster
from holdfast.drivers.kubernetes.published_stacks import ask_for_trace_part
from holdfast.profiles import RankProfile, TakeTracePart, TracePart, TracePartRequest

TRACES_BYTES = 32 << 20  # of all ranks together, compressed
TRIES = 3  # somebody else may ask at the same moment, and one word is written over the other
SILENT = "its controller does not answer"


async def fetch(
    cluster: Cluster, job: str, ranks: Sequence[RankProfile], folder: Path
) -> dict[int, str]:
    """Write the traces of these ranks below `folder`, under the names that they have in a job's
    folder; by rank why one has not come, of which nothing is left. Who is silent is not asked for
    the others. Raises `OSError`."""
    stayed, left = dict[int, str](), TRACES_BYTES
    for one in ranks:
        if not one.trace:
            continue
        found: bytes | str = SILENT
        if SILENT not in stayed.values():
            try:
                found = await _whole(cluster, job, one, left)
            except ApiError as error:
                found = f"the API server does not forward it: {error.message}"
        if isinstance(found, str):
            stayed[one.rank] = found
            continue
        left -= len(found)
        path = folder / one.trace
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(found)
    return stayed


async def _whole(cluster: Cluster, job: str, one: RankProfile, left: int) -> bytes | str:
    """A trace, or why there is none."""
    data = b""
    while True:
        part = await _part(cluster, job, one, len(data))
        if part is None:
            return SILENT
        if part.why:
            return part.why
        if part.size > left:
            return f"it has {_mib(part.size)}; of {_mib(TRACES_BYTES)} {_mib(left)} are left"
        data += part.data
        if len(data) == part.size:
            return data
        if not part.data or len(data) > part.size:
            return "it was changed while it was read"


async def _part(cluster: Cluster, job: str, one: RankProfile, offset: int) -> TracePart | None:
    asked = TakeTracePart(trace=one.trace, offset=offset)
    for _ in range(TRIES):
        wish = TracePartRequest(id=secrets.token_hex(8), node=one.node, part=asked)
        part = await ask_for_trace_part(cluster, job, wish)
        if part is not None:
            return part
    return None


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
