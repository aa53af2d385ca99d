"""Which step takes which batch, and what the referee says of those that are left out."""

import itertools
import json
from random import Random

import msgspec
import pytest

from holdfast.actions import Entry, StartAttempt
from holdfast.checkpoint.key import Key
from holdfast.events import AttemptStopped, Broken, NumbersBroke, Quantity, Store
from holdfast.simulation.hardship import draw
from holdfast.simulation.left_out import FairSkips, LeftOut, Spans
from holdfast.simulation.world import World
from holdfast.train.loop import LoopPosition
from holdfast.train.skipping import SKIPS, SkippedBatches

STORE = Store("10.0.0.1", 1, True)


def taken(base: int, skipped: int, spans: Spans, steps: int) -> list[int]:
    """The batches that a worker takes for its next steps."""
    loop = LoopPosition()
    loop.skipped = skipped
    given = itertools.count(base + skipped)
    batches = SkippedBatches(loop, {SKIPS: json.dumps(spans)})
    return [batches.take(given, base + step) for step in range(steps)]


@pytest.mark.parametrize("seed", range(25))
def test_each_step_takes_the_batch_that_a_worker_takes(seed: int) -> None:
    dice = Random(seed)
    cuts = sorted(dice.sample(range(40), 6))
    spans, poison = [*zip(cuts[::2], cuts[1::2], strict=True)] if seed % 4 else [], range(120)
    loaders = LeftOut(poison)
    loaders.begin(1, None, spans)
    steps = dice.randrange(1, 20)
    first = taken(0, 0, spans, steps)
    assert [loaders.given(1, step + 1) - 1 for step in range(steps)] == first
    key = Key(1, steps)
    more = [*spans, (41, 45)]
    loaders.begin(2, key, more)
    skipped = loaders.skipped(2)
    again = taken(steps, skipped, more, 20)
    assert skipped == first[-1] + 1 - steps
    assert [loaders.given(2, steps + step + 1) - 1 for step in range(20)] == again
    assert loaders.bad_steps(2)[:20] == [*range(steps + 1, steps + 21)], "all are bad"
    one = LeftOut([again[dice.randrange(20)]])
    one.begin(1, None, spans)
    one.begin(2, key, more)
    assert one.bad_steps(2) == [steps + 1 + again.index(one._poison[0])]


def start(attempt: int, *skips: tuple[int, int]) -> Entry:
    order = StartAttempt(
        attempt=attempt, node_count=1, workers_per_node=1, store=STORE, redo_until=0,
        restarts=0, skips=skips, reason="",
    )  # fmt: skip
    return Entry(2, 0.0, AttemptStopped(attempt=attempt - 1, store=STORE), (order,))


def watching(limit: int, bad_step: int | None) -> FairSkips:
    """After an attempt that had bad numbers at this step."""
    loaders = LeftOut(())
    loaders.begin(1, None, ())
    referee = FairSkips(loaders, limit)
    assert not referee.journaled(start(1))
    if bad_step is not None:
        broke = Broken(step=bad_step, what=Quantity.LOSS, value="nan")
        assert not referee.journaled(
            Entry(1, 0.0, NumbersBroke(attempt=1, rank=0, broke=broke), ())
        )
    return referee


def test_what_is_left_out_ends_with_the_batch_of_a_bad_step() -> None:
    assert not watching(9, 12).journaled(start(2, (9, 12)))
    assert "bad were those before [12]" in watching(9, 12).journaled(start(2, (9, 13)))
    assert not watching(9, None).journaled(start(2, (9, 13))), "something else may have failed"


def test_no_more_is_left_out_than_may_be() -> None:
    referee = watching(3, 12)
    exhausted = [referee.exhausted, bool(referee.journaled(start(2, (9, 12)))), referee.exhausted]
    assert exhausted == [False, False, True]
    assert "and 3 batches may be" in watching(3, 12).journaled(start(2, (8, 12)))


@pytest.mark.parametrize("may", [0, 3])
def test_a_job_gets_past_a_batch_of_no_use_if_it_may_leave_it_out(may: int) -> None:
    drawn = draw(0, hours=4.0, nodes=4)
    calm = msgspec.structs.replace(
        drawn, limits=msgspec.structs.replace(drawn.limits, max_restarts=1000, skip_batches=may),
        rates={}, shares={}, instrumented=True, poison=(40, 90), check_every=0, cluster=False,
        total_steps=0, user_error_step=0, early_end_step=0, stop_after_h=0.0,
    )  # fmt: skip
    world = World(calm)
    world.run()
    orders = [action for text in world.book.texts()[1:] for action in json.loads(text)["actions"]]
    left_out = [one["skips"] for one in orders if one["type"] == "StartAttempt" and one["skips"]]
    ends = [one["outcome"] for one in orders if one["type"] == "EndJob"]
    if may:
        assert left_out and {41, 91} == {end for spans in left_out for _, end in spans}
    assert (ends[0] == "failed") == (not may)
