"""What a controller says in its log, for whoever reads it with `kubectl logs`."""

from holdfast.drivers.talk import say

__all__ = ["Complaint", "say"]


class Complaint:
    """What does not work, said once for as long as it is the same."""

    def __init__(self) -> None:
        self._said = ""

    def __call__(self, why: str) -> None:
        """Say it if it is new; "" means that it works again."""
        if why and why != self._said:
            say(why)
        self._said = why
