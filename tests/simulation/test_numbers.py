"""The referee of numbers objects to a way on from what is known to be none; worlds have some."""

import msgspec

from holdfast.actions import AnyAction, Entry, StartAttempt, StopAttempt
from holdfast.checkpoint.choose import Snapshot
from holdfast.checkpoint.key import Key
from holdfast.events import AttemptStopped, Broken, NumbersBroke, Quantity, Store
from holdfast.messages import Start
from holdfast.simulation.hardship import draw
from holdfast.simulation.memory import NodeMemory, WrittenPart
from holdfast.simulation.numbers import BadNumbers, FiniteNumbers
from holdfast.simulation.world import World

STORE = Store("10.0.0.1", 1, True)


def start(attempt: int, below: int | None) -> StartAttempt:
    return StartAttempt(
        attempt=attempt, node_count=1, workers_per_node=1, store=STORE, redo_until=0,
        restarts=0, restore_below=below, reason="",
    )  # fmt: skip


def told(attempt: int, step: int, seq: int = 1) -> Entry:
    broke = Broken(step=step, what=Quantity.LOSS, value="nan")
    stop = StopAttempt(attempt=attempt, grace_s=0.0, reason="")
    return Entry(seq, 0.0, NumbersBroke(attempt=attempt, rank=0, broke=broke), (stop,))


def ordered(*actions: AnyAction, attempt: int = 1) -> Entry:
    return Entry(2, 0.0, AttemptStopped(attempt=attempt, store=STORE), actions)


def watching(*entries: Entry) -> FiniteNumbers:
    referee = FiniteNumbers()
    assert not any(referee.journaled(one) for one in (ordered(start(1, None)), *entries))
    return referee


def test_the_next_attempt_has_to_be_told_a_step_not_beyond_the_bad_one() -> None:
    assert not watching(told(1, 12)).journaled(ordered(start(2, 12)))
    for below in (13, None):
        objection = watching(told(1, 12)).journaled(ordered(start(2, below)))
        assert objection == f"attempt 2 is told {below} after a bad step 12"


def test_an_attempt_after_the_next_one_is_free_again() -> None:
    referee = watching(told(1, 12), ordered(start(2, 12)))
    assert not referee.journaled(ordered(start(3, None), attempt=2))


def test_what_is_known_to_be_bad_must_not_be_gone_on_from() -> None:
    found = Snapshot(Key(1, 12), 1)
    assert "step 12 of attempt 1" in watching(told(1, 12)).resumed(2, found, True)
    assert not watching(told(1, 12)).resumed(2, found, False)
    assert not watching().resumed(2, found, True), "nobody could know"
    assert not watching(told(1, 12)).resumed(2, None, False)


def test_what_a_lost_controller_alone_knew_nobody_knows() -> None:
    referee = watching(told(1, 12, seq=7))
    referee.forget(6)
    assert not referee.journaled(ordered(start(2, None)))


def test_bad_state_is_that_of_the_bad_step_and_of_all_after_it() -> None:
    numbers = BadNumbers()
    numbers.strike(1, 10, rank=1)
    keys = frozenset(Key(1, step) for step in (9, 10, 11))
    assert sorted(key.step for key in keys if numbers.is_bad(key)) == [10, 11]
    assert [numbers.seen_by(1, rank, 10) for rank in (0, 1)] == [None, 10]
    assert [numbers.seen_by(1, rank, 11) for rank in (0, 1)] == [11, 10]
    parts = frozenset(WrittenPart(key, 0, 1) for key in keys)
    good = {WrittenPart(Key(1, 9), 0, 1)}

    def restorable(below: int | None, *bad: tuple[int, int]) -> frozenset[WrittenPart]:
        order = Start(
            attempt=2, node_rank=0, node_count=1, workers_per_node=1, store=STORE, redo_until=0,
            restarts=0, restore_below=below, bad_steps=bad,
        )  # fmt: skip
        return numbers.restorable([NodeMemory(parts, parts, parts)], order)[0].shared

    assert restorable(12) == good, "who goes back looks at what it restores"
    assert restorable(None) == restorable(None, (3, 1)) == parts
    assert restorable(None, (1, 10)) == good
    assert restorable(None, (1, 11)) == good, "what an attempt left that had bad ones is looked at"


def test_a_world_with_bad_numbers_goes_back_below_each_of_them() -> None:
    """A referee objects to anything else; here something has to happen at all."""
    calm = msgspec.structs.replace(
        draw(0, hours=8.0, nodes=4), rates={"bad_numbers": 20.0}, shares={}, instrumented=True,
        total_steps=0, user_error_step=0, early_end_step=0, stop_after_h=0.0, cluster=False,
    )  # fmt: skip
    world = World(calm)
    world.run()
    assert world.control is not None
    incidents = world.control.state.incidents
    assert incidents and {incident.cause for incident in incidents} == {"nan"}
    assert all(incident.ended_at is not None for incident in incidents)


def test_numbers_that_break_while_an_attempt_is_stopped_anyhow_have_broken_too() -> None:
    """Seed 5495 of 6 hours and 6 nodes: an update was under way the first time."""
    unheeded = msgspec.structs.replace(told(1, 12), actions=())
    again = watching(unheeded, ordered(start(2, 12)), told(2, 12))
    assert again.repeated()
    assert not watching(unheeded, unheeded).repeated(), "two ranks of one attempt"
    late = watching(ordered(start(2, 12)), unheeded, told(2, 12))
    assert not late.repeated(), "what an attempt tells that is long over nobody hears"
