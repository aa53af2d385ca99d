"""What the kernel kills for memory is told from what anybody else kills."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.oom_kills import OomKills
from tests.memory_group import limited

MIB = 1 << 20
EATS = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
eaten = []
while True:
    eaten.append(b"x" * (1 << 20))
"""


@pytest.fixture
def group() -> Iterator[Path]:
    yield from limited(64 * MIB)


def eat(group: Path) -> int:
    return subprocess.run([sys.executable, "-c", EATS, str(group)], check=False).returncode


def test_a_process_that_the_kernel_kills_is_counted_once(group: Path) -> None:
    kills = OomKills([group])
    assert kills.new() == ""
    assert eat(group) == -signal.SIGKILL
    assert kills.new() == "memory limit 64 MiB"
    assert kills.new() == "", "that was told"
    assert OomKills([group]).new() == "", "it was before"


def test_a_process_that_somebody_kills_is_not_counted(group: Path) -> None:
    kills = OomKills([group])
    stays = "import os, sys, time; open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))"
    process = subprocess.Popen([sys.executable, "-c", f"{stays}; time.sleep(1e6)", str(group)])
    while str(process.pid) not in (group / "cgroup.procs").read_text().split():
        assert process.poll() is None
    process.kill()
    process.wait()
    assert kills.new() == ""


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("memory.events", "low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\n", "oom 2\noom_kill 2\n"),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", "oom_kill 1\n"),
    ],
)
def test_both_versions_of_control_groups_are_read(
    tmp_path: Path, name: str, before: str, after: str
) -> None:
    (tmp_path / name).write_text(before)
    kills = OomKills([tmp_path / "gone", tmp_path])
    assert kills.new() == ""
    (tmp_path / name).write_text(after)
    assert kills.new() == "the machine is out of memory"
    (tmp_path / "memory.max").write_text("536870912\n")
    (tmp_path / name).write_text("oom_kill 9\n")
    assert kills.new() == "memory limit 512 MiB"
    (tmp_path / name).unlink()
    assert kills.new() == "", "nothing is counted any more"


def test_where_nothing_counts_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("oom 1\n\nsomething else entirely\noom_kill many\n")
    assert OomKills([tmp_path]).new() == "" == OomKills([]).new()
