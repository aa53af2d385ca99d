"""The quick checks of this machine, for its agent: `python -m holdfast.checks [--only=CHECK]
FOLDER...`. With the name of a check, only the processes that answer for it: the machine trains."""

import socket
import sys

import msgspec

from holdfast.checks.compare import CheckReport
from holdfast.checks.plan import groups
from holdfast.checks.runner import run

ONLY = "--only="


def main() -> None:
    """Print one `CheckReport` as JSON."""
    told = [word for word in sys.argv[1:] if not word.startswith(ONLY)]
    only = "".join(word.removeprefix(ONLY) for word in sys.argv[1:] if word.startswith(ONLY))
    chosen = groups(told, quick=True)
    chosen = [group for group in chosen if only in group.names] or chosen
    found = [result for group in chosen for result in run(group)]
    report = CheckReport(machine=socket.gethostname(), checks=tuple(found))
    print(msgspec.json.encode(report).decode(), flush=True)


if __name__ == "__main__":
    main()
