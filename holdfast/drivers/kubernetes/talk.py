"""What a controller says in its log: one line for whoever reads it with `kubectl logs`."""

import sys


def say(text: str) -> None:
    """Say something, at once."""
    print(f"holdfast: {text}", file=sys.stderr, flush=True)
