"""The quick checks of this machine, for its agent: `python -m holdfast.checks FOLDER...`."""

import socket
import sys

import msgspec

from holdfast.checks.compare import CheckReport
from holdfast.checks.plan import groups
from holdfast.checks.runner import run


def main() -> None:
    """Print one `CheckReport` as JSON."""
    found = [result for group in groups(sys.argv[1:], quick=True) for result in run(group)]
    report = CheckReport(machine=socket.gethostname(), checks=tuple(found))
    print(msgspec.json.encode(report).decode(), flush=True)


if __name__ == "__main__":
    main()
