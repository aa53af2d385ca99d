"""Kubernetes quantities (`500m`, `64Gi`) as exact numbers, and bytes as readable quantities."""

from fractions import Fraction

SUFFIXES: dict[str, Fraction] = {
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{letter: Fraction(1000) ** power for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
}


def amount(quantity: str) -> Fraction:
    """The number that a quantity stands for."""
    digits = quantity.rstrip("".join({c for suffix in SUFFIXES for c in suffix}))
    return Fraction(digits) * SUFFIXES[quantity[len(digits) :]]


def in_bytes(count: int | Fraction) -> str:
    """Bytes as the largest binary unit that loses nothing."""
    size = -(-count // 1)
    for letter in "EPTGMK":
        unit = SUFFIXES[f"{letter}i"]
        if size >= unit and size % unit == 0:
            return f"{size // unit}{letter}i"
    return str(int(size))
