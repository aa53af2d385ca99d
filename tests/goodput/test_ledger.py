"""The ledger adds up, and a worked example gives the numbers worked out by hand."""

import pytest

from holdfast.actions import AssignRank, Entry, Fence, Outcome
from holdfast.events import (
    Broken,
    ControllerResumed,
    DeadlinePassed,
    Diagnosed,
    HangJudged,
    HangSuspected,
    JobSubmitted,
    Judgement,
    Milestone,
    NodeLost,
    NodeLostReason,
    NodeReady,
    NumbersBroke,
    Progress,
    Quantity,
    StopRequested,
)
from holdfast.goodput import Bookkeeper, Bucket, ledger, to_goodput
from tests.goodput.journals import (
    START,
    STORE,
    Line,
    assign,
    bring_up,
    check,
    end,
    exited,
    heard,
    journal,
    nonzero,
    progressed,
    reached,
    start,
    stop,
    stopped,
)

SUSPECTED = HangSuspected(
    attempt=1,
    ago_s=9.0,
    budget_s=9.0,
    step=50,
    step_s=0.1,
    trained=True,
    reported=True,
    ranks=(),
)


def two_incidents() -> list[Entry]:
    """A worker is killed, later a node; each number below is worked out in the test."""
    return journal(
        heard(0.5, JobSubmitted()),
        heard(
            3.0, NodeReady(node="n0", store=STORE, instrumented=True), *assign("n0", "n1"), start(1)
        ),
        *bring_up(1, 4.0, caught_up=7.0),
        heard(7.1, progressed(1, 1, 0.1, 0.30, 0.0)),
        heard(12.0, progressed(1, 50, 0.05, 0.50, 0.20)),
        heard(
            20.10,
            exited(
                1,
                1,
                signal=9,
                ago_s=0.10,
                progress=Progress(step=130, step_ago_s=0.15, data_wait_s=0.8, snapshot_s=0.6),
            ),
            stop(1),
        ),
        heard(20.40, stopped(1)),
        heard(20.45, Diagnosed(attempt=1, cause="x", summary="x", confidence=1.0), start(2)),
        *bring_up(2, 21.0, caught_up=25.5),
        heard(25.5, progressed(2, 131, 0.0, 0.2, 0.1)),
        heard(30.0, progressed(2, 170, 0.0, 0.4, 0.1)),
        heard(
            40.0,
            NodeLost(node="n1", reason=NodeLostReason.SILENT, ago_s=5.0),
            Fence(node="n1", reason=""),
            stop(2),
        ),
        heard(
            40.2,
            stopped(2, Progress(step=180, step_ago_s=4.7)),
            AssignRank(node="n2", node_rank=1, reason=""),
            start(3),
        ),
        *bring_up(3, 41.0, caught_up=45.0),
        heard(60.0, reached(3, Milestone.FINISHED)),
        heard(60.5, exited(0, 3, code=0, progress=Progress(step=400, finished=True))),
        heard(61.0, exited(1, 3, code=0, progress=Progress(step=400, finished=True))),
        heard(61.4, NodeReady(node="n9", store=STORE), end()),
        heard(70.0, DeadlinePassed()),
    )


def test_two_incidents_are_billed_as_worked_out_by_hand() -> None:
    books = ledger(START, two_incidents(), None)
    check(books)
    assert nonzero(books.buckets) == {
        # 0 → 3.0 first start; 20.40 → 20.45 after n1 was the last to stop; none after 40.2
        "schedule": 3000 + 50,
        # order → arrived: 3 → 4, 20.45 → 21, 40.2 → 41
        "start": 1000 + 550 + 800,
        "rendezvous": 3000,
        "restore_memory": 3000,
        "first_step": 3000,
        # caught up → last completed step: 7 → 19.95, 25.5 → 35.5, 45 → 60; without the stalls
        "productive": 12950 + 10000 + 15000 - 500 - 600 - 200,
        # 0.30 were waited before step 1 was booked as new work: 0.8 − 0.3, 0.4 − 0.2
        "data_wait": 500 + 200,
        "checkpoint_stall": 600,
        # 19.95 → 20.00 cut short; redone 24 → 25.5 and 44 → 45
        "replay": 50 + 1500 + 1000,
        # killed 20.00, order 20.10; n1 silent since 35.0 but step 180 was done at 35.5
        "detect": 100 + 4500,
        # 20.10 → 20.40, 40.0 → 40.2, 61.0 → 61.4
        "teardown": 300 + 200 + 400,
        "other": 1000,
    }
    assert books.wall_s == 61.4


