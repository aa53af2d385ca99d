"""The earliest of each kind stands for all of them: the verdict is that of all exits."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.diagnosis import Kinds, weigh
from holdfast.diagnosis.kinds import kind_of
from holdfast.events import Ranks, WorkerExited, in_rows
from holdfast.messages import WorkerReport
from tests.diagnosis.test_verdict import BARRIER, CASES, exited, page, raised, recorded
from tests.more import examples

HOWS = [*(one for _, one in CASES), exited(error=recorded(BARRIER)), exited(code=0, step=9)]
AGES = st.integers(0, 64).map(lambda n: n / 64)
LOOKS = st.sampled_from([(17, "step")]), st.tuples(st.integers(15, 17), st.just("data"))
PAGES = st.one_of(*(st.dictionaries(st.integers(0, 50), look, max_size=60) for look in LOOKS))
EXITS = st.lists(st.sampled_from(HOWS), min_size=1, max_size=4).flatmap(
    lambda few: st.lists(st.tuples(st.sampled_from(few), AGES), min_size=1, max_size=40)
)


def grouped(exits: list[WorkerExited]) -> tuple[list[WorkerExited], dict[int, Ranks]]:
    kinds, groups = Kinds(), dict[str, list[WorkerExited]]()
    for one in exits:
        groups.setdefault(kinds.of(one), []).append(one)
    samples = [min(group, key=lambda e: (-e.ago_s, e.rank)) for group in groups.values()]
    ranks = [[e.rank for e in group] for group in groups.values()]
    pairs = zip(samples, ranks, strict=True)
    return samples, {one.rank: in_rows(r for r in of if r != one.rank) for one, of in pairs}


@settings(max_examples=examples(500), deadline=None)
@given(how=EXITS, looks=PAGES)
def test_a_verdict_on_the_earliest_of_each_kind_is_the_verdict_on_all(
    how: list[tuple[WorkerExited, float]], looks: dict[int, tuple[int, str]]
) -> None:
    exits = [
        msgspec.structs.replace(one, rank=rank, node=f"n{rank}", ago_s=ago_s)
        for rank, (one, ago_s) in enumerate(how)
    ]
    pages: dict[int, WorkerReport] = {r: page(r, *look) for r, look in looks.items()}
    samples, others = grouped(exits)
    assert weigh(samples, pages, others) == weigh(exits, pages)


ADDRESSES = (
    "Connection closed by peer [10.0.0.{0}]:4{0}007",
    "[Rank {0}] Watchdog caught collective operation timeout: ran for 18054{0}7 milliseconds",
    "[Errno 5] Input/output error: '/data/shard-0x7f{0}a'",
    "HTTP Error 503: server {0}000001 is busy",
)


@pytest.mark.parametrize("message", ADDRESSES)
def test_addresses_ranks_and_large_numbers_make_no_kinds(message: str) -> None:
    kinds = Kinds()
    found = {kinds.of(exited(r, error=raised("RuntimeError", message.format(r)))) for r in range(9)}
    assert len(found) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (raised("OSError", "[Errno 5] x"), raised("OSError", "[Errno 17] x")),
        (raised("requests.HTTPError", "404 no"), raised("requests.HTTPError", "503 no")),
        (raised("ValueError", "bad"), raised("ValueError", "bad", file="/home/me/other.py")),
        (
            raised("RuntimeError", "Rank 3 failed to pass monitoredBarrier in 4000 ms"),
            raised("RuntimeError", "Rank 5 failed to pass monitoredBarrier in 4000 ms"),
        ),
    ],
)
def test_numbers_that_decide_make_kinds(one: object, other: object) -> None:
    kinds = Kinds()
    assert kinds.of(exited(error=one)) != kinds.of(exited(error=other))  # type: ignore[arg-type]


@given(st.lists(st.sampled_from(HOWS), max_size=60))
def test_what_is_looked_up_is_what_is_found(exits: list[WorkerExited]) -> None:
    kinds = Kinds()
    assert [kinds.of(one) for one in exits] == [kind_of(one) for one in exits]
