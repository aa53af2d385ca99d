"""What explains that a rank comes late: what it did meanwhile, against what the others did.

Waiting for input or for a processor, copies of the state and pauses of Python's garbage collector
are counted in seconds, and explain a delay if their surplus is half of it; more tokens than others
have explain it next. Only then it is the rank itself: its work, or its machine. What was told
stays told until it explains less than a good part, so that the story does not change with the wind.
"""

from collections.abc import Mapping

from holdfast.detection.samples import Doing, median_low
from holdfast.slow_ranks import SlowBy

EXPLAINS, STILL_EXPLAINS = 0.5, 0.3  # of the delay, by one thing
MORE_TOKENS, STILL_MORE = 0.08, 0.04  # than the others have


def explain(
    rank: int,
    delay_s: float,
    before: Mapping[int, Doing],
    after: Mapping[int, Doing],
    told: SlowBy | None = None,
) -> tuple[SlowBy, str]:
    """Why this rank has come `delay_s` later in sum, by what it did and others did meanwhile;
    `told` is what explained it so far."""
    did = {r: _since(before.get(r), now) for r, now in after.items()}
    own = did.pop(rank, None)
    if own is None or not did or delay_s <= 0:
        return told or SlowBy.ITSELF, "the reason is unknown"
    usual = Doing(*(median_low(column) for column in zip(*did.values(), strict=True)))
    explained = (
        (SlowBy.INPUT, own.input_s - usual.input_s, "waits longer for its input"),
        (SlowBy.PROCESSOR, own.starved_s - usual.starved_s, "waits for a processor of its node"),
        (SlowBy.SAVES, own.saves_s - usual.saves_s, "copies its state for longer"),
        (SlowBy.GARBAGE, own.garbage_s - usual.garbage_s, "collects garbage for longer"),
    )
    for cause, more_s, text in sorted(explained, key=lambda one: (one[0] is told, one[1]))[::-1]:
        if more_s >= (STILL_EXPLAINS if cause is told else EXPLAINS) * delay_s:
            return cause, f"it {text} ({more_s / delay_s:.0%} of the delay)"
    least = STILL_MORE if told is SlowBy.WORK else MORE_TOKENS
    if usual.tokens > 0 and own.tokens / usual.tokens - 1 >= least:
        return SlowBy.WORK, f"it has {own.tokens / usual.tokens:.2f} times the tokens of the others"
    if own.processor_s - usual.processor_s >= EXPLAINS * delay_s:
        return SlowBy.ITSELF, "it computes longer than the others: its work, or its machine"
    return SlowBy.ITSELF, "neither its input nor its processor explains it"


def only_waits(
    rank: int, delay_s: float, before: Mapping[int, Doing], after: Mapping[int, Doing]
) -> bool | None:
    """Whether a rank of a pipeline computes no longer in its stage than its like: it comes late
    because another stage of its own pipeline does. None: unknown. `after` is of its like."""
    did = {r: _since(before.get(r), now) for r, now in after.items()}
    each_s = {r: one.stage_s / one.steps for r, one in did.items() if one.steps and one.stage_s}
    own_s = each_s.pop(rank, None)
    if own_s is None or not each_s:
        return None
    more_s = (own_s - median_low([*each_s.values()])) * did[rank].steps
    return more_s < STILL_EXPLAINS * delay_s


def _since(before: Doing | None, now: Doing) -> Doing:
    return Doing(*(b - a for a, b in zip(before or Doing(), now, strict=True)))
