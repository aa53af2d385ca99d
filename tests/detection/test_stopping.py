"""One fact for many answers: told once, late members named, lost ones not waited for."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.detection.stopping import StopTally
from holdfast.events import AttemptStopped, Progress, Store
from holdfast.messages import WorkersStopped


def store(node: str) -> Store:
    return Store(node, 1, True)


def answer(node: str, attempt: int = 1, step: int | None = None) -> WorkersStopped:
    progress = Progress(step=step)
    return WorkersStopped(node=node, attempt=attempt, store=store(node), progress=progress)


def begun(*members: str, attempt: int = 1) -> StopTally:
    tally = StopTally()
    assert tally.begin(attempt, members, members[0], 10.0, 0.0) is None
    return tally


def test_the_last_answer_completes_the_stop_with_the_store_of_rank_0_and_the_furthest_step() -> (
    None
):
    tally = begun("a", "b", "c")
    assert tally.stopped(answer("a", step=4), 0.0) is None
    assert tally.stopped(answer("c", step=6), 0.0) is None
    assert tally.pending == {"b"}
    told = AttemptStopped(attempt=1, store=store("a"), progress=Progress(step=6))
    assert tally.stopped(answer("b", step=5), 0.0) == told
    assert tally.stopped(answer("b"), 0.0) is None


def test_workers_that_are_kept_add_up_and_one_reason_why_not_more_is_told() -> None:
    tally = begun("a", "b", "c")
    tally.stopped(msgspec.structs.replace(answer("a"), parked=2), 0.0)
    tally.stopped(msgspec.structs.replace(answer("b"), refusal="it uses nccl"), 0.0)
    told = tally.stopped(msgspec.structs.replace(answer("c"), parked=1), 0.0)
    assert told is not None and (told.parked, told.refusal) == (3, "it uses nccl")
    assert tally.begin(2, {"a"}, "a", 20.0, 0.0) is None
    told = tally.stopped(answer("a", attempt=2), 0.0)
    assert told is not None and (told.parked, told.refusal) == (0, "")


def test_a_lost_member_is_not_waited_for_and_takes_its_store_along() -> None:
    tally = begun("a", "b")
    tally.stopped(answer("b"), 0.0)
    assert tally.lost("a", 0.0) == AttemptStopped(attempt=1, store=None)
    assert tally.lost("a", 0.0) is None


def test_members_without_a_store_cannot_start_workers_until_they_say_that_they_are_ready() -> None:
    tally = begun("a", "b", "c", "d")
    for node in "bcd":
        tally.stopped(WorkersStopped(node=node, attempt=1, store=None), 0.0)
    tally.ready("c")
    told = tally.stopped(answer("a"), 0.0)
    assert told == AttemptStopped(attempt=1, store=store("a"), unready=("b", "d"))
    assert tally.begin(2, ("a",), "a", 10.0, 0.0) is None
    assert tally.stopped(answer("a", attempt=2), 0.0) == AttemptStopped(attempt=2, store=store("a"))


def test_an_order_to_nobody_is_done_at_once() -> None:
    assert StopTally().begin(1, (), None, 10.0, 0.0) == AttemptStopped(attempt=1, store=None)


def test_answers_about_another_attempt_are_ignored() -> None:
    tally = begun("a", attempt=2)
    assert tally.stopped(answer("a", attempt=1), 0.0) is None
    assert tally.pending == {"a"}


def test_late_members_are_named_once_after_the_deadline() -> None:
    tally = begun("a", "c", "b")
    tally.stopped(answer("a"), 0.0)
    assert tally.late(9.9) == []
    assert tally.late(10.0) == ["b", "c"]
    assert tally.late(11.0) == []


def test_a_repeated_order_keeps_the_answers_and_only_shortens_the_wait() -> None:
    tally = begun("a", "b")
    tally.stopped(answer("a"), 0.0)
    assert tally.begin(1, ("a", "b"), "a", 5.0, 0.0) is None
    assert tally.late(5.0) == ["b"]
    assert tally.stopped(answer("b"), 0.0) == AttemptStopped(attempt=1, store=store("a"))
    assert tally.begin(1, ("a", "b"), "a", 5.0, 0.0) == AttemptStopped(attempt=1, store=store("a"))


@given(st.permutations(["a", "b", "c", "d"]), st.sets(st.sampled_from("abcd")))
def test_in_any_order_it_is_told_exactly_once(order: list[str], lost: set[str]) -> None:
    tally = begun("a", "b", "c", "d")
    told = [tally.lost(n, 0.0) if n in lost else tally.stopped(answer(n), 0.0) for n in order * 2]
    assert sum(t is not None for t in told) == 1


def test_time_in_which_nobody_listened_is_not_held_against_members() -> None:
    tally = StopTally()
    tally.begin(1, ["a", "b"], "a", 10.0, 0.0)
    tally.forgive(30.0)
    assert tally.late(39.0) == []
    assert tally.late(40.0) == ["a", "b"]


def test_the_last_step_is_as_old_as_it_is_when_the_last_member_answers() -> None:
    """It was booked as trained until a node that took long to stop had stopped."""
    tally = begun("a", "b")
    progress = Progress(step=7, step_ago_s=2.0)
    tally.stopped(WorkersStopped(node="a", attempt=1, store=None, progress=progress), 10.0)
    told = tally.stopped(answer("b", step=6), 25.0)
    assert told is not None and told.progress == Progress(step=7, step_ago_s=17.0)
