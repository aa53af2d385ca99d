"""What you ask for: the job description, its validation and its JSON schema."""

from holdfast.spec.job import (
    Job,
    Logs,
    Nodes,
    Recovery,
    Snapshots,
    Warm,
)
from holdfast.spec.load import job_from_dict, job_from_yaml

__all__ = [
    "Job",
    "Logs",
    "Nodes",
    "Recovery",
    "Snapshots",
    "Warm",
    "job_from_dict",
    "job_from_yaml",
]
