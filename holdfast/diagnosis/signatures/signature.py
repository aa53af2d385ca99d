"""What one known problem looks like in a log, and what to do about it."""

import re
from enum import StrEnum
from typing import NamedTuple


class Blame(StrEnum):
    """Where to look. A CONSEQUENCE is what other ranks print once somebody has failed."""

    CODE = "code"
    DATA = "data"
    CONFIGURATION = "configuration"
    ENVIRONMENT = "environment"  # versions and packages that do not fit together
    MACHINE = "machine"
    NETWORK = "network"
    STORAGE = "storage"
    CONSEQUENCE = "consequence"


class Signature(NamedTuple):
    """One known problem. `pattern` is searched for in each line."""

    slug: str
    pattern: re.Pattern[str]
    blame: Blame
    cause: str  # one sentence
    remedy: str  # what to do, most likely first


def signature(slug: str, pattern: str, blame: Blame, cause: str, remedy: str) -> Signature:
    """One whose pattern is case-sensitive, as messages are."""
    return Signature(slug, re.compile(pattern), blame, cause, remedy)
