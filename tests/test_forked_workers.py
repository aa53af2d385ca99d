"""What the processes of `pytest -n` are spared."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import typer

from tests.forked_workers import _files, import_tests, say_if_nothing_ran
from tests.tidy.source import ROOT


def test_what_is_no_path_is_left_to_pytest(tmp_path: Path) -> None:
    for name in ("one/test_a.py", "one/other.py", "test_b.py", "test_c.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    words = ["one", "test_b.py::test_it[a/b]", "test_no_such.py", "tests.tidy"]
    config = SimpleNamespace(args=words, invocation_params=SimpleNamespace(dir=tmp_path))
    found = _files(cast("pytest.Config", config))
    assert [path.name for path in found] == ["test_a.py", "test_b.py"]


def test_a_path_that_does_not_exist_is_an_error_with_n_too() -> None:
    """It was a run of nothing, without a word, that looked like success."""
    words = ["-p", "no:cacheprovider", "-n", "1", "tests/no_such.py", __file__]
    run = [sys.executable, "-m", "pytest", *words]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "ERROR: file or directory not found: tests/no_such.py" in done.stderr, done.stdout
    assert done.returncode == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize(
    ("status", "processes", "told"), [(5, 2, True), (0, 2, False), (5, None, False)]
)
def test_a_run_with_n_in_which_nothing_was_collected_says_so(
    status: int, processes: int | None, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without `-n` pytest does."""
    words = ["test_b.py::no_such"]
    config = SimpleNamespace(args=words, option=SimpleNamespace(numprocesses=processes))
    say_if_nothing_ran(cast("pytest.Config", config), status)
    said = "ERROR: no test was run: nothing was collected from test_b.py::no_such\n"
    assert capsys.readouterr().err == (said if told else "")


def test_tests_are_imported_ahead_but_for_those_of_which_that_cannot_be_done(
    tmp_path: Path,
) -> None:
    skip = "import pytest; pytest.skip('not here', allow_module_level=True)"
    for name, text in {"b": "import ray", "c": skip, "d": "1 / 0", "a": "assert True"}.items():
        (tmp_path / f"test_of_{name}.py").write_text(text)
    files = [str(path) for path in tmp_path.iterdir()]
    pid = os.fork()
    if pid == 0:
        try:
            words, path = ["-c", os.devnull, f"--rootdir={tmp_path}"], [*sys.path]
            found = import_tests(words, files) if "ray" not in sys.modules else ["test_of_a"]
            os._exit(found != ["test_of_a"] or sys.path != path)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0


def test_the_command_line_is_as_it_is_without_a_warm_server() -> None:
    """Whatever process runs the tests: what is counted of a command has its parser in it."""
    assert not hasattr(typer.main.get_command, "__wrapped__")
