"""A journal on a claim: found by the next controller of the run, left alone by any other job."""

from pathlib import Path

import pytest

from holdfast.controller import Limits
from holdfast.drivers.kubernetes import shelf
from holdfast.replay import replay
from holdfast.spec import Job, job_from_dict

JOB: Job = job_from_dict({"name": "run", "command": ["true"]}, where="test")


def begun(folder: Path, content: bytes = b"") -> bytes:
    """What lies in the folder of a controller that has begun."""
    return shelf.begin(JOB, folder, content, now=1.0).read_bytes()


def test_the_next_controller_goes_on_with_the_journal_of_the_one_before(tmp_path: Path) -> None:
    first = shelf.place(tmp_path, "run", "uid-1", 9, "pod-a")
    content = begun(first)
    second = shelf.place(tmp_path, "run", "uid-1", 10, "pod-b")
    assert shelf.left_behind(second) == (9, content)
    assert begun(second, content) == content
    shelf.forget_others(second)
    assert list(second.parent.iterdir()) == [second]
    controller, book = replay(second / shelf.FILE, Limits())
    book.close()
    assert not controller.state.ended and book.seq == 0


def test_the_newest_of_several_counts_though_another_is_longer(tmp_path: Path) -> None:
    content = begun(shelf.place(tmp_path, "run", "uid-1", 2, "pod-a"))
    stray = shelf.place(tmp_path, "run", "uid-1", 1, "pod-z") / shelf.FILE
    begun(stray.parent)
    stray.write_bytes(content + b"half of a line" * 9)
    assert shelf.left_behind(shelf.place(tmp_path, "run", "uid-1", 3, "pod-b")) == (2, content)


@pytest.mark.parametrize("harm", [b"", b"not a journal\n", b'{"journal":99}\n'])
def test_what_cannot_be_read_is_passed_over(tmp_path: Path, harm: bytes) -> None:
    content = begun(shelf.place(tmp_path, "run", "uid-1", 1, "pod-a"))
    broken = shelf.place(tmp_path, "run", "uid-1", 2, "pod-b")
    begun(broken)
    (broken / shelf.FILE).write_bytes(harm)
    assert shelf.left_behind(shelf.place(tmp_path, "run", "uid-1", 3, "pod-c")) == (1, content)


def test_a_former_job_of_the_name_is_neither_taken_nor_touched(tmp_path: Path) -> None:
    former = shelf.place(tmp_path, "run", "uid-1", 5, "pod-a")
    content = begun(former)
    ours = shelf.place(tmp_path, "run", "uid-2", 1, "pod-b")
    assert shelf.left_behind(ours) == (0, b"")
    begun(ours)
    shelf.forget_others(ours)
    assert (former / shelf.FILE).read_bytes() == content


def test_a_beginning_that_was_cut_off_is_no_journal(tmp_path: Path) -> None:
    folder = shelf.place(tmp_path, "run", "uid-1", 1, "pod-a")
    cut = folder.with_name(f".{folder.name}")
    cut.mkdir(parents=True)
    (cut / shelf.FILE).write_bytes(begun(folder.with_name("000000-pod-z")))
    assert not folder.exists()
    begun(folder)
    assert (folder / shelf.FILE).exists() and not cut.exists()
