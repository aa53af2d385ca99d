"""The loss that a worker's report tells, whichever way it came.

A script with the library writes it to its page; of any other script it is read from the output.
"""

import math

from holdfast.messages import WorkerReport


def reported_loss(worker: WorkerReport) -> tuple[int, float] | None:
    """Step and loss; None where one is missing or the loss is NaN or infinite."""
    loss = worker.loss if worker.loss is not None else worker.printed_loss
    step = worker.progress.step if worker.progress.step is not None else worker.printed_step
    if loss is None or step is None or not math.isfinite(loss):
        return None
    return step, loss
