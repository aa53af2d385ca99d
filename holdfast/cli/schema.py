"""`holdfast schema`: the JSON schema of the job file, for editors and for checks."""

import json
from typing import Annotated

import typer

from holdfast.cli.output import AsJson, verbatim


def schema(
    crd: Annotated[
        bool, typer.Option("--crd", help="Print the definition of the kind TrainingJob instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the JSON schema of the job file."""
    if crd:
        _definition(as_json)
        return
    from holdfast.spec.load import job_schema

    verbatim(json.dumps(job_schema(), indent=2))


def _definition(as_json: bool) -> None:
    from holdfast.operator.definition import as_yaml, definition

    verbatim(json.dumps(definition(), indent=2) if as_json else as_yaml().rstrip())
