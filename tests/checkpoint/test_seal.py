"""A seal is the same number whoever takes it, and another one for every flipped bit."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.seal import BLOCK_BYTES, Seal, seal_of

LARGE = random.Random(1).randbytes(3 * BLOCK_BYTES + 77)


@pytest.mark.parametrize(
    "size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES, len(LARGE)]
)
def test_pieces_and_threads_agree_at_the_borders_of_blocks(size: int) -> None:
    data = memoryview(LARGE)[:size]
    pieces = Seal()
    for at in range(0, size, 5_000_011):
        pieces.update(data[at : at + 5_000_011])
    assert pieces.intdigest() == seal_of(data)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_it_does_not_matter_how_bytes_are_cut(data: bytes, cuts: list[int]) -> None:
    pieces, at = Seal(), 0
    for cut in sorted(cuts):
        pieces.update(data[at:cut])
        at = max(at, cut)
    pieces.update(data[at:])
    assert pieces.intdigest() == seal_of(data)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, len(LARGE) * 8 - 1))
def test_every_flipped_bit_shows(bit: int) -> None:
    damaged = bytearray(LARGE)
    damaged[bit // 8] ^= 1 << bit % 8
    assert seal_of(bytes(damaged)) != seal_of(LARGE)


def test_swapped_blocks_show() -> None:
    swapped = LARGE[BLOCK_BYTES : 2 * BLOCK_BYTES] + LARGE[:BLOCK_BYTES] + LARGE[2 * BLOCK_BYTES :]
    assert seal_of(swapped) != seal_of(LARGE)