def test_a_bill_runs_from_the_fault_until_training_is_productive_again() -> None:
    books = ledger(START, two_incidents(), None)
    assert books.bill(1) == {
        "detect": 0.1,
        "teardown": 0.3,
        "schedule": 0.05,
        "start": 0.55,
        "rendezvous": 1.0,
        "restore_memory": 1.0,
        "first_step": 1.0,
        "replay": 1.5,
    }
    assert sum(books.bill(1).values()) == pytest.approx(25.5 - 20.0)
    assert sum(books.bill(2).values()) == pytest.approx(45.0 - 35.5)
    assert books.bill(3) == {}
    assert [books.bills[i].fault_ms - books.start_ms for i in (1, 2)] == [20000, 35500]
    assert all(bill.recovered for bill in books.bills.values())


def test_the_ledger_of_a_live_job_adds_up_at_every_moment() -> None:
    entries = two_incidents()
    bookkeeper = Bookkeeper(START)
    for entry in entries:
        bookkeeper.add(entry)
        for later in (0.0, 0.123, 1e4):
            check(bookkeeper.at(entry.at + later))
    assert bookkeeper.at(None) == ledger(START, entries, None)
    assert bookkeeper.at(START + 1e6).wall_s == 61.4  # the end is the end


def test_looking_at_a_live_ledger_does_not_change_it() -> None:
    watched, alone = Bookkeeper(START), Bookkeeper(START)
    for entry in two_incidents():
        watched.add(entry)
        watched.at(entry.at + 3)
        alone.add(entry)
    assert watched.at(None) == alone.at(None)


def test_goodput_has_every_bucket_and_sums_to_the_wall_time() -> None:
    goodput = to_goodput("gpt", ledger(START, two_incidents(), None))
    assert set(goodput.buckets) == {str(b) for b in Bucket}
    assert round(sum(goodput.buckets.values()), 3) == goodput.wall_s
    assert goodput.observed


def test_a_fault_while_starting_keeps_the_stages_it_was_in_and_opens_a_new_bill() -> None:
    books = ledger(
        START,
        journal(
            heard(1, JobSubmitted(), *assign("n0", "n1"), start(1)),
            heard(2, reached(1, Milestone.ARRIVED)),
            heard(4, exited(1, 1, signal=11, ago_s=0.5), stop(1)),
            heard(5, stopped(1), start(2)),
            heard(6, reached(2, Milestone.ARRIVED)),
            heard(7, reached(2, Milestone.JOINED)),
            heard(9, exited(0, 2, code=1, ago_s=1.0), stop(2)),
            heard(10, stopped(2), start(3)),
            *bring_up(3, 11.0, caught_up=14.0),
        ),
        START + 20,
    )
    check(books)
    assert books.bill(1) == {
        "detect": 0.5,
        "teardown": 1.0,
        "start": 1.0,
        "rendezvous": 1.0,
        "restore_memory": 1.0,
    }
    assert not books.bills[1].recovered
    assert books.bill(2) == {
        "detect": 1.0,
        "teardown": 1.0,
        "start": 1.0,
        "rendezvous": 1.0,
        "restore_memory": 1.0,
        "first_step": 1.0,
    }
    assert books.bills[2].recovered
    assert books.buckets[Bucket.PRODUCTIVE] == 6000


def test_a_long_step_that_a_fault_cuts_short_is_work_to_be_redone() -> None:
    books = ledger(
        START,
        journal(
            heard(0, JobSubmitted(), *assign("n0"), start(1, 1)),
            *bring_up(1, 0.0, caught_up=3.0),
            heard(20, progressed(1, 5, 4.0, 0.0, 0.0)),
            heard(22, exited(0, 1, signal=9), stop(1)),
        ),
        START + 22,
    )
    check(books)
    assert books.buckets[Bucket.PRODUCTIVE] == 13_000
    assert books.buckets[Bucket.REPLAY] == 6_000
    assert books.bill(1) == {}  # it was lost before the first evidence of the fault


