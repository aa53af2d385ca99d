"""A random order of any number of samples, computed point by point.

`permute(positions, count, key)` gives the sample at each position of an order that depends only on
`key`. A position is split into two digits of base m, the smallest with m² ≥ count, and sent through
a Feistel network of four rounds, which is a bijection whatever its round function (Luby and
Rackoff, 1988). The few results outside `count` are sent through again until they fall inside.

A shuffled list would have to be made anew at every restart, and for a hundred million samples that
costs seconds and gigabytes; here resuming at position n costs nothing.
"""

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

_ROUNDS = 4
_WORD = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio, as in splitmix64
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_FIRST_U64, _SECOND_U64 = np.uint64(_FIRST), np.uint64(_SECOND)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)

Words = npt.NDArray[np.uint64]


def permute(positions: npt.ArrayLike, count: int, key: int) -> npt.NDArray[np.int64]:
    """The sample at each position (int64, each in `range(count)`) of the order named by `key`."""
    values = np.atleast_1d(np.asarray(positions, dtype=np.uint64))
    root = np.uint64(math.isqrt(count - 1) + 1)
    keys = _round_keys(key)
    values = _feistel(values, root, keys)
    while (outside := values >= np.uint64(count)).any():
        values[outside] = _feistel(values[outside], root, keys)
    return values.astype(np.int64)


def combine(*numbers: int) -> int:
    """One 64-bit key from several numbers, e.g. seed and epoch."""
    key = 0
    for number in numbers:
        key = _mixed(key + number + _STEP)
    return key


def _feistel(values: Words, root: np.uint64, keys: tuple[np.uint64, ...]) -> Words:
    left, right = values // root, values % root
    for key in keys:
        left, right = right, (left + _mix(right + key) % root) % root
    return left * root + right


def _mix(values: Words) -> Words:
    """The finalizer of splitmix64: every input bit changes about half of the output bits."""
    values = (values ^ (values >> _S30)) * _FIRST_U64
    values = (values ^ (values >> _S27)) * _SECOND_U64
    return values ^ (values >> _S31)


def _mixed(value: int) -> int:
    value &= _WORD
    value = ((value ^ (value >> 30)) * _FIRST) & _WORD
    value = ((value ^ (value >> 27)) * _SECOND) & _WORD
    return value ^ (value >> 31)


@lru_cache(maxsize=16)
def _round_keys(key: int) -> tuple[np.uint64, ...]:
    return tuple(np.uint64(_mixed(key + n * _STEP)) for n in range(1, _ROUNDS + 1))
