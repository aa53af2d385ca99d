"""The step and the loss that a program writes into a file, on a real page."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.progress_file import ProgressFile, read
from holdfast.page import Page
from holdfast.spec.progress import ProgressPatterns
from tests.patience import until


@pytest.fixture
def page() -> Iterator[Page]:
    fd = Page.create()
    made = Page(fd)
    yield made
    made.close()
    os.close(fd)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("12", (12, None)),
        ("12.0\n", (12, None)),
        ('{"step": 3, "loss": 0.5}', (3, 0.5)),
        ('{\n  "step": 3,\n  "loss": 2\n}\n', (3, 2.0)),
        ('{"step": 1}\n{"step": 2, "loss": 1e-3, "other": []}\n', (2, 0.001)),
        ('half a line", "step": 1}\n{"step": 2}\n', (2, None)),
        ('{"step": 1}\n{"step": 2, "lo', (1, None)),
        ('{"step": 1}\n{"step": 2}', (2, None)),
        ("100\n10", (100, None)),
        ("100\n10\n", (10, None)),
        ("9" * 4000, (None, None)),
        ('{"step": 3, "loss": 1' + "0" * 400 + "}", (3, None)),
        ('{"loss": 0.25}', (None, 0.25)),
        ('{"step": "7", "loss": true}', (None, None)),
        ('{"step": -1}', (None, None)),
        ("1e400", (None, None)),
        ("NaN", (None, None)),
        ("[" * 100_000, (None, None)),
        ("", (None, None)),
        ("null", (None, None)),
    ],
)
def test_a_file_tells_its_newest_record_or_nothing(
    text: str, found: tuple[int | None, float | None]
) -> None:
    assert read(text) == found


def test_what_is_written_is_shown_and_what_was_there_before_is_not(
    page: Page, tmp_path: Path
) -> None:
    path = tmp_path / "progress.json"
    path.write_text('{"step": 900, "loss": 9}')
    file = ProgressFile(path, page)
    for step in (1, 2):
        path.write_text('{"step": 0}\n' * 1000 + f'{{"step": {step}, "loss": {step}}}\n')
        until(lambda step=step: page.printed_step == step)  # type: ignore[misc]
        report = page.report(0, 1, 0.0)
        assert (report.printed_step, report.printed_loss) == (step, float(step))
    new = tmp_path / "new"
    new.write_text("41")
    new.rename(path)
    file.close()
    assert page.printed_step == 41, "the last look is at the end"


def test_a_pipe_or_a_folder_in_its_place_holds_nobody_up(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "progress"
    os.mkfifo(path)
    file = ProgressFile(path, page)
    file.close()
    assert not file._thread.is_alive()
    path.unlink()
    path.symlink_to(path)
    file = ProgressFile(path, page)
    path.unlink()
    path.mkdir()
    path.rmdir()
    path.write_text("5")
    file.close()
    assert page.printed_step == 5


def test_a_loss_that_is_not_finite_breaks_the_attempt_at_its_step(
    page: Page, tmp_path: Path
) -> None:
    path = tmp_path / "progress.json"
    file = ProgressFile(path, page)
    path.write_text('{"step": 7, "loss": NaN}')
    file.close()
    broken = page.report(0, 1, 0.0).broke
    assert broken is not None and (broken.step, broken.value) == (7, "nan")


def test_who_has_a_file() -> None:
    shared, each = ProgressPatterns(file="p.json"), ProgressPatterns(file="p-{rank}.json")
    assert [shared.file_of(rank, rank % 2) for rank in range(3)] == ["p.json", None, "p.json"]
    assert each.file_of(3, 1) == "p-3.json"
