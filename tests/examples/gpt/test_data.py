"""The text is real, the same each time, and cut into windows without loss."""

import json
import sysconfig
from pathlib import Path

from data import ByteDataset, standard_library_text


def test_text_is_the_same_each_time() -> None:
    assert standard_library_text() == standard_library_text()


def test_text_is_the_source_of_the_standard_library() -> None:
    text = standard_library_text()
    assert len(text) > 5_000_000
    assert Path(json.__file__).read_bytes() in text


def test_text_has_no_third_party_packages() -> None:
    import numpy

    packages = Path(sysconfig.get_path("purelib")) / "numpy" / "__init__.py"
    assert packages == Path(numpy.__file__)
    assert packages.read_bytes() not in standard_library_text()


def test_each_window_begins_where_the_targets_of_the_last_end() -> None:
    text = bytes(range(256)) * 3
    windows = ByteDataset(text, context=10)
    cut = [bytes(windows[i].tolist()) for i in range(len(windows))]
    assert all(len(window) == 11 for window in cut)
    assert b"".join(window[:-1] for window in cut) + cut[-1][-1:] == text[: len(cut) * 10 + 1]
    assert len(text) - len(cut) * 10 - 1 < 10
