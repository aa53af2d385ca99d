"""A process that saves two ranks, commits and prunes over and over, to be killed at any moment.

It is given a place and reads lines: for each it forks a child that goes on from the newest
checkpoint there, so that a kill costs no start of an interpreter. It prints `child PID`, then
`ready STEP` when that begins, `create`, `put` or `remove` with the FILE before each change of the
place, `saved STEP` after each commit, and `gone STATUS` once the child is dead.
"""

import faulthandler
import os
import sys
import time
import traceback
from contextlib import AbstractContextManager

from holdfast.checkpoint.catalog import committed, previous_part
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.save import commit, save_rank
from holdfast.checkpoint.stores import CheckpointStore, Upload
from holdfast.checkpoint.tiers import Tier
from holdfast.checkpoint.upkeep import prune
from tests.checkpoint.making import Snapshot

RANKS = 2
FROZEN = os.urandom(150_000)
PIECES = 6


class Telling:
    """A store that says before each change of it that it begins: kills fall between them, and in
    them, however fast the machine is."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self.where = store.where
        self.list, self.size = store.list, store.size
        self.read, self.read_into = store.read, store.read_into

    def put(self, name: str, data: bytes) -> None:
        """A file at once."""
        tell(f"put {name}")
        self._store.put(name, data)

    def create(self, name: str) -> AbstractContextManager[Upload]:
        """A file bit by bit."""
        tell(f"create {name}")
        return self._store.create(name)

    def remove(self, name: str) -> None:
        """One file less."""
        tell(f"remove {name}")
        self._store.remove(name)


def leaves(rank: int, step: int) -> dict[str, bytes]:
    """State of a step: some of it never changes, the rest says which step and rank it is of."""
    moving = {f"w{n}": f"{rank} {step} {n} ".encode() * 2000 for n in range(PIECES)}
    return {"frozen": FROZEN, **moving}


def save_for_ever(place: str) -> None:
    """Until killed."""
    store = Telling(open_store(place))
    found = committed(store)
    step = found[0].step if found else 0
    snapshots = [Snapshot(rank, RANKS) for rank in range(RANKS)]
    before = [previous_part(store, rank) for rank in range(RANKS)]
    tell(f"ready {step}")
    while True:
        step += 1
        parts = []
        for rank, snapshot in enumerate(snapshots):
            cells = snapshot.take(Key(1, step), private=leaves(rank, step))
            part = save_rank(store, cells, job="job", tier=Tier.SHARED, previous=before[rank])
            parts.append(part)
        commit(store, Key(1, step), ranks=range(RANKS), now=time.time())
        before = [*parts]
        tell(f"saved {step}")
        prune(store, newest=2)


def warm_up() -> None:
    """Import what talks to S3, once for all children."""
    import s3fs  # type: ignore[import-untyped] # noqa: F401
    from botocore.session import get_session  # type: ignore[import-untyped]

    get_session().create_client("s3")


def tell(line: str) -> None:
    """One line, at once."""
    os.write(1, f"{line}\n".encode())


def main() -> None:
    """A child for every line."""
    faulthandler.enable()
    place = sys.argv[1]
    if place.startswith("s3:"):
        warm_up()
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                tell(f"child {os.getpid()}")  # before anything else that it tells
                save_for_ever(place)
            except BaseException:
                traceback.print_exc()
            os._exit(70)
        _, status = os.waitpid(child, 0)
        tell(f"gone {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()
