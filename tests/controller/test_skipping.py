"""Which batches are left out: those between what was restored and the bad step, once, and not more
than allowed."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from holdfast.actions import AnyAction, EndJob, StartAttempt
from holdfast.controller import skipping
from holdfast.controller.phases import Phase
from holdfast.events import DeadlinePassed, Milestone, MilestoneReached
from tests.controller.test_controller import World, only, running
from tests.controller.test_numerics import again, broke, commit, stopped

STEPS = 24


def started(world: World, actions: Sequence[AnyAction]) -> StartAttempt:
    """The next attempt, after the back-off."""
    if world.state.start_deadline is not None and world.state.phase is Phase.WAITING:
        actions = world.tell(DeadlinePassed(), world.state.start_deadline - world.now)
    return only(actions, StartAttempt)


def goes_on(world: World, step: int, skipped: int = 0) -> None:
    attempt, restored = world.state.attempt, Milestone.RESTORED
    for one in (Milestone.STARTED, Milestone.ARRIVED, Milestone.JOINED):
        world.tell(MilestoneReached(attempt=attempt, milestone=one))
    world.tell(MilestoneReached(attempt=attempt, milestone=restored, step=step, skipped=skipped))


def test_the_first_time_the_same_batches_are_tried_again() -> None:
    world = running(skip_batches=5)
    broke(world, 12)
    assert only(stopped(world, 13), StartAttempt).skips == ()


def test_the_second_time_batches_from_what_is_restored_to_the_bad_one_are_left_out() -> None:
    world = running(skip_batches=5)
    broke(world, 12)
    stopped(world, 13)
    start = only(again(world, 12, restored=11), StartAttempt)
    assert (start.restore_below, start.skips) == (12, ((7, 12),)), "five at most, from wherever"
    goes_on(world, 9)
    assert skipping.spans(world.state) == ((9, 12),) and skipping.left(world.state) == 2
    told = [one.reason for one in world.state.incidents[-1].actions if one.action == "SkipBatches"]
    assert told[-1] == "batches 9 to 11 (from 0) are skipped: 3 of 5 allowed"
    assert "batches 9 to 11" in world.state.notes[-1].text
    world.kill("b", 1, step=10)
    assert started(world, world.recover()).skips == ((9, 12),), "for good"


def test_another_batch_nearby_gets_its_second_try_as_well() -> None:
    """Its step is one before that of the batch that is left out, or one after it."""
    for bad in (11, 13):
        world = running(skip_batches=5)
        broke(world, 12)
        stopped(world, 13)
        again(world, 12, restored=11)
        goes_on(world, 10)
        assert skipping.spans(world.state) == ((10, 12),)
        start = started(world, again(world, bad, restored=10))
        assert (start.restore_below, start.skips) == (min(bad, 12), ((10, 12),)), "as they were"
        start = started(world, again(world, bad, restored=10))
        assert start.skips == ((10, bad + 2),)


def test_what_was_restored_may_be_told_after_its_first_step_was_bad() -> None:
    """Found by hand: what the attempt before had left out was forgotten, and other batches were
    left out by turns until the job ended."""
    world = running(skip_batches=5)
    broke(world, 12)
    stopped(world, 13)
    again(world, 12, restored=11)
    broke(world, 12)
    goes_on(world, 11)
    assert skipping.spans(world.state) == ((11, 12),) and skipping.left(world.state) == 4
    assert started(world, stopped(world, 12)).skips == ((11, 12),), "the next batch once more"
    broke(world, 12)
    goes_on(world, 11)
    started(world, stopped(world, 12))
    goes_on(world, 11)
    assert skipping.spans(world.state) == ((11, 13),)


def test_where_nobody_tells_what_was_restored_the_same_batches_are_left_out_once_more() -> None:
    world = running(skip_batches=5)
    broke(world, 12)
    stopped(world, 13)
    before = only(again(world, 12, restored=11), StartAttempt)
    broke(world, 12)
    assert started(world, stopped(world, 12)).skips == before.skips


def test_what_is_used_up_ends_as_if_nothing_might_be_left_out() -> None:
    world = running(skip_batches=1)
    commit(world, 4)
    broke(world, 12)
    stopped(world, 13)
    again(world, 12, restored=11)
    goes_on(world, 11)
    assert skipping.left(world.state) == 0
    start = started(world, again(world, 12, restored=11))
    assert (start.restore_below, start.skips) == (5, ((11, 12),)), "an older checkpoint"
    end = only(again(world, 12, restored=4), EndJob)
    assert "restored; 1 batch was skipped, all that recovery.skip_batches allows: " in end.reason


def test_scripts_that_report_no_steps_leave_nothing_out() -> None:
    world = World(skip_batches=5)
    world.submit(instrumented=False)
    assert skipping.left(world.state) == 0


@given(
    bad=st.sets(st.integers(1, 20), max_size=4),
    every=st.integers(1, 4),
    killed=st.lists(st.integers(1, STEPS), max_size=3),
    late=st.booleans(),
)
def test_no_bad_batch_is_trained_on_and_no_batch_is_left_out_for_nothing(
    bad: set[int], every: int, killed: list[int], late: bool
) -> None:
    """A script whose batches of these numbers make numbers bad, with a snapshot every few steps;
    rank 1 is killed, too. `late`: that a first step is bad is heard before what was restored."""
    world = running(skip_batches=100, max_restarts=1000)
    snapshots, deaths = {0: 0}, sorted(set(killed))  # steps → batches left out before
    spans: tuple[tuple[int, int], ...] = ()
    below: int | None = None
    doubted: set[int] = set()  # from what was restored to a batch that made numbers bad
    while True:
        saved = max(s for s in snapshots if below is None or s < below)
        snapshots = {s: n for s, n in snapshots.items() if s <= saved}
        before = snapshots[saved]
        step, skipped, fate = train(saved, snapshots, spans, every, bad, deaths)
        early = late and fate == "bad" and step == saved + 1
        if early:
            broke(world, step)
        goes_on(world, saved, before)
        if fate == "done":
            break
        if fate == "killed":
            world.kill("b", 1, step=step)
            start = started(world, world.recover())
        else:
            world.tell(
                MilestoneReached(attempt=world.state.attempt, milestone=Milestone.FIRST_STEP)
            )
            if not early:
                broke(world, step)
            doubted |= set(range(saved + before, step + skipped))
            start = started(world, stopped(world, step))
        spans, below = start.skips, start.restore_below
    numbers = {n for first, end in skipping.spans(world.state) for n in range(first, end)}
    assert bad <= numbers
    assert skipped == len(numbers) == skipping.count(world.state)
    assert numbers <= doubted


def train(
    saved: int,
    snapshots: dict[int, int],
    spans: tuple[tuple[int, int], ...],
    every: int,
    bad: set[int],
    deaths: list[int],
) -> tuple[int, int, str]:
    """The step at which an attempt ends, what was left out by then, and why it ends."""
    step, skipped = saved, snapshots[saved]
    while step < STEPS:
        while any(first <= step + skipped < end for first, end in spans):
            skipped += 1
        number, step = step + skipped, step + 1
        if number in bad:
            return step, skipped, "bad"
        if step in deaths:
            deaths.remove(step)
            return step, skipped, "killed"
        if step % every == 0:
            snapshots[step] = skipped
    return step, skipped, "done"
