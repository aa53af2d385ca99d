"""A file that is half written is named, whatever reads it says."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from holdfast.agent.failures import describe, shown_and_left
from holdfast.diagnosis.signatures import spotted

STATE = {"weight": torch.zeros(1000)}
Load = Callable[[Path], Any]


def old_form(path: Path) -> None:
    torch.save(STATE, path, _use_new_zipfile_serialization=False)


def read(path: Path, load: Load = torch.load) -> BaseException:
    """What an attempt fails with that reads this."""
    with pytest.raises(BaseException) as raised, shown_and_left(None):  # noqa: PT011
        load(path)
    return raised.value


def cut(path: Path, kept: float) -> Path:
    """Whoever wrote it was killed after so much of it."""
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data))])
    return path


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.999])
@pytest.mark.parametrize(
    ("save", "load"),
    [
        (lambda path: torch.save(STATE, path), torch.load),
        (lambda path: torch.save(STATE, path), lambda path: torch.load(str(path), mmap=True)),
        (lambda path: torch.save(STATE, path), lambda path: torch.load(path.open("rb"))),
        (old_form, torch.load),
        (lambda path: save_file(STATE, path), load_file),
    ],
    ids=["torch", "mmap", "open file", "old form", "safetensors"],
)
def test_a_file_whose_writer_was_killed_is_named_and_known_for_what_it_is(
    tmp_path: Path, save: Callable[[Path], None], load: Load, kept: float
) -> None:
    path = tmp_path / "step-3.pt"
    save(path)
    error = read(cut(path, kept), load)
    told = describe(error)
    assert str(path) in told.message, told
    assert str(path) in "".join(traceback.format_exception(error)), "and where it is printed"
    found = [one.signature.slug for one in spotted(told.traceback.splitlines())]
    assert "checkpoint-file-damaged" in found, told.traceback


def test_other_errors_in_reading_are_no_half_files(tmp_path: Path) -> None:
    path = tmp_path / "odd.pt"
    torch.save({"path": tmp_path}, path)  # no tensor, which torch.load refuses
    told = describe(read(path))
    assert f"{path} was being read" in told.message and "incomplete" not in told.traceback
    assert not getattr(read(tmp_path / "none.pt"), "__notes__", []), "it names the file itself"
    assert not getattr(read(path, lambda _: 1 / 0), "__notes__", []), "nothing was read"
