"""What was chosen is kept with everything that was weighed, and told to whoever asks."""

import msgspec
import pytest

from holdfast.actions import Entry, StartAttempt, StopAttempt
from holdfast.controller import choices
from holdfast.controller.policies.situation import Prices, Rung, Trouble
from holdfast.controller.state import State
from holdfast.events import (
    DeadlinePassed,
    HealthChanged,
    NodeLost,
    NodeLostReason,
    Progress,
    Progressed,
    Severity,
    StragglersFound,
)
from holdfast.slow_ranks import SlowBy, Straggler
from holdfast.status import Choice
from tests.controller.test_controller import World, only, running


def lose(world: World, node: str) -> None:
    world.tell(NodeLost(node=node, reason=NodeLostReason.PROCESS))


def steps(world: World) -> list[str]:
    return [choice.step for choice in world.state.incidents[-1].choices]


def test_an_incident_keeps_what_was_chosen_and_each_step_that_was_weighed() -> None:
    world = running()
    world.kill("b", 1)
    world.recover()
    (choice,) = world.state.incidents[0].choices
    assert world.controller.choices == (choice,)
    assert (choice.step, choice.about, choice.cause) == ("restart", "attempt 1", "worker-killed")
    assert [one.step for one in choice.alternatives] == list(Rung)
    (taken,) = [one for one in choice.alternatives if one.step == choice.step]
    assert taken.sufficient and taken.why == choice.reason
    assert all(one.why for one in choice.alternatives)
    world.tell(DeadlinePassed())
    assert not world.controller.choices, "only what the last fact led to"


def test_a_choice_is_in_the_line_of_the_journal_and_lines_without_one_are_read() -> None:
    world = running()
    world.kill("b", 1)
    world.all_stopped()
    verdict = world.verdict()
    line = msgspec.json.encode(
        Entry(9, 1.0, DeadlinePassed(), tuple(verdict), world.controller.choices)
    )
    assert msgspec.json.decode(line, type=Entry).choices == world.controller.choices
    old = b'{"seq":9,"at":1.0,"event":{"type":"DeadlinePassed"},"actions":[]}'
    assert msgspec.json.decode(old, type=Entry).choices == ()
    assert b"choices" not in msgspec.json.encode(Entry(9, 1.0, DeadlinePassed(), ()))


def test_a_state_that_was_saved_before_there_were_choices_is_read() -> None:
    world = running()
    world.kill("b", 1)
    world.recover()
    saved = msgspec.json.decode(msgspec.json.encode(world.state))
    for field in ("times", "choices", "cordoned_there"):
        del saved[field]
    del saved["incidents"][0]["choices"]
    del saved["nodes"]["a"]["rack"]
    again = msgspec.json.decode(msgspec.json.encode(saved), type=State)
    assert (again.incidents[0].choices, again.nodes["a"].rack) == ([], "")


@pytest.mark.parametrize("seconds", [0.2, 7.0])
def test_costs_are_what_the_phases_of_this_job_have_taken(seconds: float) -> None:
    world = running()
    before = choices.situation(world.state, Trouble()).prices
    assert (before.start_s, before.step_s) != (Prices().start_s, seconds)
    world.tell(Progressed(attempt=1, progress=Progress(step=20)), after_s=10 * seconds)
    world.tell(Progressed(attempt=1, progress=Progress(step=30)), after_s=10 * seconds)
    world.kill("b", 1)
    world.tell(DeadlinePassed(), after_s=seconds)  # it takes so long to stop
    world.recover()
    world.tell(DeadlinePassed(), after_s=seconds)  # and to start
    world.train(step=31, restored=30)
    prices = choices.situation(world.state, Trouble()).prices
    assert prices.step_s == pytest.approx(seconds)
    assert prices.stop_s == pytest.approx(seconds + 0.1)
    assert prices.start_s == pytest.approx(seconds + 0.5)
    assert prices.move_s == prices.start_s, "no node has taken a rank meanwhile"
    lose(world, "b")
    world.recover(cause="none", summary="", rank=None)
    world.tell(DeadlinePassed(), after_s=3 * seconds)
    world.train(step=32, restored=31)
    prices = choices.situation(world.state, Trouble()).prices
    assert prices.move_s == pytest.approx(3 * seconds + 0.5)
    assert prices.start_s == pytest.approx(seconds + 0.5), "that of a restart in place stands"


def test_a_lost_node_is_replaced_by_a_spare_or_waited_for_and_that_is_told_once() -> None:
    world = running(spare_count=1)
    lose(world, "b")
    world.recover(cause="none", summary="", rank=None)
    assert steps(world) == ["replace"]
    world.train(step=20)
    lose(world, "c")
    world.recover(cause="none", summary="", rank=None)
    world.tell(DeadlinePassed())
    lose(world, "a")
    assert steps(world) == ["wait"]
    world.add("d")
    assert only(world.add("e"), StartAttempt).attempt == 3
    assert steps(world) == ["wait"]


def test_a_job_that_waits_too_long_gives_up_with_an_account() -> None:
    world = running(spare_count=0, node_wait_s=5.0)
    world.state.spares.clear()
    world.state.nodes.pop("c", None)
    lose(world, "b")
    world.recover(cause="none", summary="", rank=None)
    world.tell(DeadlinePassed(), after_s=5.0)
    assert steps(world) == ["wait", "give-up"]
    assert world.state.incidents[-1].choices[-1].reason == world.state.why
    assert "timed out after 5 s" in world.state.why


ALERT = HealthChanged(
    node="b", condition="link-down", severity=Severity.ALERT, detail="eth0 lost its link"
)


def test_what_is_tolerated_is_journaled_though_it_is_no_incident() -> None:
    world = running()
    assert world.tell(ALERT) == []
    (tolerated,) = world.controller.choices
    assert (tolerated.step, tolerated.about) == ("carry-on", "b")
    assert "2 within 300 s are a fault" in tolerated.reason
    assert only(world.tell(ALERT, after_s=20), StopAttempt)
    (left,) = world.controller.choices
    assert (left.step, left.about, left.cause) == ("replace", "b", "hardware-fault")
    assert world.state.incidents[-1].choices == [left]


def test_a_slow_rank_is_carried_with_and_that_is_said_once() -> None:
    world = running()
    slow = Straggler(rank=1, share=0.3, cause=SlowBy.ITSELF, text="it computes longer")
    for said in (1, 0):
        world.tell(StragglersFound(attempt=1, stragglers=(slow,)))
        assert len(world.controller.choices) == said
    assert world.state.incidents == []


def test_state_stays_small_older_incidents_keep_only_the_step() -> None:
    world = running(max_restarts=999)
    for number in range(choices.KEPT + 3):
        world.kill("b", 1)
        world.recover()
        world.train(step=20 + number)
    kept: list[Choice] = [incident.choices[0] for incident in world.state.incidents]
    assert {choice.step for choice in kept} == {"restart"}
    assert [bool(choice.alternatives) for choice in kept] == [False] * 3 + [True] * choices.KEPT
