"""Ids of traces and spans, worked out from what they are about.

A controller that resumes a journal, or that sends again what may not have arrived, comes to the
same ids, so that a receiver sees one span and not two; and whoever has the journal can say which
trace an incident is, without asking anybody.
"""

from hashlib import sha256


def trace_id(job: str, started_ms: int, incident: int) -> int:
    """Of one incident of a job whose journal was begun then: 128 bits, not zero."""
    return _number(f"{job}\0{started_ms}\0{incident}", 16)


def span_id(trace: int, what: str) -> int:
    """Of one span of a trace: 64 bits, not zero."""
    return _number(f"{trace:032x}\0{what}", 8)


def written(trace: int) -> str:
    """As receivers show it."""
    return f"{trace:032x}"


def _number(text: str, size: int) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:size], "big") or 1
