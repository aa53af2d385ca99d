"""Lines of the kernel log that tell of a fault, as data.

What the kernel says of disks, memory, processors and links is often the only trace of a fault
before something breaks. NVIDIA's XIDs are lines as well, and have a table of their own (`xid.py`).
"""

import re
from typing import NamedTuple

from holdfast.events import Severity


class KernelPattern(NamedTuple):
    """Lines that tell of one condition. A group named `device` says which disk or link."""

    condition: str
    pattern: re.Pattern[str]
    severity: Severity
    advice: str


def _pattern(condition: str, severity: Severity, advice: str, *texts: str) -> KernelPattern:
    return KernelPattern(condition, re.compile("|".join(texts)), severity, advice)


CHECK_DISK = "check the disk: smartctl -a, or nvme smart-log"
CHECK_LINK = "check cable, port and switch of this link"

PATTERNS: tuple[KernelPattern, ...] = (
    _pattern(
        "gpu-lost",
        Severity.FATAL,
        "drain and reboot the machine; if the error returns, have the GPU replaced",
        r"NVRM: GPU (?P<device>[0-9a-fA-F:]+)\.\d+: GPU has fallen off the bus",
        r"NVRM: GPU (?P<device2>[0-9a-fA-F:]+)\.\d+: RmInitAdapter failed",
    ),
    _pattern(
        "out-of-memory",
        Severity.WARN,
        "give the node more memory, or let the job use less",
        r"Out of memory: Killed process \d+ \((?P<device>[^)]*)\)",
        r"Memory cgroup out of memory: Killed process \d+ \((?P<device2>[^)]*)\)",
    ),
    _pattern(
        "disk-error",
        Severity.WARN,
        CHECK_DISK,
        r"(?:I/O|critical medium|critical target) error, dev (?P<device>\S+),",
        r"nvme (?P<device2>nvme\d+): (?:controller is down|I/O .* timeout|Device not ready)",
        r"Buffer I/O error on dev (?P<device3>\S+?),",
    ),
    _pattern(
        "filesystem-error",
        Severity.WARN,
        "check the file system (fsck, xfs_repair) while nothing uses it",
        r"EXT4-fs error \(device (?P<device>[^)]+)\)",
        r"XFS \((?P<device2>[^)]+)\): (?:Corruption|[Mm]etadata (?:I/O error|corruption))",
        r"BTRFS (?:error|critical) \(device (?P<device3>[^)]+)\)",
        r"(?:EXT4-fs|XFS|BTRFS)[^(]*\((?:device )?(?P<device4>[^)]+)\).*"
        r"(?:[Rr]emounting filesystem read-only|[Ss]hutting down filesystem|forced readonly)",
    ),
    _pattern(
        "mount-stale",
        Severity.WARN,
        "check the file server and the network path to it",
        r"nfs: server (?P<device>\S+) not responding",
    ),
    _pattern(
        "hung-task",
        Severity.WARN,
        "find what it waits for: storage or a driver that does not answer",
        r"INFO: task (?P<device>\S+):\d+ blocked for more than \d+ seconds",
    ),
    _pattern(
        "processor-stuck",
        Severity.WARN,
        "check the machine; a virtual one may get no processor time",
        r"soft lockup - (?P<device>CPU#\d+) stuck",
        r"[Hh]ard LOCKUP",
        r"rcu: INFO: \S+ (?:self-)?detected (?:expedited )?stalls",
    ),
    _pattern(
        "memory-error",
        Severity.ALERT,
        "have the memory of the machine tested; drain it if this recurs",
        r"\[Hardware Error\]:.*(?:[Uu]ncorrected|UCNA|[Ff]atal)",
        r"EDAC (?P<device>MC\d+): \d+ UE ",
        r"Memory failure: 0x[0-9a-f]+: ",
    ),
    _pattern(
        "memory-error-corrected",
        Severity.WARN,
        "nothing now; have the memory tested when the machine is free",
        r"\[Hardware Error\]: Corrected error",
        r"EDAC (?P<device>MC\d+): \d+ CE ",
    ),
    _pattern(
        "link-down",
        Severity.ALERT,
        CHECK_LINK,
        r"(?P<device>\S+): (?:NIC )?Link is Down",
        r"(?P<device2>\S+): Link down$",
    ),
    _pattern(
        "network-card-error",
        Severity.ALERT,
        CHECK_LINK,
        r"NETDEV WATCHDOG: (?:CPU: \d+: )?(?P<device>\S+) ",
        r"mlx\d_core (?P<device2>[0-9a-f:.]+):? .*(?:[Dd]evice's health compromised|fatal error)",
    ),
)


class KernelTrouble(NamedTuple):
    """What a line tells."""

    condition: str
    severity: Severity
    device: str
    advice: str
    line: str


def read(line: str) -> KernelTrouble | None:
    """What a line of the kernel log tells; None: nothing that is known here."""
    for known in PATTERNS:
        if found := known.pattern.search(line):
            device = next((text for text in found.groupdict().values() if text), "")
            told = line.strip()[:200]
            return KernelTrouble(known.condition, known.severity, device, known.advice, told)
    return None
