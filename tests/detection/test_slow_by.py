"""What explains that a rank is late."""

import pytest

from holdfast.detection.samples import Doing
from holdfast.detection.slow_by import explain
from holdfast.slow_ranks import SlowBy


@pytest.mark.parametrize(
    ("own", "cause", "text"),
    [
        (Doing(input_s=2.0), SlowBy.INPUT, "waits longer for its input (100% of the delay)"),
        (Doing(starved_s=1.4), SlowBy.PROCESSOR, "waits for a processor"),
        (Doing(saves_s=1.9), SlowBy.SAVES, "copies its state"),
        (Doing(garbage_s=1.2), SlowBy.GARBAGE, "collects garbage for longer (60% of the delay)"),
        (Doing(tokens=1200), SlowBy.WORK, "1.20 times the tokens"),
        (Doing(processor_s=2.0, tokens=1000), SlowBy.ITSELF, "computes longer"),
        (Doing(tokens=1000), SlowBy.ITSELF, "neither its input nor its processor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_slow_rank_does_is_compared_with_what_the_others_do(
    own: Doing, cause: SlowBy, text: str
) -> None:
    usual = Doing(tokens=1000) if own.tokens else Doing()
    found, told = explain(1, 2.0, {}, {0: usual, 1: own, 2: usual})
    assert found is cause and text in told


@pytest.mark.parametrize(
    ("before", "now", "told", "cause"),
    [
        (Doing(), Doing(input_s=0.8), SlowBy.INPUT, SlowBy.INPUT),
        (Doing(), Doing(input_s=0.8), None, SlowBy.ITSELF),
        (Doing(), Doing(input_s=0.5), SlowBy.INPUT, SlowBy.ITSELF),
        (Doing(), Doing(input_s=1.0, starved_s=0.9), SlowBy.PROCESSOR, SlowBy.PROCESSOR),
        (Doing(), Doing(input_s=1.0, starved_s=0.5), SlowBy.PROCESSOR, SlowBy.INPUT),
        (Doing(input_s=9.0), Doing(input_s=9.1, processor_s=3.0), SlowBy.INPUT, SlowBy.ITSELF),
    ],
)
def test_what_was_told_stays_told_until_it_explains_less_than_a_good_part(
    before: Doing, now: Doing, told: SlowBy | None, cause: SlowBy
) -> None:
    found, _ = explain(1, 2.0, {0: before, 1: before}, {0: before, 1: now}, told)
    assert found is cause
