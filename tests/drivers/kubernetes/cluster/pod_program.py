"""`holdfast` in a pod, in a process forked from one that has imported everything (`tests.warm`).

What a fresh process of a pod finds by its environment (`pod_site`), this one is told.
"""

import sys

from holdfast import cli
from tests.drivers.kubernetes.cluster.confinement import confine as adopt

__all__ = ["adopt", "main"]


def main() -> None:
    """The command line."""
    sys.exit(cli.main())
