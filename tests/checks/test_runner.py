"""A group of checks ends in time whatever it runs into; what it has told by then counts."""

import os
import re
import textwrap
from pathlib import Path

import psutil
import pytest

from holdfast.checks import runner
from holdfast.checks.plan import CheckGroup, CheckOrder, groups
from tests.patience import until

FIRST = '{"name": "first", "state": "ok", "found": "well"}'


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "type[_Group]":
    """Groups whose program is given as text."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *os.sys.path]))  # type: ignore[attr-defined]
    _Group.folder = tmp_path
    return _Group


class _Group:
    folder: Path

    def __init__(self, text: str, deadline_s: float = 30.0) -> None:
        (self.folder / "checking.py").write_text(textwrap.dedent(text))
        self.leaves = self.folder / "left"
        order = CheckOrder(file=str(self.leaves), deadline_s=deadline_s)
        self.made = CheckGroup(names=("first", "second"), module="checking", order=order)


def test_who_hangs_is_killed_with_its_children_and_what_it_left_is_removed(
    group: type[_Group],
) -> None:
    hanging = group(
        f"""
        import json, subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"])
        order = json.loads(sys.argv[1])
        open(order["file"], "w").close()
        open(order["file"] + ".pid", "w").write(str(child.pid))
        print('{FIRST}', flush=True)
        child.wait()
        """,
        deadline_s=4.0,
    )
    first, second = runner.run(hanging.made)
    assert (first.state, first.found) == ("ok", "well")
    assert (second.state, second.found) == ("failed", "timed out after 4 s")
    child = int((hanging.folder / "left.pid").read_text())
    assert until(lambda: _has_ended(child)), "its parent is gone, and it with it"
    assert not hanging.leaves.exists()


def test_who_gets_no_processor_has_found_nothing(group: type[_Group]) -> None:
    """It is of low priority beside others that compute on the same processor."""
    starving = group(
        f"""
        import os, subprocess, sys
        os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
        for _ in range(2):
            subprocess.Popen([sys.executable, "-c", "while True: pass"])
        print('{FIRST}', flush=True)
        os.nice(19)
        while True:
            pass
        """,
        deadline_s=4.0,
    )
    first, second = runner.run(starving.made)
    assert first.state == "ok" and second.state == "skipped" and not second.blames_machine
    assert re.fullmatch(r"it got no processor for \d of its 4 s; not checked", second.found)


def test_who_had_a_processor_and_is_late_has_failed() -> None:
    found = runner.late(90.0, 40.0)
    assert (found.state, found.found) == ("failed", "timed out after 90 s")
    assert runner.late(90.0, 50.0).state == "skipped"


def _has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("os.abort()", "the check was killed by SIGABRT"),
        ("raise ValueError('no such thing')", "exited with status 1: ValueError: no such thing"),
        ("pass", "the check exited with status 0"),
    ],
)
def test_who_ends_early_says_how(group: type[_Group], end: str, why: str) -> None:
    ended = group(f"import os\nprint('{FIRST}', flush=True)\nprint('noise')\n{end}\n")
    first, second = runner.run(ended.made)
    assert first.state == "ok" and second.state == "failed"
    assert why in second.found


def test_a_quick_plan_is_a_part_of_the_whole_and_every_place_gets_its_disk_checked() -> None:
    quick, whole = groups(["/a", "/b"], quick=True), groups(["/a", "/b"], quick=False)
    names = [name for group in whole for name in group.names]
    assert [name for group in quick for name in group.names] == names[: len(names) - 5]
    assert {"disk /a", "disk /b"} < set(names) and len(set(names)) == len(names)
