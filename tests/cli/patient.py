"""`holdfast` that waits for a controller's answer as long as tests wait: one that is starved of the
processor answers late, and how long a command waits for it is no promise."""

import sys
from typing import Any

from holdfast import cli
from holdfast.drivers.kubernetes import published_stacks
from tests.patience import PATIENCE_S
from tests.warm import Warm

_asked = published_stacks._asked


class Patient(Warm):
    """The command line like that."""

    module = "tests.cli.patient"


async def _asked_patiently(cluster: Any, job: str, word: str, wait_s: float) -> Any:
    return await _asked(cluster, job, word, max(wait_s, PATIENCE_S))


def main() -> None:
    """The command line."""
    published_stacks._asked = _asked_patiently
    sys.exit(cli.main())
