"""What the sections of a job file are made of: strict models and the field's own kinds of text."""

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict
from pydantic_core import PydanticCustomError

NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"  # a DNS label: it becomes a Kubernetes name
OBJECT_PATTERN = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"  # name of an object that exists already
MODULE_PATTERN = r"^[^\s./-][^\s./]*(\.[^\s./]+)*$"  # as `python -m` finds them: `a-b` is one
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
ENVIRONMENT_PATTERN = r"^[ -<>-~]{1,255}$"  # what Kubernetes takes: printable ASCII without `=`
NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


def _number(value: object) -> object:
    """Text becomes a number where it is written as one (`1e-4` is text to YAML 1.1); `true` is
    none, though Python counts with it."""
    if isinstance(value, bool) or (isinstance(value, str) and not NUMBER.fullmatch(value)):
        raise PydanticCustomError("float_type", "Input should be a valid number")
    return value


Whole = Annotated[int, Strict()]  # neither `true` nor "3"
Flag = Annotated[bool, Strict()]  # neither `y` nor 0
Numeric = BeforeValidator(_number)  # stands last: bounds before it are part of the schema
Seconds = Annotated[float, Field(gt=0, le=604_800, allow_inf_nan=False), Numeric]
LongSeconds = Annotated[Whole, Field(ge=1, le=31_536_000)]  # whole, as Kubernetes wants them
Script = Annotated[str, Field(min_length=1)]
Module = Annotated[str, Field(pattern=MODULE_PATTERN)]
Label = Annotated[str, Field(max_length=63, pattern=NAME_PATTERN)]
Object = Annotated[str, Field(max_length=253, pattern=OBJECT_PATTERN)]
Folder = Annotated[str, Field(pattern=r"^/[^:]*$")]  # absolute path in the container
Variable = Annotated[str, Field(pattern=VARIABLE_PATTERN)]
Environment = dict[Annotated[str, Field(pattern=ENVIRONMENT_PATTERN)], str]
Quantity = Annotated[str, Field(pattern=QUANTITY_PATTERN, coerce_numbers_to_str=True)]
Raw = dict[str, Any]  # handed to Kubernetes as it is


class Section(BaseModel):
    """Strict and frozen: unknown keys are errors. The docstring below a field is its description in
    the schema, where it is read from the source (`described.py`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
