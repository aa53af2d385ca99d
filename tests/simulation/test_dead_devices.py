"""Many machines that die within an hour, or a rack of them: few are left, and the job goes on."""

from itertools import count
from typing import Any

import msgspec
import pytest

from holdfast.actions import EndJob, Fence, Outcome
from holdfast.controller import Limits
from holdfast.events import Diagnosed, NodeJoined
from holdfast.simulation.hardship import DEAD, DEAD_SEEDS, RATES, draw
from holdfast.simulation.removals import LEAST, TRIES_MOST, FairRemovals
from holdfast.simulation.world import World
from holdfast.status import Choice
from tests.simulation.test_referees import entry
from tests.simulation.test_world import lived, quiet

SPARES = 8
LINES = count(1)


def unlucky(seed: int, **rates: float) -> World:
    hard = quiet(seed=seed, total_steps=0, rates=rates, rack_size=4)
    limits: Limits = msgspec.structs.replace(
        hard.limits, node_count=4, spare_count=SPARES, max_restarts=10
    )
    return lived(msgspec.structs.replace(hard, limits=limits))


@pytest.mark.parametrize(
    ("kind", "a_day", "held"),
    [
        ("dead_devices", 300.0, b"the limit for this job: n"),
        ("rack_devices", 60.0, b"check that rack: n"),
    ],
)
def test_a_job_outlives_an_hour_in_which_more_of_its_machines_die_than_may_be_left(
    kind: str, a_day: float, held: bytes
) -> None:
    worlds = [unlucky(seed, **{kind: a_day}) for seed in range(3)]
    assert {world.referees.outcome for world in worlds} == {"stopped"}
    assert any(held in world.book.lines for world in worlds)


def test_worlds_that_were_there_before_these_faults_are_what_they_were() -> None:
    assert not DEAD.keys() & RATES.keys()
    assert not any(DEAD.keys() & draw(seed).rates.keys() for seed in range(200))
    assert all(DEAD.keys() <= draw(seed).rates.keys() for seed in DEAD_SEEDS[:20])


# ── the referee ───────────────────────────────────────────────────────────────────────────────


def at_the_limit() -> FairRemovals:
    """`n0` is sick, `n9` is well and waits, and as many were left as may be."""
    referee = FairRemovals(4)
    referee.is_sick = {"n0", "n8"}.__contains__
    referee.spares = lambda: ["n8", "n9"]
    for number in range(LEAST):
        assert not referee.journaled(fails(f"m{number}", Fence(node=f"m{number}", reason="")))
    return referee


def fails(node: str, *actions: Any, at: float = 0.0, step: str = "restart") -> Any:
    """An attempt does, on that node."""
    fenced = any(isinstance(one, Fence) for one in actions)
    choice = Choice(at=at, about=node, cause="", step="replace" if fenced else step, reason="")
    verdict = Diagnosed(attempt=1, cause="device-lost", summary="", confidence=1.0)
    line = entry(verdict, *actions, at=at)
    return msgspec.structs.replace(line, seq=next(LINES), choices=(choice,))


def judged(referee: FairRemovals, line: Any) -> tuple[str, bool]:
    """What it says, and whether the next start does not count."""
    return referee.journaled(line), referee.free


ENDS = EndJob(outcome=Outcome.GAVE_UP, reason="")


def test_the_referee_lets_no_job_end_because_a_sick_node_stays() -> None:
    referee = at_the_limit()
    assert judged(referee, fails("n0", at=1.0)) == ("", False)
    assert judged(referee, fails("n0", at=2.0, step="wait")) == ("", True)
    found = referee.journaled(fails("n0", ENDS, at=3.0, step="give-up"))
    assert found == "the job ends: only the limit of removals keeps n0, and n9 waits"


@pytest.mark.parametrize("why", ["once", "well", "no spare", "later", "few"])
def test_the_referee_lets_a_job_end_for_anything_else(why: str) -> None:
    referee = at_the_limit() if why != "few" else FairRemovals(4)
    node, last = "n0", 3.0
    if why == "well":
        node = "n1"
    elif why == "no spare":
        referee.spares = lambda: ["n8"]
    elif why == "later":
        last = 3600.0
    if why != "once":
        assert not referee.journaled(fails(node, at=1.0))
    assert not referee.journaled(fails(node, ENDS, at=last, step="give-up"))


def test_the_referee_sees_who_tries_all_the_time() -> None:
    referee = at_the_limit()
    for number in range(TRIES_MOST):
        assert not referee.journaled(fails("n0", at=1.0 + number))
    assert "41 attempts" in referee.journaled(fails("n0", at=100.0))


def test_the_referee_knows_what_half_of_a_rack_is() -> None:
    referee = FairRemovals(400)
    referee.is_sick, referee.spares = {"n0"}.__contains__, lambda: ["n9"]
    for node in ("n0", "n1", "n2", "n3"):
        joined = NodeJoined(node=node, name=node, address="h", workers=1, rack="r")
        assert not referee.journaled(msgspec.structs.replace(entry(joined), seq=next(LINES)))
    for node in ("n1", "n2"):
        assert judged(referee, fails("n0", at=1.0)) == ("", False)
        assert not referee.journaled(fails(node, Fence(node=node, reason=""), at=1.0))
    assert not referee.journaled(fails("n0", at=2.0))
    assert "only the limit" in referee.journaled(fails("n0", ENDS, at=3.0, step="give-up"))
