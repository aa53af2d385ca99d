"""Whether memory or processors are short: pressure stall information, stolen and limited time.

Pressure (Documentation/accounting/psi.rst) is the share of the last ten seconds in which all
processes waited for memory at once: of the machine, and with version 2 of control groups of our
own group. Processor time is taken by a hypervisor (`steal`) or by a limit of the control group.
"""

from pathlib import Path

from holdfast.agent.health.provider import Missing, fields_of, text_of
from holdfast.detection.health import Reading

STEAL = 7  # place of that column in the line `cpu` of /proc/stat
COLUMNS = 8  # of time; those after are contained in them


class HostPressure:
    """Shares since the last look; at the first, those that the kernel averages."""

    name = "memory and processors"
    stalled = None
    every_s = 2.0  # three looks in a row have to show it

    def __init__(self, root: Path) -> None:
        self._root = root
        self._groups = groups_of(root)
        self._ticks = self._periods = (0, 0)

    def read(self) -> list[Reading]:
        """Pressure of memory, and of what else there is; stolen and limited processor time."""
        pressure = self._root / "proc/pressure"
        found = [
            *_pressure(pressure / "memory", "memory-pressure", ""),
            *_pressure(pressure / "io", "io-pressure", ""),
            *_pressure(pressure / "cpu", "cpu-pressure", ""),
        ]
        for group in self._groups:
            found += _pressure(group / "memory.pressure", "memory-pressure", "the control group")
        return [*found, *self._stolen(), *self._limited()]

    def _stolen(self) -> list[Reading]:
        words = text_of(self._root / "proc/stat").partition("\n")[0].split()
        ticks = [int(word) for word in words[1 : COLUMNS + 1] if word.isdecimal()]
        if len(ticks) < COLUMNS:
            return []
        before, self._ticks = self._ticks, (ticks[STEAL], sum(ticks))
        return _share("cpu-stolen", before, self._ticks)

    def _limited(self) -> list[Reading]:
        for group in self._groups:
            fields = fields_of(group / "cpu.stat")
            if "nr_periods" in fields:
                now = fields.get("nr_throttled", 0), fields["nr_periods"]
                before, self._periods = self._periods, now
                return _share("cpu-throttled", before, now)
        return []


def _share(kind: str, before: tuple[int, int], now: tuple[int, int]) -> list[Reading]:
    """Of the second number that the first one is, since the last look; none at the first."""
    part, whole = now[0] - before[0], now[1] - before[1]
    if before == (0, 0) or whole <= 0:
        return []
    return [Reading(kind, part / whole, text=f"{part / whole:.0%} of the time")]


def _pressure(path: Path, kind: str, of: str) -> list[Reading]:
    """The average of ten seconds: of the line `full`, or of `some` where there is no other. Of the
    processors of a machine `full` is always zero: something runs on them."""
    shares: dict[str, float] = {}
    for line in text_of(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[1].startswith("avg10="):
            shares[words[0]] = float(words[1].removeprefix("avg10="))
    if not shares:
        return []
    told = ", ".join(f"{name} {share:g} %" for name, share in shares.items())
    some = shares.get("some", 0.0)
    value = some if kind == "cpu-pressure" else shares.get("full", some)
    return [Reading(kind, value, of, f"{told} of the last 10 s")]


def groups_of(root: Path) -> list[Path]:
    """Folders of our control groups: of version 2, and of `cpu` and `memory` in version 1. In a
    container only the topmost is there."""
    found: list[Path] = []
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        names = controllers.split(",")
        if controllers and not {"cpu", "memory"} & set(names):
            continue
        tree = root / "sys/fs/cgroup"
        tops = [tree / name for name in (controllers, *names)] if controllers else [tree]
        own = [top / path.strip("/") for top in tops] + tops
        found += [folder for folder in own if folder.is_dir()][:1]
    return found


def find(root: Path) -> HostPressure | Missing:
    """Of this machine."""
    if not (root / "proc/stat").exists():
        return Missing(HostPressure.name, f"there is no {root / 'proc/stat'}")
    return HostPressure(root)
