"""The name of a snapshot; apart from the memory that holds it, so that choosing needs no memory."""

from typing import NamedTuple


class Key(NamedTuple):
    """Which snapshot: copies with different keys never belong together.

    `step` counts completed steps; `attempt` is the one that wrote it.
    """

    attempt: int
    step: int
