"""The file in which torch.distributed.elastic leaves the exception of a function under `@record`.

torchrun names it in TORCHELASTIC_ERROR_FILE and so do we. What is in it is the worker's own word:
it may be long, torn or of another shape, and then it says nothing.
"""

import json
from pathlib import Path

from holdfast.diagnosis.logs import parse_traceback
from holdfast.events import WorkerError

MOST_BYTES = 256 * 1024


def error_in(path: Path | None) -> WorkerError | None:
    """The exception that was left there; None if there is none."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(MOST_BYTES))["message"]
        message, stack = str(found["message"]), str(found["extraInfo"]["py_callstack"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    kind, _, text = message.partition(": ")
    return parse_traceback(stack) or WorkerError(type=kind, message=text, traceback=stack)
