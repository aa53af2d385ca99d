"""`holdfast version`."""

import platform

from holdfast import __version__
from holdfast.cli.output import AsJson, json_result, result


def version(as_json: AsJson = False) -> None:
    """Print the version."""
    if as_json:
        json_result({"holdfast": __version__, "python": platform.python_version()})
    else:
        result(f"holdfast {__version__}")
