"""`holdfast`, and all that it starts, in the control group that HOLDFAST_TEST_GROUP names."""

import os
import sys
from pathlib import Path

from holdfast import cli
from tests.warm import Warm

VARIABLE = "HOLDFAST_TEST_GROUP"


class InGroup(Warm):
    """The command line like that."""

    module = "tests.end_to_end.local.in_group"


def adopt() -> None:
    """Join it, before there is anything else of the job."""
    Path(os.environ[VARIABLE], "cgroup.procs").write_text(str(os.getpid()))


def main() -> None:
    """The command line."""
    sys.exit(cli.main())
