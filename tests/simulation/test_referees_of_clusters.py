"""The referees of worlds with two controllers: each objects to its promise broken, and no other."""

import msgspec
import pytest

from holdfast.actions import Entry, KeepVersion, PrepareUpdate
from holdfast.events import ControllerResumed, DeadlinePassed, NodeLeft
from holdfast.simulation.environment import Environment, Foul
from holdfast.simulation.one_controller import IN_A_ROW, OTHERS_S, SAID_S, OneTerm, Succession
from holdfast.simulation.referees import Referees
from holdfast.simulation.supply import DEATHS_MAX, FairSupply
from holdfast.versions import Version
from tests.simulation.test_referees import diagnosed, entry, hardship, order, start


def test_an_agent_obeys_no_older_term() -> None:
    referee = OneTerm()
    orders = [msgspec.structs.replace(start(1), term=term) for term in (2, 2, 3)]
    assert not any(referee.obeyed("n0", order) for order in orders)
    assert not referee.obeyed("n1", orders[0])
    assert referee.obeyed("n0", orders[0]) == "n0 obeys term 2 after 3"


def begun(*attempts: int) -> OneTerm:
    """Each attempt was ordered by the entry of its number times ten, and an agent obeyed."""
    referee = OneTerm()
    for attempt in attempts:
        referee.journaled(
            Entry(seq=attempt * 10, at=0.0, event=diagnosed(), actions=(order(attempt),))
        )
        referee.obeyed("n0", start(attempt))
    return referee


def test_what_was_begun_is_in_the_journal_that_is_gone_on_from_if_anybody_has_it() -> None:
    assert not begun(1, 2).took_over({1: 10, 2: 20}, lambda _seq: True)
    lost = begun(1, 2).took_over({1: 10}, lambda seq: seq == 20)
    assert lost == "attempt 2 was begun, and is in no journal now"
    other = begun(1, 2).took_over({1: 10, 2: 19}, lambda _seq: True)
    assert other == "attempt 2 was begun, and is in no journal now"


def test_what_nobody_has_any_more_is_lost_without_blame_and_once() -> None:
    referee = begun(1, 2)
    assert not referee.took_over({1: 10}, lambda _seq: False)
    assert not referee.took_over({1: 10}, lambda _seq: True)


def test_an_attempt_that_no_agent_has_begun_may_be_lost() -> None:
    referee = OneTerm()
    referee.journaled(Entry(seq=10, at=0.0, event=diagnosed(), actions=(order(1),)))
    assert not referee.took_over({}, lambda _seq: True)


def test_decisions_wait_for_no_longer_than_it_takes_to_find_out_the_silent() -> None:
    judge = Referees(hardship(), Environment(hardship()))
    judge.waits(judge.waits_s_max)
    with pytest.raises(
        Foul, match=r"no decision waits for silent nodes at 0\.000 s: what was decided"
    ):
        judge.waits(judge.waits_s_max + 0.1)


def test_whoever_acts_without_the_lease_or_before_a_copy_is_kept_breaks_a_promise() -> None:
    judge = Referees(hardship(), Environment(hardship()))
    judge.acts("")
    judge.unkept("")
    for objects in (judge.acts, judge.unkept):
        with pytest.raises(Foul, match=r"one controller acts at 0\.000 s: something"):
            objects("something")


def test_controllers_that_meet_nobody_give_their_place_away_only_so_often() -> None:
    judge = Succession()
    assert not any(judge.handed_over(seq) for seq in range(IN_A_ROW))
    assert judge.waits_s(0.0) == 320.0
    judge.met(IN_A_ROW, 100.0)
    assert judge.waits_s(100.0) == 320.0, "for the others"
    judge.met(IN_A_ROW, 101.0)
    assert not judge.waits_s(100.0 + OTHERS_S)
    assert not any(judge.handed_over(seq) for seq in range(10, 10 + IN_A_ROW))
    judge.forget(10 + IN_A_ROW - 2)
    assert not judge.handed_over(19), "one of them is not known of any more"
    assert (
        judge.handed_over(20) == "controller 7 in a row gives its place away, and no node was met"
    )


@pytest.mark.parametrize(
    ("crashes_at", "kept", "waits_s"),
    [(104.0, 9, 40.0), (100.0 + SAID_S, 9, 0.0), (100.0 + SAID_S, 3, 40.0)],
    ids=["before it is said", "said and kept", "said, and lost with the journal"],
)
def test_whom_a_lost_controller_alone_had_met_its_successor_has_not(
    crashes_at: float, kept: int, waits_s: float
) -> None:
    judge = Succession()
    assert not any(judge.handed_over(seq) for seq in (1, 2, 3))
    judge.met(3, 100.0)
    judge.crashed(crashes_at)
    judge.forget(kept)
    assert judge.waits_s(1000.0) == waits_s


def test_it_takes_its_place_again_only_where_nobody_else_stands_by() -> None:
    judge = Succession()
    assert not judge.returned(standby=False)
    assert "takes its place again" in judge.returned(standby=True)


def test_new_nodes_that_die_one_after_the_other_come_slowly() -> None:
    judge = FairSupply(wanted=3)
    assert not any(judge.died(f"n{n}", 10.0 * n) for n in range(3 + DEATHS_MAX))
    assert "12 nodes in 600 s were asked for" in judge.died("n", 120.0)
    judge.started("m", 121.0)
    assert not judge.died("n", 122.0) and not judge.died("m", 123.0)
    slow = FairSupply(wanted=3)
    assert not any(slow.died(f"n{n}", 60.0 * n) for n in range(100))
    assert slow.useless(0)


def failing(*others: Entry) -> FairSupply:
    """Three nodes have failed, two of which said so, and then these came."""
    judge = FairSupply(wanted=3)
    for node in ("n0", "n1"):
        judge.journaled(entry(NodeLeft(node=node, failed="the forkserver dies while it starts")))
    judge.journaled(entry(NodeLeft(node="n3")))
    judge.died("n0", 1.0)
    assert not judge.useless(0) and judge.useless(1)
    judge.died("n2", 2.0)
    assert judge.useless(0)
    for one in others:
        judge.journaled(one)
    return judge


def test_nodes_that_fail_are_in_vain_unless_others_will_have_another_image() -> None:
    newer, code = Version(number=2, image="other"), Version(number=2, code="other")
    tick, again = DeadlinePassed(), ControllerResumed(existing=())
    asked = entry(tick, PrepareUpdate(version=newer, reason=""))
    assert failing(entry(tick, PrepareUpdate(version=code, reason=""))).useless(0)
    assert not failing(asked).useless(0)
    assert not failing(entry(again, *asked.actions)).useless(0)
    assert failing(asked, entry(again)).useless(0)
    assert failing(asked, entry(tick, KeepVersion(version=newer, reason=""))).useless(0)
    used = entry(tick, KeepVersion(version=newer, reason="")), asked
    assert failing(*used).useless(0), "it is the same image"
