"""Runs of ranks hold the same ranks, and a group of a mesh in a few numbers."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collectives import Collective, GroupLog
from holdfast.rank_runs import count_in, each_in, in_runs

WORKERS, NODES = 8, 12_500


@given(st.sets(st.integers(0, 200)) | st.builds(range, st.just(3), st.just(99), st.integers(1, 40)))
def test_what_is_read_is_what_was_told(ranks: set[int] | range) -> None:
    runs = in_runs(sorted(ranks, reverse=True))
    assert [*each_in(runs)] == sorted(ranks)
    assert count_in(runs) == len(ranks)
    assert len(runs) <= (len(ranks) + 1) // 2


@pytest.mark.parametrize(
    ("ranks", "runs"),
    [
        ([], ()),
        ([5], ((5, 6, 1),)),
        ([0, 1, 2, 3], ((0, 4, 1),)),
        ([0, 8, 16, 24], ((0, 25, 8),)),
        ([0, 1, 2, 10, 20, 30], ((0, 3, 1), (10, 31, 10))),
    ],
)
def test_a_run_goes_on_as_long_as_its_step_is_the_same(
    ranks: list[int], runs: tuple[tuple[int, int, int], ...]
) -> None:
    assert in_runs(ranks) == runs


@pytest.mark.parametrize("members", [range(3, WORKERS * NODES, WORKERS), range(WORKERS * NODES)])
def test_a_group_of_a_large_job_is_told_in_a_hundred_bytes(members: range) -> None:
    log = GroupLog(name="dp", members=in_runs(members), recent=(Collective(7, 10**15, True),))
    told = msgspec.msgpack.encode(log)
    assert len(told) < 100
    assert [*each_in(msgspec.msgpack.decode(told, type=GroupLog).members)] == [*members]


def test_a_step_that_leads_nowhere_is_no_run() -> None:
    told = msgspec.msgpack.encode({"name": "dp", "members": [[0, 8, 0]]})
    with pytest.raises(msgspec.ValidationError, match=">= 1"):
        msgspec.msgpack.decode(told, type=GroupLog)
