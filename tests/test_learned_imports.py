"""What one process imports until its first step, the next one imports while it waits for a rank."""

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.messages import Assignment
from tests.patience import PATIENCE_S
from tests.warm import PIPE, Script

TRAINS = """
import os, sys
from holdfast import learned_imports
learned_imports.watch(lambda place: {library!r} in place or place in ("built-in", "frozen"))
{script}
learned_imports.step_ended()
learned_imports.step_ended()
"""
WAITS = """
import os, sys
from holdfast import learned_imports, rank
rank.run_ahead()
rank.while_waiting.append(lambda control: os.write(control, b"done\\n"))
rank.while_waiting.append(learned_imports.load_while_waiting)
{above}
rank.await_rank()
print(os.environ["RANK"], *[name for name in {names!r} if name in sys.modules])
"""
AS_A_WORKER = """
import atexit
from holdfast.agent import child, late_rank
rank.while_waiting[-1] = child._load_ahead
rank.on_rank.append(late_rank.settle)
atexit.register(lambda: print(sys.modules["lib_notes"].rank_zero_only.rank))
"""
NOTES = """
import os
def rank_zero_only(): pass
rank_zero_only.rank = getattr(rank_zero_only, "rank", int(os.environ.get("RANK", 0)))
"""
NAMES = ("lib_one", "lib_one.part", "lib_two", "lib_bad", "own")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With libraries, one of which fails the second time and one of which asks for the rank, and a
    module of the user's."""
    library = tmp_path / "library"
    (library / "lib_one").mkdir(parents=True)
    (library / "lib_one" / "__init__.py").write_text("import own")
    (library / "lib_one" / "part.py").write_text("import os; RANK = os.environ.get('RANK')")
    (library / "lib_two.py").write_text("import os; SAW = os.environ.get('SEEN')")
    (library / "lib_notes.py").write_text(NOTES)
    mixed = "import lib_notes, os; RANK = os.environ.get('RANK')"
    (library / "lib_mixed.py").write_text(mixed)
    bad = "import os, sys\nif 'HOLDFAST_CONTROL_FD' in os.environ: sys.exit('twice')"
    (library / "lib_bad.py").write_text(bad)
    (tmp_path / "own.py").write_text("")
    return tmp_path


def started(folder: Path, source: str, env: Mapping[str, str], **how: Any) -> Script:
    """A process that finds the libraries and the module of the user."""
    path = f"import sys; sys.path[:0] = {[str(folder / 'library'), str(folder)]}"
    told = {**os.environ, "HOLDFAST_IMPORTS": str(folder / "list"), **env}
    return Script([f"{path}\n{source}"], cwd=folder, env=told, **how)


def train(folder: Path, script: str) -> None:
    source = TRAINS.format(script=script, library=str(folder / "library"))
    assert started(folder, source, {}).wait(PATIENCE_S) == 0


def wait(folder: Path, above: str = "", *, lines: int = 2) -> list[str]:
    """What a process has that was told its rank once it had said so many lines: the first one where
    it waits, the second one that a library wants the rank or that there is no more to be done."""
    ours, theirs = socket.socketpair()
    control = str(theirs.fileno())
    with ours:
        process = started(
            folder, WAITS.format(above=above, names=NAMES), {"HOLDFAST_CONTROL_FD": control},
            pass_fds=[theirs.fileno()], stdout=PIPE, stderr=PIPE, text=True,
        )  # fmt: skip
        theirs.close()
        with ours.makefile("rb") as said:
            assert all(said.readline() for _ in range(lines))
        told = Assignment(
            attempt=2, rank=1, local_rank=1, world_size=2, redo_until=0, env={"RANK": "1"}
        )
        ours.sendall(msgspec.json.encode(told) + b"\n")
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and errors == "", errors
    return str(output).split()


def test_libraries_are_imported_ahead_and_modules_of_the_user_only_where_these_want_them(
    folder: Path,
) -> None:
    train(folder, "import lib_bad, own, lib_two, lib_one.part")
    (names,) = json.loads((folder / "list").read_text()).values()
    assert {"lib_one", "lib_one.part", "lib_two"} <= {*names} and "own" not in names
    assert wait(folder) == ["1", "lib_one", "lib_one.part", "lib_two", "own"]


def test_what_a_library_would_find_out_at_its_first_use_is_found_out_ahead(folder: Path) -> None:
    train(folder, "import lib_one")
    follows = "learned_imports.FOLLOWED_BY = {'lib_one': 'lib_two', 'lib_bad': 'json.tool'}"
    assert wait(folder, follows) == ["1", "lib_one", "lib_two", "own"]


def test_what_follows_a_change_of_the_environment_is_imported_only_after_the_same_change(
    folder: Path,
) -> None:
    train(folder, "import lib_one\nos.environ['SEEN'] = '1'\nimport lib_two")
    assert wait(folder) == ["1", "lib_one", "own"]
    assert wait(folder, "os.environ['SEEN'] = '1'") == ["1", "lib_two"]
    assert wait(folder, "os.environ['SEEN'] = '2'") == ["1"]
    assert wait(folder, "sys.path.append('/x'); os.environ['SEEN'] = '1'") == ["1"]


@pytest.mark.parametrize(
    "odd",
    [
        "import pathlib; sys.path.insert(0, pathlib.Path('/x'))",  # which Python passes over
        "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')",
    ],
)
def test_imports_work_in_surroundings_that_only_python_takes(folder: Path, odd: str) -> None:
    train(folder, f"{odd}\nimport lib_two")
    assert "lib_two" in str(json.loads((folder / "list").read_text()))
    assert wait(folder, odd) == ["1", "lib_two"]


def test_imports_work_where_the_script_has_an_environment_of_its_own(folder: Path) -> None:
    train(folder, "os.environ = dict(os.environ)\nimport lib_two")
    assert "lib_two" in (folder / "list").read_text()


def test_a_list_grows_and_one_that_is_damaged_is_none(folder: Path) -> None:
    train(folder, "import lib_one")
    train(folder, "import lib_two")
    assert wait(folder) == ["1", "lib_one", "lib_two", "own"]
    (folder / "list").write_text('{"a": 1}')
    assert wait(folder) == ["1"]


def test_once_the_rank_has_come_the_script_imports_what_it_still_wants(folder: Path) -> None:
    train(folder, "import lib_one.part, lib_two")
    assert wait(folder) == ["1", "lib_one", "lib_one.part", "own"], "lib_two follows the rank"


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("lib_notes, lib_two", ["lib_two"]),
        ("lib_mixed, lib_two", []),  # which asks for the rank as well: lib_two follows it
    ],
)
def test_a_library_that_only_notes_the_rank_is_not_waited_at_and_notes_it_later(
    folder: Path, wanted: str, found: list[str]
) -> None:
    train(folder, f"import {wanted}")
    assert wait(folder, AS_A_WORKER) == ["1", *found, "1"]


def test_without_a_list_the_rank_is_waited_for(folder: Path) -> None:
    assert wait(folder, lines=1) == ["1"]
