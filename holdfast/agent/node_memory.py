"""Shared memory of a node that has names: a folder in /dev/shm, which goes with the node.

Ours is memfd and needs none. But MPI keeps segments there and removes them only where it ends by
itself, so what is killed would leave them for good.
"""

import contextlib
import shutil
from pathlib import Path

SHM = Path("/dev/shm")


def folder_of(node: str) -> Path:
    """Short: sockets are made below it."""
    return SHM / f"holdfast-{node}"


def made(node: str) -> Path | None:
    """The folder, which only this user may read; None where there can be none."""
    with contextlib.suppress(OSError):
        folder_of(node).mkdir(mode=0o700, exist_ok=True)
        return folder_of(node)
    return None


def forget(node: str) -> None:
    """Nothing of the node runs any more: remove what it left."""
    shutil.rmtree(folder_of(node), ignore_errors=True)
