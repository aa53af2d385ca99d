"""Variables that a script sets above `import torch`, where torch was imported long before.

In a process started by hand torch would have found them. The few that can still take effect do;
about the others the user is told, with the way out: what stands under `env` in the job is there
before anything is imported.
"""

import os
import sys
from collections.abc import Callable, Mapping

from holdfast import rank

# Read by native libraries when they are loaded; what Python code looks for comes from watching it.
read_ahead = {
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES"),
    *("OMP_DYNAMIC", "OMP_SCHEDULE", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_BLOCKTIME"),
    *("MKL_DYNAMIC", "ATEN_CPU_CAPABILITY", "TORCH_CPP_LOG_LEVEL"),
    *("TORCH_LOGS", "TORCH_LOGS_OUT", "TORCH_LOGS_FORMAT", "TORCH_DISTRIBUTED_DEBUG"),
}


def _threads() -> None:
    names = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")
    sys.modules["torch"].set_num_threads(
        next(int(os.environ[name]) for name in names if name in os.environ)
    )


def _logs() -> None:
    sys.modules["torch._logging"]._init_logs()


def _debug_level() -> None:
    sys.modules["torch.distributed"].set_debug_level_from_env()


_STILL: dict[str, Callable[[], None]] = {
    "OMP_NUM_THREADS": _threads,
    "MKL_NUM_THREADS": _threads,
    "TORCH_LOGS": _logs,
    "TORCH_LOGS_OUT": _logs,
    "TORCH_LOGS_FORMAT": _logs,
    "TORCH_DISTRIBUTED_DEBUG": _debug_level,
}


def take_effect(before: Mapping[str, str], how: str = "by the script above `import torch`") -> None:
    """The script is about to import torch; `before` is the environment it began with, which was
    changed in this way."""
    if "torch" not in sys.modules:
        return
    changed = sorted(n for n in read_ahead - rank.VARIABLES if os.environ.get(n) != before.get(n))
    lost = [name for name in changed if not _takes_effect(name)]
    if lost:
        rank.say(
            f"{', '.join(lost)}: set {how}, without effect, because "
            "torch is imported before the script starts. Set it under `env` in the job file "
            "(or: holdfast run --env NAME=VALUE)."
        )


def _takes_effect(name: str) -> bool:
    try:
        _STILL[name]()
    except (KeyError, AttributeError, ValueError, RuntimeError, StopIteration):
        return False
    return True
