"""The folders that the job writes to: full, read-only, not permitted, or not answering.

Each file system is a provider of its own, because a look at one whose server is gone does not come
back, and the others are to be looked at meanwhile. A folder that the job has not made yet is looked
at where it will be made: in the nearest folder above it.

What a file system of one machine does is the machine's fault. One that nodes share, or a folder
whose owner and mode refuse, is nobody's: each node sees the same, so it is told as a warning.
"""

import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from holdfast.agent.health.provider import text_of
from holdfast.checks.plan import nearest_folder
from holdfast.detection.health import Reading

GIB = 1 << 30
MOUNTINFO_WORDS = 6  # of a line before the separator, at least
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "gpfs", "beegfs", "9p", "fuse", "wekafs")


class Folder:
    """The first of them on its file system; `beside` are the others. `statvfs` is the kernel's."""

    every_s = 3.0  # microseconds each

    def __init__(
        self,
        path: Path,
        root: Path = Path("/"),
        statvfs: Callable[[Path], os.statvfs_result] = os.statvfs,
        *,
        shared: bool = False,
    ) -> None:
        self._path = path
        self._statvfs = statvfs
        self._shared = shared or mount_of(path, root)[1].startswith(REMOTE)
        self.beside: list[Path] = []

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
        device, found = str(self._path), self._statvfs(Path(nearest_folder(str(self._path))))
        size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
        usable = size - (found.f_bfree - found.f_bavail) * found.f_frsize  # by who is not root
        left = f"{free / GIB:.1f} GiB of {size / GIB:.1f} GiB free"
        kind = "share-read-only" if self._shared else "mount-read-only"
        fixed = bool(found.f_flag & os.ST_RDONLY)
        readings = [Reading(kind, float(fixed), device, "read-only" if fixed else "writable")]
        if usable > 0:
            readings.append(Reading("disk-full", 1 - free / usable, device, left))
            readings.append(Reading("disk-filling", float(free), device, left))
        for path in () if fixed else (self._path, *self.beside):
            why = denied(path)
            readings.append(
                Reading("folder-denied", float(bool(why)), str(path), why or "writable")
            )
        return readings


def denied(path: Path) -> str:
    """Why this process may make no files there, by owner and mode; empty if it may."""
    folder = nearest_folder(str(path))
    effective = os.access in os.supports_effective_ids
    if os.access(folder, os.W_OK | os.X_OK, effective_ids=effective):
        return ""
    found = os.stat(folder)
    return (
        f"user {os.geteuid()}, group {os.getegid()} may not write to {folder}: its owner is user "
        f"{found.st_uid}, group {found.st_gid}, its mode {stat.S_IMODE(found.st_mode):04o}"
    )


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


def find(own: Iterable[Path], root: Path, shared: Iterable[Path] = ()) -> list[Folder]:
    """One for each file system: those on the machine first, then those that nodes share."""
    found: dict[str, Folder] = {}
    for paths, common in ((own, False), (shared, True)):
        for path in paths:
            point = mount_of(path, root)[0]
            if point in found:
                found[point].beside.append(path)
            else:
                found[point] = Folder(path, root, shared=common)
    return list(found.values())
