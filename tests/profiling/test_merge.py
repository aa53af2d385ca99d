"""Traces of several ranks come together on one axis, also from machines whose clocks differ."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.dimensions import Dimensions
from holdfast.drivers.profile_files import merged
from holdfast.profiles import RankProfile

MADE = json.loads(Path(__file__).with_name("cuda_trace.json").read_text())
BASE_NS = MADE["baseTimeNanoseconds"]


def leave(folder: Path, rank: int, machine: str, wrong_us: int, base_us: int) -> RankProfile:
    """A trace that says the same from another zero, by a clock that is wrong."""
    base_ns = BASE_NS + 1000 * base_us
    shift_us = wrong_us - base_us
    events = [{**e, "ts": e["ts"] + shift_us} for e in MADE["traceEvents"]]
    ends = [BASE_NS + 1000 * (end + wrong_us) for end in (1000, 2000)]
    trace = {
        "holdfast": {"rank": rank, "node": machine, "first_step": 7, "ends_ns": ends},
        **MADE,
        "host_name": machine,
        "baseTimeNanoseconds": base_ns,
        "traceEvents": events,
    }
    name = f"rank-{rank}.json.gz"
    (folder / name).write_bytes(gzip.compress(json.dumps(trace).encode()))
    return RankProfile(rank=rank, trace=name)


def together(folder: Path, *profiles: RankProfile) -> list[dict[str, Any]]:
    out = folder / "all.json.gz"
    ranks = merged(folder, profiles, lambda rank: f"rank {rank} (tp {rank})", out)
    assert ranks == [one.rank for one in profiles if one.trace]
    found: list[dict[str, Any]] = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    assert list(folder.glob("*.part")) == []
    return found


def kernels(events: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return [(e["pid"] // 1000, e["ts"]) for e in events if e.get("name", "").startswith("nccl")]


def test_events_of_another_zero_are_moved_to_that_of_the_first(tmp_path: Path) -> None:
    one, other = leave(tmp_path, 0, "a", 0, 0), leave(tmp_path, 3, "a", 500, 90_000)
    found = together(tmp_path, one, other)
    assert kernels(found) == [(0, 1400), (3, 1900)], "by the clock of one machine"
    named = {e["args"]["name"] for e in found if e.get("name") == "process_name"}
    assert {"rank 0 (tp 0) · 4242", "rank 3 (tp 3) · 0", "rank 3 (tp 3) · steps"} <= named
    flows = {e["id"] for e in found if e.get("cat") == "ac2g"}
    assert len(flows) == 2, "arrows of ranks are not joined"
    assert [e["name"] for e in found if e.get("cat") == "step"] == ["step 7", "step 7"]


@pytest.mark.parametrize(("wrong_us", "stays"), [(40_000, 0), (-70_000, 0), (300, 300)])
def test_clocks_of_machines_are_compared_where_a_collective_ends(
    tmp_path: Path, wrong_us: int, stays: int
) -> None:
    one, other = leave(tmp_path, 0, "a", 0, 0), leave(tmp_path, 1, "b", wrong_us, -5000)
    found = together(tmp_path, one, other)
    assert kernels(found) == [(0, 1400), (1, 1400 + stays)]
    begin = [e["ts"] for e in found if e.get("cat") == "step"]
    assert begin == [1000, 1000 + stays]


def test_a_rank_without_a_trace_is_left_out_and_none_makes_no_file(tmp_path: Path) -> None:
    lost = RankProfile(rank=1, why="its worker ended")
    assert kernels(together(tmp_path, leave(tmp_path, 0, "a", 0, 0), lost)) == [(0, 1400)]
    assert merged(tmp_path, [lost], str, tmp_path / "none.json.gz") == []
    assert not (tmp_path / "none.json.gz").exists()


def test_a_rank_is_named_by_its_place_in_the_layout() -> None:
    sizes = Dimensions(pp=2, dp_shard=3, tp=2)
    assert sizes.place(0) == {"pp": 0, "dp_shard": 0, "tp": 0}
    assert sizes.place(11) == {"pp": 1, "dp_shard": 2, "tp": 1}
    assert list(sizes.place(7)) == ["pp", "dp_shard", "tp"] and Dimensions().place(0) == {}
