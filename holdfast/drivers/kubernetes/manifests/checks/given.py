"""Whether a setting of the job file was given: its value, where it differs from the default."""

from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from holdfast.spec import Job


def given(job: Job, path: str) -> Any | None:
    """The value at `path` (`network.ports.agent`) if it is not the default, else None."""
    place: Any = job
    *sections, last = path.split(".")
    for step in sections:
        place = getattr(place, step)
        if place is None:
            return None
    value = getattr(place, last)
    return None if _is_default(place, last, value) else value


def _is_default(section: BaseModel, name: str, value: object) -> bool:
    default = type(section).model_fields[name].get_default(call_default_factory=True)
    return default is not PydanticUndefined and bool(value == default)
