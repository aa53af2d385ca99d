"""How a job is to be submitted, as its options say."""

from enum import StrEnum
from typing import NamedTuple


class DryRun(StrEnum):
    """Who plays the submission through."""

    CLIENT = "client"
    SERVER = "server"


class Order(NamedTuple):
    """What to do with a job beside submitting it."""

    dry: DryRun | None
    replace: bool
    follow: bool
    as_json: bool
