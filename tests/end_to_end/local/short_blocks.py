"""`holdfast` with shorter blocks of the watch over the pace: a slowdown is told after seconds, and
not after minutes. How long they are is no promise; which steps are taken for slow is."""

import sys

from holdfast import cli
from holdfast.detection import pace
from tests.warm import Warm

BLOCK_S, SAMPLES = 2.0, 5


class WithShortBlocks(Warm):
    """The command line like that."""

    module = "tests.end_to_end.local.short_blocks"


def main() -> None:
    """The command line."""
    pace.BLOCK_S, pace.SAMPLES_MIN = BLOCK_S, SAMPLES
    sys.exit(cli.main())
