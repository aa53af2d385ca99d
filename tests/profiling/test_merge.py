"""Traces of several ranks come together on one axis, also from machines whose clocks differ."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.dimensions import Dimensions
from holdfast.drivers.profile_files import merged
from holdfast.profiles import RankProfile
from holdfast.profiling.analysis import ProfiledSteps
from holdfast.profiling.merge import RankTrace, ahead_us, collective_ends
from holdfast.profiling.trace import read

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


def rank_trace(rank: int, events: list[dict[str, Any]]) -> RankTrace:
    trace = read(json.dumps({"traceEvents": events}).encode())
    steps = ProfiledSteps(1, [0, 100_000_000, 200_000_000])
    return RankTrace(rank, "", 0, f"m{rank}", steps, collective_ends(trace, steps))


def event(cat: str, name: str, end: float, group: str = "[0, 1]") -> dict[str, Any]:
    args = {"Process Group Ranks": group} if cat == "kernel" else {}
    return {"ph": "X", "cat": cat, "name": name, "ts": end - 50, "dur": 50, "args": args}


SUM = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def on_gpu(late_us: float, host_late_us: float, group: str = "[0, 1]") -> list[dict[str, Any]]:
    """Four all-reduces a step, queued by a host that may be late; one point-to-point kernel."""
    found = [event("kernel", "ncclDevKernel_SendRecv(x)", 80_000 + 5 * late_us)]
    for at in (*range(1000, 1800, 200), *range(101_000, 101_800, 200)):
        found.append(event("cpu_op", "c10d::allreduce_", at + host_late_us))
        found.append(event("user_annotation", "nccl:all_reduce", at + host_late_us))
        found.append(event("kernel", SUM, at + 45_000 + late_us, group))
    return found


def test_a_host_that_is_late_is_no_clock_that_is_wrong() -> None:
    known = [rank_trace(0, on_gpu(0, 0)), rank_trace(1, on_gpu(0, 40_000))]
    assert ahead_us(known) == [0, 0]
    assert ahead_us([known[0], rank_trace(1, on_gpu(9000, 0))]) == [0, 9000]


def test_collectives_of_another_group_and_calls_that_queue_them_tell_of_no_clock() -> None:
    known = [rank_trace(0, on_gpu(0, 0)), rank_trace(1, on_gpu(9000, 0, "[2, 3]"))]
    assert ahead_us(known) == [0, 0]
    host = [[event("cpu_op", "c10d::allreduce_", 900 + late)] for late in (0, 9000)]
    assert ahead_us([rank_trace(rank, one) for rank, one in enumerate(host)]) == [0, 0]
    gloo = [[event("user_annotation", "gloo:all_reduce", 900 + late)] for late in (0, 9000)]
    assert ahead_us([rank_trace(rank, one) for rank, one in enumerate(gloo)]) == [0, 9000]


def test_collectives_that_end_too_unlike_move_nothing() -> None:
    even = [event("kernel", SUM, at) for at in (1000, 2000, 3000, 4000, 5000)]
    late = (0.0, 1000.0, 3000.0, 5000.0, 9000.0)
    odd = [{**one, "ts": one["ts"] + by} for one, by in zip(even, late, strict=True)]
    assert ahead_us([rank_trace(0, even), rank_trace(1, odd)]) == [0, 0]


@pytest.mark.parametrize(
    "damaged", [b"none", b"\x1f\x8b\x08", gzip.compress(bytes(99))[:-9], gzip.compress(b"\xff{")]
)
def test_a_trace_that_is_damaged_is_told_of_and_leaves_no_file(
    tmp_path: Path, damaged: bytes
) -> None:
    one = leave(tmp_path, 0, "a", 0, 0)
    (tmp_path / one.trace).write_bytes(damaged)
    with pytest.raises((OSError, ValueError)):
        merged(tmp_path, [one], str, tmp_path / "all.json.gz")
    assert [path.name for path in tmp_path.iterdir()] == [one.trace]
