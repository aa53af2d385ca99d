"""The referee of updates: an attempt runs one version, and none that its nodes have not prepared.

Code that does not compile is refused by every node, so it is never started, and nothing is stopped
for it. Numbers of versions whose lines were lost with a controller may be given again.
"""

import re

from holdfast.actions import Entry, PrepareUpdate, StartAttempt, StopAttempt
from holdfast.events import UpdatePrepared
from holdfast.messages import Start
from holdfast.versions import FIRST, Version

KINDS = ("sound", "sound", "flawed", "buggy")
"""What an update is: it does not compile, or fails in its first steps."""
KIND = "is"  # the option that says so
_ASKED = re.compile(r"asked for version (\d+)$")


def kind(version: Version) -> str:
    """What this version is."""
    return version.sets.get(KIND, KINDS[0])


def is_update(stop: StopAttempt) -> bool:
    """Whether an attempt is stopped only to go on with another version."""
    return _ASKED.search(stop.reason) is not None


class FairUpdates:
    """Which versions are ready, and which one each attempt was ordered to run."""

    def __init__(self) -> None:
        self._ready = {FIRST.number}
        self._images: set[int] = set()  # versions whose image is tried; then no node need be asked
        self._ordered: dict[int, Version] = {}  # by attempt

    def journaled(self, entry: Entry) -> str:
        """Judge what is stopped and started."""
        event = entry.event
        tried = isinstance(event, UpdatePrepared) and event.version in self._images
        if isinstance(event, UpdatePrepared) and not event.why and (event.ready_count or tried):
            self._ready.add(event.version)
        for action in entry.actions:
            if isinstance(action, PrepareUpdate) and action.version.image:
                self._images.add(action.version.number)
            if isinstance(action, StartAttempt):
                self._ordered[action.attempt] = action.version
                number, what = action.version.number, "started"
            elif isinstance(action, StopAttempt) and (asked := _ASKED.search(action.reason)):
                number, what = int(asked[1]), "stopped"
            else:
                continue
            if number not in self._ready:
                return f"attempt {action.attempt} is {what} for version {number}, never prepared"
        return ""

    def launched(self, order: Start) -> str:
        """A node begins to run workers."""
        ordered = self._ordered.get(order.attempt, order.version)
        if order.version != ordered:
            known = f"{ordered.number} was ordered"
            return f"version {order.version.number} runs in attempt {order.attempt}, {known}"
        if kind(order.version) == "flawed":
            return f"attempt {order.attempt} runs version {order.version.number}, which is refused"
        return ""
