"""Errors that come again: no machine is left for the code's, no code blamed for a machine's."""

import json
from typing import Any

import msgspec
import pytest

from holdfast.actions import EndJob, Entry, Fence, Outcome
from holdfast.controller import Limits
from holdfast.events import Diagnosed
from holdfast.occurrences import Occurrence, Recurrence, Whose
from holdfast.simulation.hardship import ERROR_SEEDS, ERRORS, RATES, draw
from holdfast.simulation.repeating_errors import FLAKY, ILLEGAL, Bug, FairErrors
from holdfast.simulation.world import World
from holdfast.status import Choice
from tests.simulation.test_group_faults import events
from tests.simulation.test_referees import entry
from tests.simulation.test_world import lived, quiet

BATCH, UPDATE = Bug(0, 9), Bug(2, 9)


def with_errors(kind: str, seed: int, *, times: float, nodes: int = 6, **changes: Any) -> World:
    hard = quiet(seed=seed, total_steps=0, rates={kind: times})
    limits: Limits = msgspec.structs.replace(
        hard.limits, node_count=nodes, spare_count=2, max_restarts=100, **changes
    )
    return lived(msgspec.structs.replace(hard, limits=limits))


def judged(world: World) -> list[str]:
    found = [one["occurrence"] for one in events(world, "Diagnosed") if one["occurrence"]]
    return [one["recurs"]["whose"] if one["recurs"] else "" for one in found]


def test_a_bad_batch_is_known_for_one_wherever_it_comes_and_ends_the_job() -> None:
    worlds = [with_errors("bad_batches", seed, times=100.0) for seed in range(4)]
    assert {world.referees.outcome for world in worlds} == {"failed"}
    assert all(judged(world)[-1] == "code" for world in worlds)


def test_a_machine_whose_device_fails_again_and_again_is_left_and_the_job_goes_on() -> None:
    world = with_errors("bad_devices", 1, times=100.0)
    assert world.referees.outcome == "stopped" and judged(world)
    assert [one for one in world.agents.values() if not one.alive]


def test_a_machine_on_which_alone_a_script_fails_is_left_on_suspicion_and_not_blamed() -> None:
    worlds = [with_errors("bad_hosts", seed, times=20.0) for seed in range(4)]
    assert any("machine" in judged(world) for world in worlds)
    for world in worlds:
        lines = [json.loads(line) for line in world.book.texts()[1:]]
        steps = [(line, one["step"]) for line in lines for one in line.get("choices", [])]
        isolated = [line for line, step in steps if step == "isolate"]
        assert len(isolated) == judged(world).count("machine")
        for line in isolated:
            suspect = line["event"]["occurrence"]["nodes"]
            left = [one for one in line["actions"] if one["type"] == "Fence"]
            assert [one["node"] for one in left] == suspect and not left[0]["blamed"]
            assert not any(one["type"] == "Cordon" for one in line["actions"])


def test_an_update_that_always_fails_on_the_device_is_taken_back() -> None:
    world = with_errors("crashing_updates", 0, times=100.0)
    assert world.control is not None and world.referees.outcome == "stopped"
    done = {one.action for i in world.control.state.incidents for one in i.actions}
    assert "Revert" in done and "code" in judged(world)


def test_worlds_that_were_there_before_these_faults_are_what_they_were() -> None:
    assert not ERRORS.keys() & RATES.keys()
    assert not any(ERRORS.keys() & draw(seed).rates.keys() for seed in range(200))
    later = (draw(seed).rates.keys() for seed in ERROR_SEEDS[:20])
    assert ERRORS.keys() <= {kind for kinds in later for kind in kinds}


# ── the referee ───────────────────────────────────────────────────────────────────────────────


def verdict(attempt: int, whose: Whose | None = None, *, cause: str = "device-error") -> Diagnosed:
    recurs = Recurrence(whose=whose, confidence=0.8, text="x") if whose else None
    found = Occurrence(cause=cause, signature="x", rank=0, step=9, nodes=("n0",), recurs=recurs)
    return Diagnosed(
        attempt=attempt, cause=cause, summary="", confidence=0.95, rank=0, occurrence=found
    )


def heard(event: Diagnosed, *actions: Fence | EndJob) -> Entry:
    said = entry(event, *actions)
    choice = Choice(about="attempt 1", cause=event.cause, step="restart", reason="", at=0.0)
    return msgspec.structs.replace(said, choices=(choice,))


@pytest.mark.parametrize("bug", [BATCH, UPDATE])
def test_a_machine_may_be_left_for_the_codes_error_until_another_one_has_had_it(bug: Bug) -> None:
    referee = FairErrors()
    for attempt, node in enumerate(("n0", "n0", "n1"), 1):
        referee.struck(attempt, 0, node, ILLEGAL, bug)
    assert not referee.journaled(heard(verdict(1)))
    assert not referee.journaled(heard(verdict(2), Fence(node="n0", reason="", blamed=True)))
    left = referee.journaled(heard(verdict(3, "code"), Fence(node="n1", reason="", blamed=True)))
    assert left == "n1 is left for an error of the code that n0 has had, too"


def test_nor_may_it_be_suspected_then_unless_a_controller_has_forgotten_the_others() -> None:
    def suspects(*, forgets: bool) -> str:
        referee = FairErrors()
        for attempt, node in enumerate(("n0", "n1"), 1):
            referee.struck(attempt, 0, node, FLAKY, Bug(0, 0))
        assert not referee.journaled(heard(verdict(1, cause="worker-exception")))
        if forgets:
            referee.forget()
        return referee.journaled(heard(verdict(2, "machine", cause="worker-exception")))

    assert "n1 is suspected" in suspects(forgets=False)
    assert not suspects(forgets=True)


def test_what_is_explained_by_something_else_counts_for_nothing() -> None:
    referee = FairErrors()
    referee.struck(1, 0, "n0", ILLEGAL, BATCH)
    referee.struck(2, 0, "n1", ILLEGAL, BATCH)
    assert not referee.journaled(entry(verdict(1)))
    fence = Fence(node="n1", reason="", blamed=True)
    assert not referee.journaled(heard(verdict(2), fence)), "nobody has heard of the first"


def test_the_errors_of_machines_are_called_the_codes_no_more_often_than_by_chance() -> None:
    referee = FairErrors()
    for attempt in range(1, 101):
        referee.struck(attempt, 0, f"n{attempt}", ILLEGAL, None)
    assert not referee.journaled(heard(verdict(1, "code")))
    assert "2 of 2 errors" in referee.journaled(heard(verdict(2, "code")))
    for attempt in range(3, 60):
        referee.journaled(heard(verdict(attempt)))
    assert not referee.journaled(heard(verdict(60, "code"))), "3 of 60 are one of twenty"


def test_a_job_may_end_for_a_bad_batch_and_not_for_an_update() -> None:
    end = EndJob(outcome=Outcome.FAILED, reason="")
    for bug, may in ((BATCH, True), (UPDATE, False)):
        referee = FairErrors()
        referee.struck(1, 0, "n0", ILLEGAL, bug)
        assert referee.may_end == may
        assert bool(referee.journaled(heard(verdict(1, "code"), end))) != may