def bad_steps() -> list[Entry]:
    """Progress up to second 20 was told, and booked with its stalls; the step that ended in second
    14 was already no number."""
    broke = Broken(step=5, what=Quantity.LOSS, value="nan", ago_s=8.0)
    return journal(
        heard(0, JobSubmitted(), *assign("n0"), start(1, 1)),
        *bring_up(1, 0.0, caught_up=4.0),
        heard(4, progressed(1, 1, 0.0, data=0.0, snap=0.0)),
        heard(20, progressed(1, 9, 0.0, data=3.2, snap=0.0)),
        heard(22, NumbersBroke(attempt=1, rank=0, broke=broke), stop(1)),
        heard(23, stopped(1)),
    )


def test_time_from_a_bad_step_on_is_billed_though_it_was_booked_as_productive() -> None:
    books = ledger(START, bad_steps(), START + 23)
    check(books)
    assert books.buckets[Bucket.PRODUCTIVE] + books.buckets[Bucket.DATA_WAIT] == 10_000
    assert books.buckets[Bucket.DATA_WAIT] == 2_000, "its share of the stalls"
    assert books.bill(1) == {"detect": 8.0, "teardown": 1.0}
    assert books.bills[1].fault_ms - books.start_ms == 14_000


def test_bad_numbers_that_stop_nothing_cost_nothing() -> None:
    broke = Broken(step=5, what=Quantity.LOSS, value="nan", ago_s=8.0)
    told = [heard(22, NumbersBroke(attempt=1, rank=0, broke=broke))]
    before = [
        heard(0, JobSubmitted(), *assign("n0"), start(1, 1)),
        *bring_up(1, 0.0, caught_up=3.0),
    ]
    after = [heard(40, progressed(1, 30, 0.0, 0.0, 0.0))]
    books = ledger(START, journal(*before, *told, *after), START + 40)
    check(books)
    assert books.buckets == ledger(START, journal(*before, *after), START + 40).buckets


def test_a_worker_that_died_first_but_was_heard_last_dates_the_fault() -> None:
    books = ledger(
        START,
        journal(
            heard(0, JobSubmitted(), *assign("n0", "n1"), start(1)),
            *bring_up(1, 0.0, caught_up=3.0),
            heard(10.0, exited(0, 1, code=1, ago_s=0.01), stop(1)),
            heard(10.3, exited(1, 1, signal=9, ago_s=0.4)),
            heard(10.5, stopped(1)),
        ),
        START + 11,
    )
    check(books)
    assert books.buckets[Bucket.DETECT] == 100
    assert books.bills[1].fault_ms - books.start_ms == 9900


def test_a_script_without_the_library_is_productive_while_it_runs() -> None:
    entries = journal(
        heard(1, JobSubmitted(), *assign("n0"), start(1, 1)),
        heard(3, reached(1, Milestone.STARTED, 0.5)),
        heard(8, exited(0, 1, code=3), stop(1)),
        heard(9, stopped(1), start(2, 1)),
        heard(10, reached(2, Milestone.STARTED)),
        heard(20, exited(0, 2, code=0), end()),
    )
    books = ledger(START, entries, None)
    check(books)
    assert not books.observed
    assert nonzero(books.buckets) == {
        "schedule": 1000,
        "start": 1500 + 1000,
        "productive": 5500 + 10000,
        "teardown": 1000,
    }
    assert books.bill(1) == {"teardown": 1.0, "start": 1.0}
    assert ledger(START, entries[:2], START + 5).buckets[Bucket.PRODUCTIVE] == 2500


@pytest.mark.parametrize("spoke", [12.0, None, 90.0])
def test_a_script_without_the_library_starts_until_it_says_something(spoke: float | None) -> None:
    """And the incident pays for that, unless it says nothing for longer than a start takes."""
    said = [heard(spoke, reached(2, Milestone.OUTPUT))] if spoke is not None else []
    entries = journal(
        heard(1, JobSubmitted(), *assign("n0"), start(1, 1)),
        heard(2, reached(1, Milestone.STARTED)),
        heard(2.5, reached(1, Milestone.OUTPUT)),
        heard(8, exited(0, 1, code=3), stop(1)),
        heard(9, stopped(1), start(2, 1)),
        heard(10, reached(2, Milestone.STARTED)),
        *said,
        heard(100, exited(0, 2, code=0), end()),
    )
    books = ledger(START, entries, None)
    check(books)
    assert not books.observed
    start_s = 3.0 if spoke == 12.0 else 1.0
    assert books.bill(1) == {"teardown": 1.0, "start": start_s}
    assert books.buckets[Bucket.PRODUCTIVE] == 5500 + 91_000 - 1000 * start_s


