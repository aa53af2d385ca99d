"""Snapshots count on what a container may take, not only on what its machine has."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.checkpoint.free_memory import FreeMemory, free_memory

GIB = 1 << 30


def machine(folder: Path, available: int) -> Path:
    """A /proc/meminfo."""
    path = folder / "meminfo"
    path.write_text(f"MemTotal: {8 * GIB >> 10} kB\nMemAvailable: {available >> 10} kB\n")
    return path


def group(folder: Path, files: Mapping[str, object]) -> None:
    """One control group."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")


def found(tmp_path: Path, lines: str) -> FreeMemory:
    """What counts, with these control groups of our own."""
    own = tmp_path / "own"
    own.write_text(lines)
    return free_memory(machine(tmp_path, 6 * GIB), own, tmp_path / "cgroup")


def test_without_limits_it_is_the_machine(tmp_path: Path) -> None:
    group(tmp_path / "cgroup", {"memory.max": "max", "memory.current": GIB})
    assert found(tmp_path, "0::/\n") == FreeMemory(6 * GIB, "the machine's memory")


def test_the_tightest_group_above_counts_and_page_cache_can_be_given_back(tmp_path: Path) -> None:
    group(tmp_path / "cgroup/pod", {"memory.max": 4 * GIB, "memory.current": 3 * GIB})
    (tmp_path / "cgroup/pod/memory.stat").write_text(f"anon 5\ninactive_file {GIB}\n")
    group(tmp_path / "cgroup/pod/main", {"memory.max": 5 * GIB, "memory.current": GIB})
    assert found(tmp_path, "0::/pod/main\n") == FreeMemory(2 * GIB, "the container's memory limit")


@pytest.mark.parametrize(("limit", "free"), [(3 * GIB, GIB), (1 << 62, 6 * GIB)])
def test_version_one_is_read_as_well(tmp_path: Path, limit: int, free: int) -> None:
    files = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": 2 * GIB}
    group(tmp_path / "cgroup/memory/x", files)
    assert found(tmp_path, "4:memory:/x\n1:cpu:/x\n").free_bytes == free


def test_this_machine_has_some(tmp_path: Path) -> None:
    assert free_memory().free_bytes > 0
    assert free_memory(own=tmp_path / "missing").of == "the machine's memory"
