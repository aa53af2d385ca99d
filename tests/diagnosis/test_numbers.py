"""Which rank was the first whose numbers were not finite, if anybody can know."""

from holdfast.diagnosis.numbers import first_broken
from holdfast.diagnosis.verdict import weigh
from holdfast.events import Broken, Progress, Quantity, WorkerExited
from holdfast.messages import WorkerReport

NAN = float("nan")


def page(
    rank: int, step: int = 0, what: Quantity = Quantity.LOSS, loss: float | None = 1.0
) -> WorkerReport:
    """What a rank has noticed; nothing with step 0."""
    broke = Broken(step=step, what=what, value="nan") if step else None
    return WorkerReport(
        rank=rank, pid=1, progress=Progress(step=9), milestones={}, loss=loss, broke=broke
    )


def of(*pages: WorkerReport) -> dict[int, WorkerReport]:
    return {page.rank: page for page in pages}


def test_who_is_alone_with_the_earliest_step_is_to_blame() -> None:
    found = first_broken(of(page(0, 8), page(1, 7), page(2, 8), page(3)))
    assert found == (7, 1, "The loss of rank 1 was nan at step 7.")


def test_ranks_that_broke_in_the_same_step_are_named_and_nobody_is_blamed() -> None:
    found = first_broken(of(page(0, 7), page(1, 7), page(2, 7), page(5, 7), page(6)))
    assert found == (7, None, "The loss was nan at step 7 (ranks 0-2, 5).")


def test_who_logs_for_all_is_not_to_blame() -> None:
    found = first_broken(of(page(0, 7), page(1, loss=None), page(2, loss=None)))
    assert found == (7, None, "The loss was nan at step 7 (rank 0).")


def test_a_gradient_norm_is_that_of_all() -> None:
    found = first_broken(of(page(0, 7, Quantity.GRAD_NORM), page(1)))
    assert found == (7, None, "The gradient norm was nan at step 7 (rank 0).")


def test_a_single_rank_is_the_one() -> None:
    found = first_broken(of(page(0, 7)))
    assert found == (7, 0, "The loss of rank 0 was nan at step 7.")


def test_without_bad_numbers_there_is_nobody() -> None:
    assert first_broken(of(page(0), page(1))) is None
    assert weigh((), of(page(0))).cause == "node-lost"


def test_a_verdict_without_a_failed_worker_is_about_the_numbers() -> None:
    done = WorkerExited(
        node="n", attempt=1, rank=0, exit_code=0, progress=Progress(step=9, finished=True)
    )
    for exits in ((), (done,)):
        verdict = weigh(exits, of(page(0), page(1, 7)))
        assert (verdict.cause, verdict.rank, verdict.step) == ("nan", 1, 7)


def test_a_worker_that_failed_explains_more_than_its_numbers() -> None:
    killed = WorkerExited(node="n", attempt=1, rank=0, exit_code=None, signal=9)
    assert weigh((killed,), of(page(0), page(1, 7))).cause == "worker-killed"
