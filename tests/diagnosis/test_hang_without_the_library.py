"""How long a step of a script that reports none may take is known where the job file says it."""

import pytest

from holdfast.diagnosis.hang import judge
from holdfast.events import HangJudged, HangSuspected, Judgement, Progress
from holdfast.messages import WorkerReport
from holdfast.stacks import StackGroup
from tests.diagnosis.test_hang import COMPILES, LOADER, SLEEP, TIMEOUT_S, ranks, stands

DONE = 25  # steps, when it was suspected


def judged(groups: tuple[StackGroup, ...], done: int, *, prints: bool) -> HangJudged:
    """Both ranks have `done` as many steps now."""
    pages = {
        rank: WorkerReport(
            rank=rank, pid=1, progress=Progress(), milestones={}, phase="step",
            optimizer_steps=0 if prints else done, printed_step=done if prints else 3,
        )
        for rank in (0, 1)
    }  # fmt: skip
    suspicion = HangSuspected(
        attempt=1, ago_s=5.8, budget_s=5.0, step=None, counted=DONE, step_s=0.05,
        trained=True, reported=False, overdue=True, ranks=(),
    )  # fmt: skip
    return judge(suspicion, groups, (), pages, TIMEOUT_S)


WAITS, LOOPS = stands(0), stands(1, at=SLEEP, does="busy")


@pytest.mark.parametrize("prints", [False, True])
@pytest.mark.parametrize(
    ("groups", "named"),
    [
        ((LOOPS, WAITS), [1]),
        ((stands(0, 1, at=SLEEP, does="moves"),), []),
        ((stands(0, 1, at=LOADER),), []),
    ],
)
def test_who_takes_longer_hangs_whatever_it_does(
    groups: tuple[StackGroup, ...], named: list[int], prints: bool
) -> None:
    found = judged(groups, DONE, prints=prints)
    assert found.judgement is Judgement.HANG and ranks(found) == named


@pytest.mark.parametrize("prints", [False, True])
@pytest.mark.parametrize("done", [DONE + 1, 1])
def test_but_who_has_gone_on_meanwhile_also_to_another_epoch(done: int, prints: bool) -> None:
    assert judged((LOOPS, WAITS), done, prints=prints).judgement is Judgement.SLOW


def test_and_who_compiles() -> None:
    compiles = stands(1, at=COMPILES, does="moves")
    assert judged((compiles, WAITS), DONE, prints=False).judgement is Judgement.SLOW
