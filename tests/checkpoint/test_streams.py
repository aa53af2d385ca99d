"""Copies beside training: what is in a cell is what was there when the snapshot was taken."""

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.checkpoint.arena import Arena, Cell, Key, StatePart
from holdfast.checkpoint.streams import Copy, SideThread, background_copier
from holdfast.checkpoint.tensors import LeafPlace, Stamp, Writer, read
from tests.patience import PATIENCE_S

LARGE = 6 << 20  # numbers of 4 bytes: above what is copied at once


class Held(SideThread):
    """A thread that begins when it may."""

    def __init__(self) -> None:
        super().__init__(idle_cores=1)
        self.may_begin = threading.Event()

    def _run(self) -> None:
        self.may_begin.wait()
        super()._run()


@pytest.fixture
def arena() -> Iterator[Arena]:
    """An empty arena."""
    fd = Arena.create()
    yield Arena(fd)
    os.close(fd)


@pytest.fixture
def background() -> Iterator[Held]:
    """Ends waiting, or the thread would keep the test from ending."""
    held = Held()
    yield held
    held.may_begin.set()


def place(_: str, leaf: Any) -> LeafPlace:
    return LeafPlace(tuple(leaf.shape), (0,) * leaf.ndim, stable=True)


def begin(writer: Writer, tree: Any, background: SideThread, step: int = 1) -> Cell:
    writer.encode(tree)
    return writer.write(Stamp(Key(1, step), 0, 1, 7), (), background=background)


def test_the_cell_is_whole_when_the_copies_are_and_not_before(
    arena: Arena, background: Held
) -> None:
    writer, state = Writer(arena, StatePart.SHARED, place), torch.randn(LARGE)
    was = state.clone()
    cell = begin(writer, {"x": state}, background)
    assert writer.beside and cell.header() is None
    assert background.guard() and writer.changed() is None, (
        "the waiting thread does the work itself"
    )
    state.zero_()
    writer.complete()
    writer.let_go()
    assert cell.intact() and torch.equal(read(cell)["x"], was) and not writer.beside


@pytest.mark.parametrize("through_data", [False, True])
def test_a_change_before_the_copy_is_seen(
    arena: Arena, background: Held, through_data: bool
) -> None:
    writer, state = Writer(arena, StatePart.SHARED, place), torch.randn(LARGE)
    begin(writer, {"a": {"b": state}}, background)
    (state.data if through_data else state).add_(1.0)
    background.guard()
    assert writer.changed() == "a.b"


def test_what_has_been_copied_may_change_unseen_only_if_the_copy_is_right(arena: Arena) -> None:
    """Through `.data`, which torch does not count: the bytes that were copied decide."""
    background = SideThread(idle_cores=1)
    writer, state = Writer(arena, StatePart.SHARED, place), torch.randn(LARGE)
    was = state.clone()
    cell = begin(writer, {"x": state}, background)
    background.guard()
    state.data.add_(1.0)
    assert writer.changed() is None
    writer.complete()
    assert torch.equal(read(cell)["x"], was)


def test_small_payloads_and_what_anything_may_change_are_copied_at_once(
    arena: Arena, background: Held
) -> None:
    small = Writer(arena, StatePart.SHARED, place)
    assert begin(small, {"x": torch.ones(1000)}, background).intact() and not small.beside
    loose, state = Writer(arena, StatePart.PRIVATE), torch.randn(LARGE)
    was = state.clone()
    cell = begin(loose, {"x": state}, background)
    state.zero_()
    assert background.guard() and loose.changed() is None
    loose.complete()
    assert torch.equal(read(cell)["x"], was)


def test_a_snapshot_that_was_given_up_leaves_the_cell_unfinished(
    arena: Arena, background: Held
) -> None:
    writer = Writer(arena, StatePart.SHARED, place)
    cell = begin(writer, {"x": torch.ones(LARGE)}, background)
    background.settle()
    writer.complete()
    writer.give_up()
    assert cell.header() is None


def test_what_follows_a_copy_is_done_soon_after_it_and_never_after_the_guard(
    background: Held,
) -> None:
    quick, done = SideThread(idle_cores=1), threading.Event()
    pieces = [Copy(np.empty(1 << 20, np.uint8), np.ones(1 << 20, np.uint8), stable=True)] * 3
    quick.start(memoryview(b""), pieces)
    quick.then(done.set)
    assert done.wait(PATIENCE_S) and all(bool(piece.target.all()) for piece in pieces)
    late = threading.Event()
    background.start(memoryview(b""), pieces)
    background.then(late.set)
    background.guard()
    background.may_begin.set()
    while background._work._value > 0:  # until the thread has done all it was told
        time.sleep(0.001)
    with background._copying:
        assert not late.is_set()


def test_many_snapshots_one_after_the_other_hold_each_its_own_step(arena: Arena) -> None:
    """The thread and the waiting one share the work however it falls."""
    background, writer = SideThread(idle_cores=1), Writer(arena, StatePart.SHARED, place)
    state = {str(n): torch.zeros(LARGE // 8) for n in range(12)}
    for step in range(1, 21):
        cell = begin(writer, state, background, step)
        background.guard()
        assert writer.changed() is None
        for tensor in state.values():
            tensor.add_(1.0)
        writer.complete()
        assert all((copy == step - 1).all() for copy in read(cell).values()), step


def test_a_copy_that_fails_is_told_where_training_waits() -> None:
    background = SideThread(idle_cores=1)
    target, source = np.zeros(1 << 20, np.uint8), np.zeros(1 << 19, np.uint8)
    background.start(memoryview(b""), [Copy(target, source, stable=True)])
    with pytest.raises(ValueError, match="broadcast"):
        background.guard()


def test_time_of_the_thread_counts_where_no_core_is_idle() -> None:
    source = np.ones(64 << 20, np.uint8)
    for idle, taken in ((0, True), (1, False)):
        background = SideThread(idle_cores=idle)
        pieces = [source[at : at + (1 << 20)] for at in range(0, source.size, 1 << 20)]
        background.start(memoryview(b""), [Copy(np.empty_like(p), p, stable=True) for p in pieces])
        while background._queue:  # left to the thread
            pass
        background.guard()
        assert (background.taken_s > 0) == taken
    assert isinstance(background_copier(torch.device("cpu"), 1), SideThread)
