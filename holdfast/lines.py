"""Lines of a journal: one JSON object each, whose last field is a checksum.

    {"seq":2,"at":1.5,"event":{...},"actions":[...],"xxh":"89abcdef01234567"}

`xxh` is the XXH3-64 of the object without this field, with the checksum of the line before as seed
(0 for the first line). So a line tells of flipped bits in itself, and of every line that was
changed, removed, put in or swapped before it; and two journals with the same last line are the
same. Pure, and light enough for agents, which keep copies of such lines.
"""

from collections.abc import Iterable

import xxhash

UNSEALED = b'{"journal":1,'  # how a journal begins whose lines have no checksums yet
_FIELD = b',"xxh":"'
_END = b'"}\n'
_TAIL = _FIELD + b"%016x" + _END
_TAIL_BYTES = len(_TAIL % 0)


def seal(document: bytearray, before: int) -> int:
    """Make a JSON object the line that follows a line with checksum `before`; its own checksum.

    In place, without a copy: the controller's pace depends on it.
    """
    checksum: int = xxhash.xxh3_64_intdigest(document, before)
    document.pop()
    document += _TAIL % checksum
    return checksum


def unseal(line: bytes, before: int) -> int | None:
    """The checksum of a line; None if it is damaged, or does not follow the one before."""
    checksum: int = xxhash.xxh3_64_intdigest(line[:-_TAIL_BYTES] + b"}", before)
    return checksum if line[-_TAIL_BYTES:] == _TAIL % checksum else None


def stated(line: bytes) -> int | None:
    """The checksum that a line states, right or not; None if it has none."""
    _, field, tail = line.rpartition(_FIELD)
    digits = tail[: -len(_END)]
    if not field or not tail.endswith(_END) or not digits or digits.strip(b"0123456789abcdef"):
        return None
    return int(digits, 16)


def follow(lines: Iterable[bytes], before: int) -> list[int] | None:
    """The checksums of lines that follow each other; None if one of them is damaged."""
    found: list[int] = []
    for line in lines:
        checksum = unseal(line, before)
        if checksum is None:
            return None
        found.append(before := checksum)
    return found


def sound(content: bytes) -> bool:
    """Whether this is a journal from its first line to its last, with nothing damaged."""
    if content.startswith(UNSEALED):
        return content.endswith(b"\n")
    return bool(content) and follow(content.splitlines(keepends=True), 0) is not None
