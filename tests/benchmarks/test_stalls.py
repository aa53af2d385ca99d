"""The overhead benchmark counts whole steps and what lies between their own work."""

import pytest

from stalls import WARM_UP, Times, lengths, row
from steady import taking_turns


def block(turns: int, turn: int = 8, **step_s: float) -> Times:
    """Loops that take turns; 10 ms of each step are its own work, and the warm-up is slow."""
    times, now = [], 0.0
    done = dict.fromkeys(step_s, 0)
    for _ in range(turns):
        for name, length_s in step_s.items():
            for _ in range(turn):
                times.append((name, now, now + 0.01))
                now += length_s * (10 if done[name] < WARM_UP else 1)
                done[name] += 1
    return times


def test_step_reaches_to_the_beginning_of_the_next_of_its_loop() -> None:
    found = lengths(block(4, plain=0.05, holdfast=0.06), "holdfast")
    assert len(found) == 2 * 7
    assert [step.step_s for step in found] == pytest.approx([0.06] * 14)
    assert [step.between_s for step in found] == pytest.approx([0.05] * 14)


def test_overhead_is_the_excess_over_the_bare_loop_of_the_same_process() -> None:
    blocks = [block(4, plain=s, holdfast=s * 1.01) for s in (0.050, 0.100, 0.075)]
    assert row(blocks, "holdfast", 0.004)["overhead"] == pytest.approx(0.01, abs=1e-4)
    assert row(blocks, "holdfast", 0.004)["overhead_mean"] == pytest.approx(0.01, abs=1e-4)
    assert row(blocks, "holdfast", 0.004)["agent_cpu"] == 0.004


def test_overhead_is_not_moved_by_one_bad_block() -> None:
    blocks = [block(4, plain=0.05, holdfast=0.05 * x) for x in (1.001, 1.002, 3.0)]
    assert row(blocks, "holdfast", None)["overhead"] == pytest.approx(0.002, abs=1e-4)


def test_bare_loop_alone_has_no_overhead() -> None:
    found = row([block(6, plain=0.05)], "plain", None)
    assert found["overhead"] == 0.0
    assert found["n"] == 6 * 8 - WARM_UP - 1


@pytest.mark.parametrize("turn", [2, 3])
def test_loops_take_turns_until_all_are_at_their_end(turn: int) -> None:
    loops = {name: (lambda _loss: None for _ in range(4)) for name in "ab"}
    order = "".join(name for name, _ in taking_turns(loops, turn))
    assert order == {2: "aabbaabb", 3: "aaabbbab"}[turn]
    assert [next(loop, None) for loop in loops.values()] == [None, None]
