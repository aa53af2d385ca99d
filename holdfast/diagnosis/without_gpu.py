"""A process that gets no GPU: is that the job's doing, or has one machine lost its own?

CUDA has the same words for a container that asked for none, an image without the driver's libraries
and a machine whose driver has gone. What came before tells them apart. A job that has trained in
this version has had its GPUs, so it is no longer the job: if some of its nodes have none it is
theirs, if all have none something that they share has changed and may come back. Of a job that has
never trained nothing is known the first time: the other nodes may only have been stopped before
they said the same. Once the same node alone has said it twice its machine is suspected
(`code_or_machine`).
"""

import re
from collections.abc import Collection

from holdfast.diagnosis.verdict import Verdict
from holdfast.events import WorkerError

NO_GPU = re.compile(
    r"No (?:CUDA|HIP) GPUs are available|no (?:CUDA|ROCm)-capable device is detected"
    r"|CUDA_ERROR_NO_DEVICE|Found no NVIDIA driver on your system"
    r"|(?:CUDA|HIP) driver initialization failed|CUDA unknown error"
    r"|Unexpected error from cudaGetDeviceCount"
)
LOST, SHARED = "device-lost", "environment"


def says_so(error: WorkerError | None) -> bool:
    """Whether this process could not begin to use a GPU."""
    return error is not None and NO_GPU.search(error.message) is not None


def whose(verdict: Verdict, nodes: Collection[int], size: int) -> Verdict:
    """Of a job that has trained in this version, but not in this attempt. `nodes` are those whose
    workers say so, of the `size` that the attempt has."""
    if verdict.chosen is None or not says_so(verdict.chosen.error):
        return verdict
    count, said = len(nodes), verdict.summary.rstrip(".")
    if size > 1 and count >= size:
        none = f"{said}; all {size} nodes of a job that has trained have no GPU any more"
        return verdict._replace(cause=SHARED, summary=f"{none}.")
    few = f"{count} of {size} nodes" if size > 1 else "the node"
    none = f"{said}; {few} of a job that has trained {'have' if count > 1 else 'has'} no GPU"
    return verdict._replace(cause=LOST, summary=f"{none} any more.")
