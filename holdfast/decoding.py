"""Types that several threads may be the first to decode.

msgspec works out what a struct consists of when it is first decoded, and two threads that do so at
once crash the process (seen with 0.22). Here only one thread at a time does.
"""

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_lock = threading.Lock()
_known: set[Any] = set()


def known(kind: type[T]) -> type[T]:
    """The type itself, once msgspec knows what it consists of."""
    if kind not in _known:
        with _lock:
            msgspec.json.Decoder(kind)
            _known.add(kind)
    return kind
