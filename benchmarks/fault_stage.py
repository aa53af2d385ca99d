"""Where benchmarks/faults.py may do harm: mounts, a network and control groups of its own.

`enter` goes on with the same program in a new mount and network namespace (`unshare`), where
/dev/shm is as small as in a container, and rules of routing are nobody else's. A `Stage` has a
small disk and a read-only one, a control group for memory for a whole job, as a pod has, another
one in which writing is slow, and a kernel log for each node. What cannot be had here is in
`missing`, with the reason, and kinds of faults that need it are left out.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from holdfast.drivers.chaos import GROUPS

ENTERED = "HOLDFAST_FAULTS_STAGE"
UNSHARE = ["unshare", "--mount", "--net", "--propagation", "private"]
SHM = "size=64m"
DISKS = {"disk": "size=16m", "checkpoints": "size=16m", "read-only": "ro"}
MEMORY_BYTES = 3 << 30
WRITES_A_SECOND = 86_000  # bytes: a record of benchmarks/scripts/faulty.py takes 190 ms, of which
# the kernel gives 100 in advance (`throtl_slice` of block/blk-throttle.c): so each of them is late,
# however seldom they come. A limit that is only one of bandwidth is none where steps take long.
BLOCKS = Path("/sys/fs/cgroup/blkio")
NODES_MAX = 64  # of one job: those that are lost have successors
MOUNTS, MEMORY, NETWORK, WRITES = "mounts", "memory", "network", "writes"  # what kinds need


def enter() -> None:
    """Go on in namespaces of one's own, where that is permitted."""
    if ENTERED in os.environ:
        return
    can = subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0
    os.environ[ENTERED] = "yes" if can else ""
    if can:
        os.execvp(UNSHARE[0], [*UNSHARE, sys.executable, *sys.argv])


def _end(group: Path) -> None:
    """Remove a control group, with whatever a launcher has left behind in it."""
    while left := (group / "cgroup.procs").read_text().split():
        for pid in map(int, left):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    group.rmdir()


class Stage:
    """Of one job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.missing: dict[str, str] = {}
        self._groups: list[Path] = []
        self._memory: Path | None = None
        self._namespaces()
        self._limit_memory()
        self._slow_writes()
        for number in range(NODES_MAX):
            self._machine(f"node-{number}")

    def close(self) -> None:
        """Take away what the folder does not take with it."""
        for name in DISKS:
            words = ["umount", "-l", str(self.folder / name)]
            subprocess.run(words, capture_output=True, check=False)
        for group in self._groups:
            _end(group)

    @property
    def words(self) -> list[str]:
        """What a command has to begin with, to suffer in this place."""
        joins = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        return [] if self._memory is None else ["sh", "-c", joins, str(self._memory)]

    def log(self, node: str, line: str) -> None:
        """Have the kernel of this node's machine say this."""
        with (self.folder / "machines" / node / "dev/kmsg").open("a") as log:
            log.write(line)

    def _namespaces(self) -> None:
        if not os.environ.get(ENTERED):
            why = f"{' '.join(UNSHARE)} is not permitted"
            self.missing |= {MOUNTS: why, NETWORK: why}
            return
        self._run(NETWORK, "ip", "link", "set", "lo", "up")
        for name, options in DISKS.items():
            (self.folder / name).mkdir()
            self._mount(self.folder / name, options)
        if not os.environ.get("HOLDFAST_FAULTS_SHM"):
            os.environ["HOLDFAST_FAULTS_SHM"] = SHM
            self._mount(Path("/dev/shm"), SHM)

    def _mount(self, place: Path, options: str) -> None:
        self._run(MOUNTS, "mount", "-t", "tmpfs", "-o", options, "none", str(place))

    def _run(self, need: str, *words: str) -> None:
        try:
            subprocess.run(words, capture_output=True, check=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.missing[need] = f"{words[0]}: {getattr(error, 'stderr', None) or error}"

    def _limit_memory(self) -> None:
        self.missing[MEMORY] = "no control groups for memory are mounted"
        for root, limit in GROUPS:
            try:
                self._memory = self._group(root, limit, str(MEMORY_BYTES))
            except OSError as error:
                self.missing[MEMORY] = str(error)
            else:
                del self.missing[MEMORY]
                return

    def _slow_writes(self) -> None:
        device = os.stat(self.folder).st_dev
        limit = f"{os.major(device)}:{os.minor(device)} {WRITES_A_SECOND}"
        try:
            group = self._group(BLOCKS, "blkio.throttle.write_bps_device", limit)
        except OSError as error:
            self.missing[WRITES] = str(error)
        else:
            (self.folder / "slow-writes").symlink_to(group)

    def _group(self, root: Path, limit: str, value: str) -> Path:
        group = root / f"holdfast-faults-{os.getpid()}-{self.folder.name}"
        group.mkdir()
        self._groups.append(group)
        (group / limit).write_text(value)
        return group

    def _machine(self, node: str) -> None:
        """What `HOLDFAST_HEALTH_ROOT` is for this node: this machine, with another kernel log."""
        root = self.folder / "machines" / node
        (root / "dev").mkdir(parents=True)
        (root / "dev/kmsg").touch()
        for name in ("proc", "sys"):
            (root / name).symlink_to(f"/{name}")
