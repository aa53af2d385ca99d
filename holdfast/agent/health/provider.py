"""What a provider is, and small ways to read counters that may not be there."""

from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.detection.health import Reading

EVERY_S = 5.0  # where nothing speaks for another pace


class Provider(Protocol):
    """Reads counters of one thing that may stall by itself: each has a thread of its own."""

    @property
    def name(self) -> str:
        """What it reads, for people."""

    @property
    def every_s(self) -> float:
        """Between two looks."""

    @property
    def stalled(self) -> Reading | None:
        """What it means if a look does not come back; its value is filled in. None: nothing."""

    def read(self) -> list[Reading]:
        """One look. May block; what cannot be read is left out, or raises `OSError`."""


class Missing(NamedTuple):
    """A provider that this machine does not have."""

    name: str
    why: str


def text_of(path: Path) -> str:
    """The text of a small file; empty where it cannot be read."""
    try:
        return path.read_bytes().decode(errors="replace").strip()
    except OSError:
        return ""


def number_of(path: Path) -> int | None:
    """The whole number in a file; None where there is none."""
    text = text_of(path)
    return int(text) if text.removeprefix("-").isdecimal() else None


def sum_of(folder: Path, *names: str) -> int:
    """Of the counters in these files; those that are not there count nothing."""
    return sum(number_of(folder / name) or 0 for name in names)


def fields_of(path: Path) -> dict[str, int]:
    """Lines of a name and a whole number, as control groups have them."""
    lines = (line.split() for line in text_of(path).splitlines())
    return {w[0]: int(w[1]) for w in lines if len(w) == 2 and w[1].isdecimal()}
