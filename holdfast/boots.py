"""Starts of machines."""

from pathlib import Path

_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Which start of which machine this is: the same for all that share its kernel. Raises
    `OSError` where that cannot be read."""
    return _ID.read_text().strip()
