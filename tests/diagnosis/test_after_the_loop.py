"""Scripts that go on after their loops: who hangs there, and who is left alone."""

import pytest

from holdfast.diagnosis.hang import judge_after_loop
from holdfast.events import HangJudged, HangSuspected, Judgement
from holdfast.stacks import StackGroup
from tests.diagnosis.test_hang import ALL_REDUCE, JOINS, SCRIPT, THREAD, ranks, stands

CLOSES = (SCRIPT, "destroy_process_group (torch/distributed/distributed_c10d.py:2190)")
BELOW = (*CLOSES, "_shutdown_backend (torch/distributed/distributed_c10d.py:2110)")


def judged_behind(
    *groups: StackGroup, missing: tuple[str, ...] = (), long: bool = True
) -> HangJudged:
    suspicion = HangSuspected(
        attempt=4, ago_s=3600.0, budget_s=120.0, step=100, step_s=0.0, trained=True, ranks=(),
    )  # fmt: skip
    return judge_after_loop(suspicion, groups, missing, long=long)


@pytest.mark.parametrize("does", ["still", "background", "busy"])
@pytest.mark.parametrize("at", [CLOSES, BELOW])
def test_who_destroys_its_group_with_all_that_are_left_and_comes_no_further_hangs(
    at: tuple[str, ...], does: str
) -> None:
    found = judged_behind(stands(0, 2, at=at, does=does))
    assert found.judgement is Judgement.HANG and found.ended
    assert found.summary == (
        f"Ranks 0, 2 hung after step 100: in {at[-1]}, called by {SCRIPT}, after the training loop"
    )
    assert len(found.evidence) == 1 and "destroy_process_group" in found.evidence[0]
    assert ranks(found) == [], "nobody's node is at fault"


@pytest.mark.parametrize(
    "groups",
    [
        (stands(0, at=("upload (train.py:4)", "send (socket.py:9)")), stands(1, at=CLOSES)),
        (stands(0, at=("export (train.py:4)",), does="moves"), stands(1, at=CLOSES)),
        (stands(0, 1, at=("<module> (train.py:9)", "sleep (train.py:4)")),),
        (stands(0, 1, at=ALL_REDUCE),),  # of an evaluation by all ranks
        (stands(0, 1, at=(*CLOSES, "on_close (train.py:3)")),),
        (stands(0, 1, at=CLOSES, beside=(*THREAD, "send (ssl.py:1180)")),),
        (stands(0, 1, at=CLOSES, beside=THREAD, does="background"),),
        (stands(0, at=CLOSES), stands(1, at=JOINS)),
        (stands(0, 1, at=()),),
    ],
)
def test_whatever_else_is_done_behind_the_loop_is_left_alone(
    groups: tuple[StackGroup, ...],
) -> None:
    found = judged_behind(*groups)
    assert found.judgement is Judgement.SLOW and not found.ended
    assert found.summary.startswith("After the training loop for 3600 s: rank ")


def test_so_is_who_has_only_begun_to_destroy_its_group_or_was_not_seen_or_is_debugged() -> None:
    closes = stands(0, at=CLOSES)
    assert judged_behind(closes, long=False).judgement is Judgement.SLOW
    assert judged_behind(closes, missing=("node-1",)).judgement is Judgement.UNKNOWN
    gone = stands(1, at=(), why="the process has ended")
    assert judged_behind(closes, gone).judgement is Judgement.UNKNOWN
    stopped = stands(0, at=CLOSES, state="stopped")
    assert judged_behind(stopped).judgement is Judgement.PAUSED
