"""The folders that the job writes to: full, read-only, or not answering.

Each folder is a provider of its own, because a look at a file system whose server is gone does not
come back, and the others are to be looked at meanwhile.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from holdfast.agent.health.provider import EVERY_S, text_of
from holdfast.detection.health import Reading

GIB = 1 << 30
MOUNTINFO_WORDS = 6  # of a line before the separator, at least
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "gpfs", "beegfs", "9p", "fuse", "wekafs")


class Folder:
    """One of them. `statvfs` is the kernel's."""

    every_s = EVERY_S

    def __init__(
        self,
        path: Path,
        root: Path = Path("/"),
        statvfs: Callable[[Path], os.statvfs_result] = os.statvfs,
    ) -> None:
        self._path = path
        self._statvfs = statvfs
        self._remote = mount_of(path, root)[1].startswith(REMOTE)

    @property
    def name(self) -> str:
        """Which one."""
        return f"folder {self._path}"

    @property
    def stalled(self) -> Reading:
        """Its file system does not answer."""
        return Reading("mount-stale", device=str(self._path))

    def read(self) -> list[Reading]:
        """How full it is, and whether it can be written to. Raises `OSError`."""
        device, found = str(self._path), self._statvfs(self._path)
        size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
        usable = size - (found.f_bfree - found.f_bavail) * found.f_frsize  # by who is not root
        left = f"{free / GIB:.1f} GiB of {size / GIB:.1f} GiB free"
        kind = "share-read-only" if self._remote else "mount-read-only"
        fixed = bool(found.f_flag & os.ST_RDONLY)
        readings = [Reading(kind, float(fixed), device, "read-only" if fixed else "writable")]
        if usable > 0:
            readings.append(Reading("disk-full", 1 - free / usable, device, left))
            readings.append(Reading("disk-filling", float(free), device, left))
        return readings


def mount_of(path: Path, root: Path = Path("/")) -> tuple[str, str]:
    """Mount point and type of the file system that a path lies on, by the longest mount point above
    it. The file system itself is not asked: it may not answer."""
    best, kind = "", ""
    for line in text_of(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        words = left.split()
        if len(words) < MOUNTINFO_WORDS or not right:
            continue
        point = words[4].replace("\\040", " ")
        if path.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return best, kind


def find(folders: Iterable[Path], root: Path) -> list[Folder]:
    """One for each file system, by the first folder on it."""
    found: dict[str, Folder] = {}
    for path in folders:
        found.setdefault(mount_of(path, root)[0], Folder(path, root))
    return list(found.values())
