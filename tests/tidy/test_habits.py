"""Habits that keep tests honest and the repository free of anybody's machine."""

import ast
import re
import subprocess
import tempfile
from pathlib import Path

from tests.tidy.source import ROOT, Source, package, sources

PLACES = (f"{ROOT}/", f"{Path.home()}/", tempfile.gettempdir() + "/pytest-")  # of this machine
SLEEPS = frozenset(("time.sleep", "sleep", "asyncio.sleep", "anyio.sleep"))
TEXT_MAX_BYTES = 1024 * 1024


def test_tests_wait_for_conditions_and_never_for_luck() -> None:
    """A test sleeps only in a loop that polls."""
    hoping = [
        f"{source}:{call.lineno}"
        for source in sources()
        if source.path.name.startswith(("test_", "conftest"))
        for call in _sleeps_outside_loops(source)
    ]
    assert not hoping


def _sleeps_outside_loops(source: Source) -> list[ast.Call]:
    polled = {id(n) for loop in source.all(ast.While) for n in ast.walk(loop)}
    calls = [call for call in source.all(ast.Call) if id(call) not in polled]
    return [call for call in calls if _sleeps(call.func) and not _is_zero(call)]


def _sleeps(function: ast.expr) -> bool:
    last = getattr(function, "attr", getattr(function, "id", ""))
    return last == "sleep" and ast.unparse(function) in SLEEPS


def _is_zero(call: ast.Call) -> bool:
    """`asyncio.sleep(0)` waits for nothing: it only lets others go first."""
    return [ast.unparse(argument) for argument in call.args] == ["0"]


def test_no_file_names_a_place_of_somebodys_machine() -> None:
    named = [
        f"{path}:{number}: {line.strip()[:80]}"
        for path, text in _texts()
        for number, line in enumerate(text.splitlines(), 1)
        if any(place in line for place in PLACES)
    ]
    assert not named


def _texts() -> list[tuple[str, str]]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    files = [(name, ROOT / name) for name in listed.stdout.split("\0") if name]
    small = [(n, p) for n, p in files if p.is_file() and p.stat().st_size <= TEXT_MAX_BYTES]
    read = [(name, path.read_bytes()) for name, path in small]
    return [(name, data.decode()) for name, data in read if b"\0" not in data]


def test_every_direct_dependency_is_pinned() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {
        _name(d)
        for d in (*project["dependencies"], *(d for extra in extras.values() for d in extra))
    }
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][\w.!]*", pin) for pin in pins)
    assert {_name(pin) for pin in pins} == wanted


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert found is not None
    return found[0].lower().replace("_", "-")


def test_no_process_of_ours_imports_what_lies_in_somebodys_working_folder() -> None:
    """`-m` alone puts that folder before Python's library: a queue.py there would end an agent."""
    started = [
        f"{source}:{words.lineno}"
        for source in package()
        for words in [*source.all(ast.List), *source.all(ast.Tuple)]
        if isinstance(words, ast.List | ast.Tuple)
        if [ast.unparse(word) for word in words.elts[:2]] == ["sys.executable", "'-m'"]
        and ast.unparse(words.elts[2]) != "job.module or ''"
    ]
    assert not started
