"""The progress page: what a worker leaves behind when it fails."""

import os

import pytest

from holdfast.events import WorkerError
from holdfast.page import Page


def kept(error: WorkerError) -> WorkerError | None:
    """`error` as the agent finds it."""
    fd = Page.create()
    page = Page(fd)
    try:
        page.fail(error)
        return page.error()
    finally:
        page.close()
        os.close(fd)


def test_an_error_with_bytes_that_are_no_text_is_kept_with_escapes() -> None:
    found = kept(WorkerError(type="E", message="no \udcff\ud800 é", file="/\udcff.py"))
    assert found is not None
    assert (found.message, found.file) == ("no \\udcff\\ud800 é", "/\\udcff.py")


@pytest.mark.parametrize("length", [100_000, 1_000_000])
def test_an_error_of_any_length_is_kept_in_part(length: int) -> None:
    """Control characters take six bytes each in JSON."""
    text = "\x1b" * length
    found = kept(WorkerError(type=text, message=text, file=text, traceback=text + "end"))
    assert found is not None
    assert found.traceback.startswith("...\n")
    short = kept(WorkerError(type="E", message="m", traceback="x" * length + "end"))
    assert short is not None
    assert (short.type, short.traceback[-3:]) == ("E", "end")
