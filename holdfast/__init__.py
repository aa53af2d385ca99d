"""Holdfast keeps large training jobs training.

The names below are all that a program should import from here; `holdfast.train` is what a training
script imports. Each name is fetched when it is first used, so that `import holdfast` costs nothing
and the command line can answer before pydantic has loaded.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.actions import Outcome
    from holdfast.errors import Error, ExitStatus
    from holdfast.spec import Job, job_from_dict, job_from_yaml
    from holdfast.spec.load import job_schema
    from holdfast.status import Goodput, Incident, JobStatus

__version__ = "0.1.0"

__all__ = [
    "Error",
    "ExitStatus",
    "Goodput",
    "Incident",
    "Job",
    "JobStatus",
    "Outcome",
    "__version__",
    "job_from_dict",
    "job_from_yaml",
    "job_schema",
]

_MODULES = {
    "Error": "holdfast.errors",
    "ExitStatus": "holdfast.errors",
    "Goodput": "holdfast.status",
    "Incident": "holdfast.status",
    "Job": "holdfast.spec",
    "JobStatus": "holdfast.status",
    "Outcome": "holdfast.actions",
    "job_from_dict": "holdfast.spec",
    "job_from_yaml": "holdfast.spec",
    "job_schema": "holdfast.spec.load",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
