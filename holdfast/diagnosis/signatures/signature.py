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
    """One known problem. `pattern` is searched for in each line. `general`: it says that something
    has failed, and what is printed before it says what."""

    slug: str
    pattern: re.Pattern[str]
    blame: Blame
    cause: str  # one sentence
    remedy: str  # what to do, most likely first
    general: bool = False

    @property
    def names_a_cause(self) -> bool:
        """Whether there is no need to look for another."""
        return not self.general and self.blame is not Blame.CONSEQUENCE


def signature(
    slug: str, pattern: str, blame: Blame, cause: str, remedy: str, *, general: bool = False
) -> Signature:
    """One whose pattern is case-sensitive, as messages are."""
    return Signature(slug, re.compile(pattern), blame, cause, remedy, general)
