"""Which providers this machine has."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from holdfast.agent.health import folders, gpus, kernel_log, network, pressure, use
from holdfast.agent.health.processes import ClockSteps, JobProcesses
from holdfast.agent.health.provider import Missing, Provider

VARIABLE = "HOLDFAST_HEALTH_ROOT"
NODE = "{node}"


class Providers(NamedTuple):
    """Those that there are, and those that are missing."""

    present: tuple[Provider, ...]
    missing: tuple[Missing, ...]


def root_of(environ: Mapping[str, str], name: str) -> Path:
    """Below which /proc, /sys and /dev/kmsg lie, for the node of this name: where a container has
    those of its machine mounted elsewhere, or where they were recorded."""
    return Path(environ.get(VARIABLE, "/").replace(NODE, name) or "/")


def find(
    root: Path,
    paths: Iterable[str | os.PathLike[str]],
    shared: Iterable[str | os.PathLike[str]] = (),
) -> Providers:
    """All of a machine; `paths` are folders that the job writes to, `shared` those of them that
    several nodes see. Opens files of the kernel only, so it does not wait for anything."""
    own, common = ([Path(p) for p in ps if "://" not in str(p)] for ps in (paths, shared))
    found: list[Provider | Missing] = [
        gpus.find(root),
        kernel_log.find(root),
        pressure.find(root),
        use.find(root),
        *network.find(root),
        *folders.find(own, root, common),
        JobProcesses(root),
        ClockSteps(),
    ]
    missing = tuple(one for one in found if isinstance(one, Missing))
    return Providers(tuple(one for one in found if not isinstance(one, Missing)), missing)
