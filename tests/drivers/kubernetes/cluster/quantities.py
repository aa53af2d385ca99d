"""Amounts as Kubernetes writes them."""

SUFFIXES = {
    **{f"{s}i": 1024.0 ** (i + 1) for i, s in enumerate("KMGTPE")},
    **{s: 1000.0 ** (i + 1) for i, s in enumerate("kMGTPE")},
    "m": 1e-3,
}


def number(amount: str) -> float:
    """`250m`, `64Gi`, `8` as a number."""
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if amount.endswith(suffix):
            return float(amount.removesuffix(suffix)) * SUFFIXES[suffix]
    return float(amount)
