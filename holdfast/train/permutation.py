"""A random order of any number of samples, computed point by point.

`permute(positions, count, key)` gives the sample at each position of an order that depends only on
`key`. A Feistel network over the next power of four is a bijection whatever its round function;
positions that fall outside `count` are sent through again until they fall inside (cycle walking).

A shuffled list would have to be made anew at every restart, and for a hundred million samples that
costs seconds and gigabytes; here resuming at position n costs nothing.
"""

import numpy as np
import numpy.typing as npt

_ROUNDS = 6
_ONE = np.uint64(1)

Indices = npt.NDArray[np.int64]


def permute(positions: npt.ArrayLike, count: int, key: int) -> Indices:
    """The sample at each position (int64, each in `range(count)`) of the order named by `key`."""
    values = np.asarray(positions, dtype=np.uint64)
    half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
    keys = _round_keys(key)
    values = _feistel(values, half, keys)
    while (outside := values >= np.uint64(count)).any():
        values[outside] = _feistel(values[outside], half, keys)
    return values.astype(np.int64)


def _feistel(
    values: npt.NDArray[np.uint64], half: np.uint64, keys: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    mask = (_ONE << half) - _ONE
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right, key) & mask)
    return (left << half) | right


def _mix(values: npt.NDArray[np.uint64], key: np.uint64) -> npt.NDArray[np.uint64]:
    """The finalizer of splitmix64: every input bit changes about half of the output bits."""
    with np.errstate(over="ignore"):
        mixed = values + key
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _round_keys(key: int) -> npt.NDArray[np.uint64]:
    start = np.uint64(key % (1 << 64))
    with np.errstate(over="ignore"):
        steps = np.arange(1, _ROUNDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return _mix(steps, start)


def combine(*numbers: int) -> int:
    """One 64-bit key from several numbers, e.g. seed and epoch."""
    key = np.zeros(1, dtype=np.uint64)
    for number in numbers:
        key = _mix(key, np.uint64((number + 0x632BE59BD9B4E019) % (1 << 64)))
    return int(key[0])