@pytest.mark.parametrize(("stepped", "trains"), [(12.0, 12.0), (90.0, 90.0), (None, 610.0)])
def test_a_script_whose_steps_are_seen_starts_until_the_first_of_them(
    stepped: float | None, trains: float
) -> None:
    """Whatever it says before; and no longer than a controller waits for it."""
    said = [heard(stepped, reached(2, Milestone.STEPPED))] if stepped is not None else []
    entries = journal(
        heard(1, JobSubmitted(), *assign("n0"), start(1, 1)),
        heard(2, reached(1, Milestone.STARTED)),
        heard(2.5, reached(1, Milestone.OUTPUT)),
        heard(6, reached(1, Milestone.STEPPED)),
        heard(8, exited(0, 1, code=3), stop(1)),
        heard(9, stopped(1), start(2, 1)),
        heard(10, reached(2, Milestone.STARTED)),
        heard(11, reached(2, Milestone.OUTPUT)),
        *said,
        heard(1000, exited(0, 2, code=0), end()),
    )
    books = ledger(START, entries, None)
    check(books)
    assert not books.observed
    assert books.bill(1) == {"teardown": 1.0, "start": trains - 9.0}
    assert books.buckets[Bucket.PRODUCTIVE] == 2000 + 1000 * (1000 - trains)
    assert books.buckets[Bucket.REPLAY] == 0


def test_a_requested_stop_is_no_incident() -> None:
    books = ledger(
        START,
        journal(
            heard(0, JobSubmitted(), *assign("n0", "n1"), start(1)),
            *bring_up(1, 0.0, caught_up=3.0),
            heard(10, StopRequested(by="user"), stop(1)),
            heard(11, StopRequested(by="user", now=True), stop(1)),
            heard(12, stopped(1), end(Outcome.STOPPED)),
        ),
        None,
    )
    check(books)
    assert books.bills == {}
    assert books.buckets[Bucket.PRODUCTIVE] == 7000
    assert books.buckets[Bucket.TEARDOWN] == 2000


def test_a_stop_request_in_the_middle_of_a_recovery_ends_the_bill() -> None:
    books = ledger(
        START,
        journal(
            heard(0, JobSubmitted(), *assign("n0", "n1"), start(1)),
            *bring_up(1, 0.0, caught_up=3.0),
            heard(10, exited(0, 1, signal=9), stop(1)),
            heard(11, StopRequested(by="user"), stop(1)),
            heard(13, stopped(1), end(Outcome.STOPPED)),
        ),
        None,
    )
    check(books)
    assert books.bill(1) == {"teardown": 1.0}
    assert not books.bills[1].recovered
    assert books.buckets[Bucket.TEARDOWN] == 3000


def test_orders_repeated_by_a_new_controller_change_nothing() -> None:
    def lines(*extra: Line) -> list[Entry]:
        return journal(
            heard(0, JobSubmitted(), *assign("n0", "n1"), start(1)),
            *bring_up(1, 0.0, caught_up=3.0),
            *extra[:1],
            heard(10, exited(0, 1, signal=9), stop(1)),
            *extra[1:],
            heard(12, stopped(1)),
        )

    resumed = ControllerResumed(existing=("n0", "n1"))
    repeated = ledger(
        START, lines(heard(5, resumed, start(1)), heard(11, resumed, stop(1))), START + 13
    )
    check(repeated)
    assert repeated == ledger(START, lines(), START + 13)


