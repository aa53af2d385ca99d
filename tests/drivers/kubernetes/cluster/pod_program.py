"""`holdfast` in a pod, in a process forked from one that has imported everything (`tests.warm`).

What a fresh process of a pod finds by its environment (`pod_site`), this one is told.
"""

import importlib.util
import sys
from pathlib import Path

from holdfast import cli
from tests.drivers.kubernetes.cluster.confinement import confine

SITE = Path(__file__).parent / "pod_site"


def adopt() -> None:
    """Be of the pod that the environment names, as what is started from here will be."""
    confine()
    name = "sitecustomize"
    spec = importlib.util.spec_from_file_location(name, SITE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def main() -> None:
    """The command line."""
    sys.exit(cli.main())
