"""`holdfast` in a pod, in a process forked from one that has imported everything (`tests.warm`).

What a fresh process of a pod finds by its environment (`pod_site`), this one is told.
"""

import importlib
import os
import sys
from typing import Any

from holdfast import cli
from tests.drivers.kubernetes.cluster.confinement import confine


def main() -> None:
    """The command line, confined to its pod."""
    os.setsid()
    confine()
    site: Any = importlib.import_module("sitecustomize")  # that of `pod_site`
    site.ADDRESS, site.NAME = os.environ["FAKE_POD_IP"], os.environ["FAKE_POD_NAME"]
    sys.exit(cli.main())
