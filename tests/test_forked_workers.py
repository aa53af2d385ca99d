"""What the processes of `pytest -n` are spared."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import typer

from tests.forked_workers import _files


def test_what_is_no_path_is_left_to_pytest(tmp_path: Path) -> None:
    for name in ("one/test_a.py", "one/other.py", "test_b.py", "test_c.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    words = ["one", "test_b.py::test_it[a/b]", "test_no_such.py", "tests.tidy"]
    config = SimpleNamespace(args=words, invocation_params=SimpleNamespace(dir=tmp_path))
    found = _files(cast("pytest.Config", config))
    assert [path.name for path in found] == ["test_a.py", "test_b.py"]


def test_the_command_line_is_as_it_is_without_a_warm_server() -> None:
    """Whatever process runs the tests: what is counted of a command has its parser in it."""
    assert not hasattr(typer.main.get_command, "__wrapped__")
