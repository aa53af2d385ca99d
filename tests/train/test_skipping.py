"""The same batches are left out whatever is restored, and no others."""

import json
from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Error
from holdfast.train.loop import LoopPosition
from holdfast.train.skipping import ALLOWED, SKIPS, SkippedBatches, require_loader

STEPS = 30
SPANS = st.lists(
    st.tuples(st.integers(0, 25), st.integers(1, 6)).map(lambda s: (s[0], s[0] + s[1])), max_size=4
)


def expected(spans: list[tuple[int, int]]) -> list[int]:
    """The numbers of the batches of all steps."""
    wanted = (n for n in count() if not any(first <= n < end for first, end in spans))
    return list(islice(wanted, STEPS))


@given(SPANS, st.lists(st.tuples(st.integers(1, 12), st.integers(1, 5)), max_size=6))
def test_any_sequence_of_restarts_trains_on_all_batches_but_those(
    spans: list[tuple[int, int]], lives: list[tuple[int, int]]
) -> None:
    """Each attempt does some steps, with a snapshot after every few; the next goes on from it."""
    env = {SKIPS: json.dumps(spans)}
    trained: list[int] = []
    kept: dict[str, int] = {}
    saved = 0
    for steps, every in [*lives, (STEPS, 1)]:
        loop = LoopPosition()
        loop.restored(kept, elsewhere=False)
        del trained[saved:]
        batches, skipped = iter(count(saved + loop.skipped)), SkippedBatches(loop, env)
        for _ in range(min(steps, STEPS - saved)):
            trained.append(skipped.take(batches, len(trained)))
            if len(trained) % every == 0:
                kept, saved = loop.kept(), len(trained)
    assert trained == expected(spans)


def test_without_a_loader_nothing_can_be_left_out_and_that_is_said_before_the_first_step() -> None:
    require_loader(None, {ALLOWED: "0"})
    require_loader([], {ALLOWED: "3"})
    with pytest.raises(Error, match="has no loader") as raised:
        require_loader(None, {ALLOWED: "3"})
    assert raised.value.slug == "loader-missing"