def test_a_spare_that_is_lost_is_no_fault() -> None:
    lost = NodeLost(node="spare", reason=NodeLostReason.SILENT, ago_s=5)
    books = ledger(
        START,
        journal(
            heard(0, JobSubmitted(), *assign("n0", "n1"), start(1)),
            *bring_up(1, 0.0, caught_up=3.0),
            heard(9, lost, Fence(node="spare", reason="")),
            heard(10, exited(0, 1, signal=9), stop(1)),
        ),
        START + 11,
    )
    assert books.bills[1].fault_ms == books.start_ms + 10_000


def test_a_node_lost_after_its_workers_finished_does_not_end_the_training_of_the_others() -> None:
    lost = NodeLost(node="n0", reason=NodeLostReason.SILENT)
    books = ledger(
        START,
        journal(
            heard(0, JobSubmitted(), *assign("n0", "n1"), start(1)),
            heard(1, reached(1, Milestone.STARTED)),
            heard(5, exited(0, 1, code=0)),
            heard(6, lost, Fence(node="n0", reason="")),
            heard(20, exited(1, 1, code=0), end()),
        ),
        None,
    )
    check(books)
    assert nonzero(books.buckets) == {"start": 1000, "productive": 19000}


def test_stalls_never_exceed_the_time_in_which_they_happened() -> None:
    books = ledger(
        START,
        journal(
            heard(0, JobSubmitted(), *assign("n0"), start(1, 1)),
            *bring_up(1, 0.0, caught_up=3.0),
            heard(3, progressed(1, 1, 0.0, 0.0, 0.0)),
            heard(5, progressed(1, 2, 0.0, 100.0, 100.0)),
        ),
        START + 6,
    )
    check(books)
    assert books.buckets[Bucket.DATA_WAIT] == 3000
    assert books.buckets[Bucket.PRODUCTIVE] == 0


def test_the_last_hour_is_judged_by_itself() -> None:
    lines = [
        heard(t, progressed(1, t, 0.0, data=min(t, 7200) / 2, snap=0.0))
        for t in range(10, 14400, 10)
    ]
    books = ledger(
        START,
        journal(
            heard(0, JobSubmitted(), *assign("n0"), start(1, 1)),
            heard(0, reached(1, Milestone.FIRST_STEP)),
            heard(0, progressed(1, 1, 0.0, 0.0, 0.0)),
            heard(0, reached(1, Milestone.CAUGHT_UP)),
            *lines,
        ),
        START + 14400,
    )
    check(books)
    assert books.ettr == pytest.approx(0.75)  # two hours at a half, two without stalls
    assert books.ettr_1h == pytest.approx(1.0)
    assert len(books.intervals) < 5  # however many reports there were


def test_a_job_that_never_starts_only_waits() -> None:
    books = ledger(START, journal(heard(1, JobSubmitted())), START + 9)
    assert nonzero(books.buckets) == {"schedule": 9000}
    assert books.ettr == 0
    check(ledger(START, [], None))


def test_the_time_for_which_everything_was_off_is_neither_training_nor_work_to_be_redone() -> None:
    """Power is gone at 10 s and back after hours: what is known ends with the last line."""
    off = [
        heard(0, JobSubmitted(), *assign("n0", "n1"), start(1)),
        *bring_up(1, 0.0, caught_up=3.0),
        heard(8, progressed(1, 50, 0.5, 0.0, 0.0)),
        heard(10, NodeReady(node="spare", store=STORE, instrumented=True)),
    ]
    books = ledger(
        START,
        journal(
            *off, heard(9000, ControllerResumed(existing=()), stop(1)), heard(9001, stopped(1))
        ),
        START + 9005,
    )
    check(books)
    assert books.buckets[Bucket.PRODUCTIVE] == 4500
    assert books.buckets[Bucket.REPLAY] == 2500
    assert books.bill(1) == {"detect": 8990.0, "teardown": 1.0, "schedule": 4.0}


def test_a_plain_script_is_not_productive_while_everything_is_off() -> None:
    entries = journal(
        heard(1, JobSubmitted(), *assign("n0"), start(1, 1)),
        heard(3, reached(1, Milestone.STARTED)),
        heard(10, NodeReady(node="spare", store=STORE, instrumented=False)),
        heard(9000, ControllerResumed(existing=("spare",)), stop(1)),
    )
    books = ledger(START, entries, START + 9000)
    check(books)
    assert books.buckets[Bucket.PRODUCTIVE] == 7000
    assert books.bill(1) == {"detect": 8990.0}


