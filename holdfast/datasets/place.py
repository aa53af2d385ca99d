"""Where a data set of the job lies, for the script that reads it."""

import os

from holdfast.errors import Error, shown
from holdfast.spec.storage import data_variable

PREFIX = data_variable("")


def dataset(name: str) -> str:
    """The folder (or the URL, where the script reads the store itself) of the job's data set
    `name`; `run.dataset` is the same. What Holdfast fetches is there, whole, before the script
    starts, also above `join()`.

    Raises `Error` dataset-unknown.
    """
    found = os.environ.get(data_variable(name))
    if found is not None:
        return found
    known = sorted(one.removeprefix(PREFIX) for one in os.environ if one.startswith(PREFIX))
    raise Error(
        "dataset-unknown",
        f"the job has no data set {shown(name)}",
        why=f"{data_variable(name)} is not set; there are: {', '.join(known) or 'none'}",
        help="name it under `datasets` in the job file, or set that variable outside Holdfast",
    )
