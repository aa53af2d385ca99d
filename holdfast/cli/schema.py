"""`holdfast schema`: the JSON schema of the job file, for editors and for checks."""

import json

from holdfast.cli.output import AsJson, result


def schema(as_json: AsJson = False) -> None:  # noqa: ARG001 - JSON is all it ever prints
    """Print the JSON schema of the job file."""
    from holdfast.spec.load import job_schema

    result(json.dumps(job_schema(), indent=2))