def test_a_member_that_went_in_an_absence_is_not_missed_before_the_last_step() -> None:
    """The other one trained on for an hour and tells so."""
    entries = journal(
        heard(0, JobSubmitted(), *assign("n0", "n1"), start(1)),
        *bring_up(1, 0.0, caught_up=3.0),
        heard(10, progressed(1, 50, 0.0, 0.0, 0.0)),
        heard(3610, ControllerResumed(existing=("n0",)), stop(1)),
        heard(3611, stopped(1, Progress(step=9000, step_ago_s=11.0))),
    )
    books = ledger(START, entries, START + 3611)
    check(books)
    assert books.buckets[Bucket.PRODUCTIVE] == 3_597_000
    assert books.bill(1) == {"detect": 10.0, "teardown": 1.0}


def test_workers_that_outlived_a_member_in_an_absence_tell_when_it_went() -> None:
    entries = journal(
        heard(1, JobSubmitted(), *assign("n0", "n1"), start(1)),
        heard(3, reached(1, Milestone.STARTED)),
        heard(3610, ControllerResumed(existing=("n0",)), stop(1)),
        heard(3610, exited(0, 1, code=1, ago_s=11.0)),
        heard(3611, stopped(1)),
    )
    books = ledger(START, entries, START + 3611)
    check(books)
    assert books.buckets[Bucket.PRODUCTIVE] == 3_596_000
    assert books.bill(1) == {"detect": 11.0, "teardown": 1.0}


def test_a_hang_lasts_since_the_last_step_although_a_new_controller_saw_less_of_it() -> None:
    hang = HangJudged(
        attempt=1, judgement=Judgement.HANG, summary="", confidence=0.9, ago_s=20.0, ranks=()
    )  # fmt: skip
    entries = journal(
        heard(0, JobSubmitted(), *assign("n0", "n1"), start(1)),
        *bring_up(1, 0.0, caught_up=3.0),
        heard(10, progressed(1, 50, 0.0, 0.0, 0.0)),
        heard(100, ControllerResumed(existing=("n0", "n1"))),
        heard(130, hang, stop(1)),
        heard(131, stopped(1, Progress(step=51, step_ago_s=120.5))),
    )
    books = ledger(START, entries, START + 131)
    check(books)
    assert books.buckets[Bucket.PRODUCTIVE] == 7_500
    assert books.bill(1) == {"detect": 119.5, "teardown": 1.0}


@pytest.mark.parametrize("judgement", [None, *Judgement])
def test_a_standstill_that_something_else_ends_is_waiting_unless_it_was_work(
    judgement: Judgement | None,
) -> None:
    judged = judgement and HangJudged(
        attempt=1, judgement=judgement, summary="", confidence=0.9, ago_s=9.5, ranks=()
    )
    lost = NodeLost(node="n1", reason=NodeLostReason.SILENT, ago_s=2.0)
    entries = journal(
        heard(0, JobSubmitted(), *assign("n0", "n1"), start(1)),
        *bring_up(1, 0.0, caught_up=3.0),
        heard(10, progressed(1, 50, 0.0, 0.0, 0.0)),
        heard(19, SUSPECTED),
        *([heard(20, judged)] if judged else []),
        heard(30, lost, stop(1)),
    )
    books = ledger(START, entries, START + 30)
    check(books)
    works = judgement in (Judgement.SLOW, Judgement.PAUSED, Judgement.OVER)
    assert books.bill(1) == {"detect": 2.0 if works else 20.0}


def test_a_suspicion_that_steps_refute_dates_no_later_fault() -> None:
    entries = journal(
        heard(0, JobSubmitted(), *assign("n0"), start(1, 1)),
        *bring_up(1, 0.0, caught_up=3.0),
        heard(10, progressed(1, 50, 0.0, 0.0, 0.0)),
        heard(19, SUSPECTED),
        heard(40, progressed(1, 90, 0.5, 0.0, 0.0)),
        heard(60, exited(0, 1, signal=9, progress=Progress(step=99, step_ago_s=0.5)), stop(1)),
    )
    books = ledger(START, entries, START + 60)
    check(books)
    assert books.buckets[Bucket.PRODUCTIVE] == 56_500
