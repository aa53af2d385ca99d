"""What nodes ask of a Ray cluster and what it has, in words; without Ray."""

from collections.abc import Mapping

GIB = 2**30


def asked(bundle: Mapping[str, float]) -> str:
    """What one node takes of its machine."""
    return ", ".join(f"{name}: {_amount(name, count)}" for name, count in bundle.items())


def free(
    bundle: Mapping[str, float],
    available: Mapping[str, float],
    total: Mapping[str, float],
    machines: int,
) -> str:
    """What is free of it, on all machines together, and how many of these there are."""
    has = {name: (available.get(name, 0.0), total.get(name, 0.0)) for name in bundle}
    rows = (f"{n}: {_amount(n, left)} of {_amount(n, whole)}" for n, (left, whole) in has.items())
    return f"{{{', '.join(rows)}}} on {machines} machine{'s' if machines != 1 else ''}"


def _amount(name: str, count: float) -> str:
    return f"{count / GIB:.4g} GiB" if name == "memory" else f"{count:.6g}"
