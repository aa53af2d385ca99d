"""What Python's garbage collector takes is on the progress page."""

import gc
import os
from collections.abc import Iterator

import pytest

from holdfast import garbage_time
from holdfast.page import Page

COUNT = 200_000  # of objects that each collection looks at


@pytest.fixture
def page() -> Iterator[Page]:
    """Of a worker that is watched."""
    before = [*gc.callbacks]
    page = Page(Page.create())
    garbage_time.watch(page)
    yield page
    gc.callbacks[:] = before
    gc.enable()


def told_s(page: Page) -> float:
    return page.report(0, os.getpid(), 0.0).garbage_s


def test_time_in_the_collector_is_told(page: Page) -> None:
    kept = [[number] for number in range(COUNT)]
    gc.collect()
    first = told_s(page)
    gc.collect()
    assert 0.0005 < first < told_s(page) and len(kept) == COUNT


def test_a_forked_child_tells_nothing_on_the_page_of_its_parent(page: Page) -> None:
    kept = [[number] for number in range(COUNT)]
    gc.disable()
    before = told_s(page)
    child = os.fork()
    if not child:
        gc.collect()
        os._exit(len(kept) != COUNT)
    assert os.waitpid(child, 0)[1] == 0
    assert told_s(page) == before
