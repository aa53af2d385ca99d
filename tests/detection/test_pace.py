"""Steps that have become slow are told once, and neither noise nor a pause is taken for that."""

import random
from collections.abc import Callable

import pytest

from holdfast.detection.pace import BLOCK_S, PaceWatch
from holdfast.events import Progress
from holdfast.messages import Report, WorkerReport
from holdfast.profiles import StepsSlowed


class Run:
    """Rank 0 of a job that reports once a second; a step takes a second too."""

    def __init__(self, share: float = 0.2) -> None:
        self.watch, self.now, self.step, self.tokens = PaceWatch(share), 0.0, 0, 0

    def go(
        self,
        blocks: float,
        step_s: Callable[[], float] = lambda: 1.0,
        *,
        tokens: int = 0,
        attempt: int = 1,
        section: str = "",
    ) -> list[StepsSlowed]:
        found = []
        for _ in range(int(blocks * BLOCK_S)):
            self.now, self.step, self.tokens = self.now + 1, self.step + 1, self.tokens + tokens
            page = WorkerReport(
                rank=0,
                pid=1,
                progress=Progress(step=self.step),
                milestones={},
                step_time_s=step_s(),
                tokens=self.tokens,
                section=section,
            )
            found += self.watch.observe(
                Report(node="a", attempt=attempt, workers=(page,)), self.now
            )
        return found


@pytest.mark.parametrize("seed", range(5))
def test_steps_that_become_slower_are_told_once_within_three_blocks(seed: int) -> None:
    dice, run = random.Random(seed), Run()
    assert run.go(4, lambda: dice.gauss(1.0, 0.1)) == []
    [told] = run.go(3.1, lambda: dice.gauss(1.5, 0.1))
    assert told.slower == pytest.approx(0.5, abs=0.1)
    assert [told.step_s, told.usual_s] == pytest.approx([1.5, 1.0], rel=0.1)
    assert run.go(9, lambda: 4.0) == []
    assert run.go(1, lambda: 1.0, attempt=2) == [] and len(run.go(4, lambda: 2.0, attempt=2)) == 1


def test_a_pause_noise_and_a_slow_start_are_no_decline() -> None:
    dice, run = random.Random(1), Run()
    assert run.go(2, lambda: 9.0) == [], "it compiles"
    assert run.go(6, lambda: dice.choice([0.9, 1.0, 1.1, 1.0, 30.0])) == []
    assert run.go(1, lambda: 5.0) == [], "one block"
    assert run.go(3) == [] and run.go(5, lambda: 8.0, section="eval") == []
    assert run.go(5, lambda: 1.15) == []


def test_where_tokens_are_logged_longer_steps_with_more_of_them_are_none() -> None:
    run = Run()
    assert run.go(3, tokens=100) == [] and run.go(5, lambda: 2.0, tokens=200) == []
    assert len(run.go(5, lambda: 2.0, tokens=100)) == 1


def test_it_is_off_unless_a_share_is_given_and_old_attempts_do_not_count() -> None:
    run = Run(share=0.0)
    assert run.go(3) == run.go(5, lambda: 9.0) == []
    later = Run()
    later.go(2, attempt=3)
    assert later.go(9, lambda: 9.0, attempt=2) == []
