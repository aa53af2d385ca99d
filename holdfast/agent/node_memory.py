"""Shared memory of a node that has names: a folder in /dev/shm, which goes with the node.

Ours is memfd and needs none. But MPI keeps segments there and removes them only where it ends by
itself, so what is killed would leave them for good.
"""

import contextlib
import os
import shutil
import stat
from pathlib import Path

SHM = Path("/dev/shm")


def folder_of(node: str) -> Path:
    """Short: sockets are made below it."""
    return SHM / f"holdfast-{node}"


def made(node: str) -> Path | None:
    """The folder, which only this user may read; None where there can be none."""
    with contextlib.suppress(OSError):
        folder_of(node).mkdir(mode=0o700, exist_ok=True)
        return folder_of(node) if _is_ours(node) else None
    return None


def forget(node: str) -> None:
    """Nothing of the node runs any more: remove what it left."""
    if _is_ours(node):
        shutil.rmtree(folder_of(node), ignore_errors=True)


def _is_ours(node: str) -> bool:
    """Anybody may write in /dev/shm, and any process may say that it is of a node: the name leads
    nowhere else, and the folder is none that another user has put there."""
    if "/" in node:
        return False
    with contextlib.suppress(OSError, ValueError):
        found = folder_of(node).lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return False
