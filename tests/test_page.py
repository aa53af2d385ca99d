"""The progress page: what a worker leaves behind when it fails, or ends."""

import os

import pytest

from holdfast.events import WorkerError
from holdfast.page import Page, Word, WorkerPhase


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


@pytest.mark.parametrize("left", [True, False])
def test_the_end_of_a_script_is_told_where_it_had_left_its_loop_and_not_within(left: bool) -> None:
    fd = Page.create()
    page = Page(fd)
    page.phase(WorkerPhase.FINISHED if left else WorkerPhase.DATA)
    page.script_ended()
    said = page._ints[Word.PHASE]
    page.close()
    os.close(fd)
    assert said == (WorkerPhase.ENDING if left else WorkerPhase.DATA)


def test_how_long_a_rank_has_computed_in_its_stages_is_told_with_its_steps() -> None:
    fd = Page.create()
    page = Page(fd)
    try:
        page.stalls(1.0, 2.0, 3.5)
        page.step_done(7, 0.5, None)
        report = page.report(0, 1, 0.0)
        assert (report.progress.step, report.stage_s) == (7, 3.5)
        assert (report.progress.data_wait_s, report.progress.snapshot_s) == (1.0, 2.0)
    finally:
        page.close()
        os.close(fd)
