"""The ladder: which step follows in which situation, and what holds in all of them."""

import math
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.controller import versions
from holdfast.controller.policies import ladder, poison, replace, shrink
from holdfast.controller.policies.ladder import choose
from holdfast.controller.policies.situation import (
    History,
    Means,
    Prices,
    Rung,
    Situation,
    Trouble,
)
from holdfast.diagnosis import CAUSES
from holdfast.diagnosis.verdict import Origin
from holdfast.events import Severity
from holdfast.occurrences import Recurrence
from tests.more import examples

SUM = "it is broken"
KILLED = Trouble(cause="worker-killed", summary=SUM, ended=True)
DEVICE = Trouble(cause="device-error", summary=SUM, ended=True, node="b", confidence=0.95)
GPU_LOST = Trouble(cause="hardware-fault", summary=SUM, ended=True, node="b", faulty=True)
SCRIPT = Trouble(cause="worker-exception", summary=SUM, ended=True, user_error=True)
STORAGE = Trouble(cause="environment", summary=SUM, ended=True, environment=True)
NAN = Trouble(cause="nan", summary=SUM, ended=True, bad_step=12)
LOST = Trouble(cause="node-lost", summary=SUM, ended=True)
SICK = Trouble(cause="hardware-fault", summary=SUM, node="b", faulty=True, trains=True)
ALERT = Trouble(cause=ladder.ALERT, summary=SUM, node="b", trains=True)
SLOW = Trouble(cause="straggler", summary=SUM, node="b", trains=True)
HANG = Trouble(cause="hang", summary=SUM, ended=True, node="b")
NAMELESS_HANG = Trouble(cause="hang", summary=SUM, ended=True)
ABORTED = Trouble(cause="worker-aborted", summary=SUM, ended=True)
DEVICE_LOST = Trouble(cause="device-lost", summary=SUM, ended=True, node="b", faulty=True)
MORE = Trouble(cause=ladder.RESIZED, trains=True)
SHORT = Trouble(cause="nodes-missing", summary=SUM)
ILLEGAL = Trouble(cause="device-error", summary=SUM, ended=True, confidence=0.95)
CODES = Recurrence(whose="code", confidence=0.8, text="it came on b and c")
MACHINES = Recurrence(whose="machine", confidence=0.6, text="it came only ever on b")

ONCE, TWICE = History(faults=1), History(faults=2)
AGAIN = History(again=True, restored=40)
OFTEN = History(nameless=ladder.NAMELESS)
SPARE = Means(spares=1, waiting=1, size=4, fewest=4, target=4)
NONE = Means(size=4, fewest=4, target=4)
GAP = Means(vacant=1, size=4, fewest=4, target=4)
FILLED = Means(vacant=1, spares=1, waiting=1, size=4, fewest=4, target=4)
HELD = Means(spares=1, waiting=1, size=4, fewest=4, target=4, held="4 removed", held_s=900.0)
CHECKED = Means(spares=1, waiting=1, size=4, fewest=4, target=4, checks=True)
ELASTIC = Means(vacant=1, size=4, fewest=2, target=4)
GROUPS = Means(spares=1, waiting=1, size=4, fewest=4, target=4, repeats=True)


class Row(NamedTuple):
    """A situation, the step that follows, and words of the reason."""

    step: Rung
    words: str
    trouble: Trouble
    history: History = History()
    means: Means = SPARE
    prices: Prices = Prices()


R = Rung
TABLE = {
    "a worker was killed": Row(R.RESTART, "no evidence against", KILLED),
    "and a node waits, but why leave one": Row(R.RESTART, "", KILLED, means=SPARE),
    "first device fault": Row(R.RESTART, "fault 1 of b", DEVICE, ONCE),
    "second device fault, with a spare": Row(R.REPLACE, "2 device faults", DEVICE, TWICE),
    "second device fault, without one": Row(R.RESTART, "keeping the suspect", DEVICE, TWICE, NONE),
    "without one, and no progress at all": Row(
        R.REPLACE, "2 device faults", DEVICE, History(faults=2, fruitless=2), NONE
    ),
    "device faults, but nodes stay": Row(
        R.RESTART, "not replaced", DEVICE, TWICE, Means(spares=1, waiting=1, replace_after=0)
    ),
    "an uncertain verdict blames no machine": Row(
        R.RESTART, "too uncertain", msgspec.structs.replace(DEVICE, confidence=0.4), TWICE
    ),
    "a GPU or disk is lost: at once": Row(R.REPLACE, SUM, GPU_LOST, ONCE),
    "it is, and no spare is sound": Row(R.RESTART, "keeping the suspect", GPU_LOST, ONCE, NONE),
    "the worker says that its GPU is lost: at once": Row(R.REPLACE, SUM, DEVICE_LOST, ONCE),
    "it is, and too many were left": Row(R.RESTART, "4 removed", GPU_LOST, ONCE, HELD),
    "second device fault, and too many were left": Row(R.RESTART, "4 removed", DEVICE, TWICE, HELD),
    "first device fault, and too many were left": Row(R.RESTART, "fault 1", DEVICE, ONCE, HELD),
    "it is, too many were left, and attempts with it make no progress": Row(
        R.WAIT,
        "4 removed: b may be replaced in 900 s; further restarts with it do not count against "
        "recovery.max_restarts; next attempt with it in 40 s",
        GPU_LOST, History(faults=5, fruitless=4, kept=4, stays=True), HELD
    ),
    "and the cap is reached by then": Row(
        R.WAIT, "next attempt with it in 300 s",
        GPU_LOST, History(fruitless=9, kept=9, stays=True, restarts=20, barren=20), HELD
    ),
    "the cap is reached, and attempts with it make progress": Row(
        R.RESTART, "4 removed: b may be replaced in 900 s; further restarts",
        GPU_LOST, History(kept=1, stays=True, restarts=20), HELD
    ),
    "the cap is reached, and it has failed for the first time": Row(
        R.GIVE_UP, "all of them used", GPU_LOST, History(kept=9, restarts=20), HELD
    ),
    "it may be left before the wait would end": Row(
        R.WAIT, "b may be replaced in 7 s; further restarts with it do not count",
        GPU_LOST, History(fruitless=9, kept=9, stays=True),
        msgspec.structs.replace(HELD, held_s=7.0)
    ),
    "likewise, and there is an older checkpoint": Row(
        R.WAIT, "4 removed", GPU_LOST, History(fruitless=4, kept=4, stays=True, restored=9),
        msgspec.structs.replace(HELD, older=4)
    ),
    "likewise, and machines can be checked": Row(
        R.WAIT, "4 removed", DEVICE, History(faults=2, fruitless=4, kept=4, stays=True),
        msgspec.structs.replace(HELD, checks=True)
    ),
    "likewise, and no spare waits": Row(
        R.GIVE_UP, "all of them used", GPU_LOST, History(kept=9, stays=True, restarts=20),
        msgspec.structs.replace(HELD, spares=0)
    ),
    "one node hangs again and again, and too many were left": Row(
        R.WAIT, "4 removed", HANG, History(fruitless=3, named=3), HELD
    ),
    "an error only ever on one node, and too many were left": Row(
        R.RESTART, "4 removed", SCRIPT, History(recurs=MACHINES), HELD
    ),
    "it trains, its GPU is lost, and too many were left": Row(
        R.CARRY_ON, "4 removed", SICK, means=HELD
    ),
    "a node is lost, and too many were left": Row(
        R.REPLACE, "1 node waits", LOST,
        means=Means(vacant=1, spares=1, waiting=1, size=4, fewest=4, target=4, held="4 removed"),
    ),
    "a version on trial failed": Row(
        R.ROLL_CODE, "version 2", SCRIPT, History(unproven="version 2 failed", again=True)
    ),
    "attempt after attempt aborts": Row(
        R.CHECK, "2 attempts in a row", ABORTED, History(fruitless=2), CHECKED
    ),
    "steps had become slower before it was killed": Row(
        R.CHECK, "steps had become slower than usual", KILLED, History(slowed=True), CHECKED
    ),
    "they had, and machines have passed since": Row(
        R.RESTART, "", KILLED, History(slowed=True, checked=True), CHECKED
    ),
    "they had, and machines are not checked": Row(R.RESTART, "", KILLED, History(slowed=True)),
    "they had, and the script has failed": Row(
        R.RESTART, "second attempt", SCRIPT, History(slowed=True), CHECKED
    ),
    "it does, and machines are not checked": Row(
        R.RESTART, "no evidence against", ABORTED, History(fruitless=2)
    ),
    "it does, and all machines have passed": Row(
        R.RESTART, "", ABORTED, History(fruitless=9, checked=True), CHECKED
    ),
    "one node hangs again and again": Row(
        R.ISOLATE, "3 attempts in a row failed because of b", HANG, History(fruitless=3, named=3)
    ),
    "it does, its machine was not checked": Row(
        R.CHECK, "", HANG, History(fruitless=3, named=3), CHECKED
    ),
    "it hangs, and no spare waits": Row(
        R.RESTART, "", HANG, History(fruitless=3, named=3), NONE
    ),
    "a hang that names nobody, often": Row(
        R.REPLAY, "hang 3 times within 3600 s", NAMELESS_HANG, OFTEN, GROUPS
    ),
    "so often, and one is named": Row(R.RESTART, "", HANG, OFTEN, GROUPS),
    "so often, and groups are not tested": Row(R.RESTART, "", NAMELESS_HANG, OFTEN),
    "attempt after attempt aborts, and machines have passed": Row(
        R.REPLAY, "2 attempts in a row", ABORTED, History(fruitless=2, checked=True), GROUPS
    ),
    "the loss is NaN again, nothing older, groups may tell": Row(
        R.REPLAY, "a machine may be the cause", NAN, History(bad_again=True, restored=9), GROUPS
    ),
    "a device error that comes wherever its step is done": Row(
        R.RESTART, "it came on b and c", ILLEGAL, History(recurs=CODES, fruitless=2), CHECKED
    ),
    "an error of the script that comes only ever on one node": Row(
        R.ISOLATE, "only ever on b", SCRIPT, History(recurs=MACHINES)
    ),
    "it does, and no spare waits": Row(
        R.RESTART, "only ever on b", SCRIPT, History(recurs=MACHINES), NONE
    ),
    "it does, and nodes stay": Row(
        R.RESTART, "", SCRIPT, History(recurs=MACHINES),
        Means(spares=1, waiting=1, replace_after=0),
    ),
    "it does, and the same came at the same step": Row(
        R.GIVE_UP, "the same error", SCRIPT, msgspec.structs.replace(AGAIN, recurs=MACHINES)
    ),
    "an error of the script": Row(R.RESTART, "second attempt", SCRIPT),
    "the same again": Row(R.GIVE_UP, "the same error repeated", SCRIPT, AGAIN),
    "the same again, but restarts were asked for": Row(
        R.RESTART,
        "restart 3 of 5 for it",
        SCRIPT,
        History(again=True, barren=2),
        Means(exact=True, max_restarts=5),
    ),
    "the same again, and an older checkpoint": Row(
        R.ROLL_BACK, "step 40 was restored", SCRIPT, AGAIN, Means(older=20)
    ),
    "and the older one did not help": Row(
        R.GIVE_UP,
        "the same error",
        SCRIPT,
        History(again=True, restored=40, spent=True),
        Means(older=20),
    ),
    "restored twice, the same crash": Row(
        R.ROLL_BACK, "step 40", KILLED, History(poisoned=True, restored=40), Means(older=20)
    ),
    "likewise, but storage was away": Row(
        R.RESTART, "have recovered", STORAGE, History(poisoned=True, restored=40), Means(older=20)
    ),
    "no checkpoint can be restored": Row(
        R.GIVE_UP, SUM, Trouble(cause="checkpoint-unusable", summary=SUM, ended=True, final=True)
    ),
    "storage is away": Row(R.RESTART, "in 5 s", STORAGE, History(fruitless=1)),
    "twice at the same line": Row(R.RESTART, "in 10 s", STORAGE, History(fruitless=2, restored=7)),
    "so often that the cap is reached": Row(
        R.RESTART, "in 900 s", STORAGE, History(fruitless=20, restarts=20, freed_s=900.0)
    ),
    "for a whole window": Row(
        R.GIVE_UP, "for 3600 s, through 18", STORAGE, History(barren=18, trouble_s=3600.0)
    ),
    "a crash loop": Row(R.GIVE_UP, "all of them used", KILLED, History(restarts=20)),
    "a slow crash loop": Row(
        R.GIVE_UP, "20 restarts in a row without progress", KILLED, History(restarts=3, barren=20)
    ),
    "slow restarts between which there was progress": Row(
        R.RESTART, "no evidence against", KILLED, History(restarts=3, barren=0)
    ),
    "the loss is NaN": Row(R.ROLL_BACK, "before step 12", NAN),
    "again there": Row(
        R.ROLL_BACK, "step 9 was", NAN, History(bad_again=True, restored=9), Means(older=4)
    ),
    "again there, nothing older": Row(
        R.GIVE_UP, "step 12 again, after step 9", NAN, History(bad_again=True, restored=9)
    ),
    "somebody wants to stop then": Row(
        R.GIVE_UP, "on_nan is stop", msgspec.structs.replace(NAN, stops=True)
    ),
    "somebody does not care": Row(
        R.CARRY_ON, "ignore", msgspec.structs.replace(NAN, trains=True, harmless="ignore")
    ),
    "a node is lost, a spare waits": Row(R.REPLACE, "1 node waits", LOST, means=FILLED),
    "a node is lost, none waits": Row(R.WAIT, "is unknown", LOST, means=GAP),
    "it trains, and its GPU is lost": Row(R.REPLACE, SUM, SICK),
    "and nobody can take over": Row(R.CARRY_ON, "keeping the suspect node", SICK, means=NONE),
    "one alert of the network": Row(R.CARRY_ON, "2 within 300 s", ALERT),
    "a rank is slow": Row(R.CARRY_ON, "slow nodes are replaced only", SLOW),
    "and the job asks": Row(
        R.REPLACE, SUM, SLOW, means=Means(spares=1, waiting=1, stragglers=True)
    ),
    "asks, and no spare waits": Row(R.CARRY_ON, "", SLOW, means=Means(stragglers=True)),
    "slow by its input": Row(
        R.CARRY_ON,
        "another node",
        msgspec.structs.replace(SLOW, harmless="it would be as slow on another node"),
        means=Means(spares=1, waiting=1, stragglers=True),
    ),
    "short, before the break-even": Row(
        R.WAIT, "worth waiting up to 70 s", SHORT, means=ELASTIC, prices=Prices(waited_s=69.0)
    ),
    "short, at the break-even": Row(
        R.SHRINK, "1 of 4 nodes", SHORT, means=ELASTIC, prices=Prices(waited_s=70.0)
    ),
    "short, and they come soon": Row(
        R.WAIT, "expected in 20 s", SHORT, means=ELASTIC, prices=Prices(expected_s=20.0)
    ),
    "short, and they take longer": Row(
        R.SHRINK, "none came", SHORT, means=ELASTIC, prices=Prices(expected_s=71.0)
    ),
    "short, and none will come": Row(
        R.SHRINK, "no more", msgspec.structs.replace(SHORT, alone=True), means=ELASTIC
    ),
    "too few, and none will come": Row(
        R.GIVE_UP, SUM, msgspec.structs.replace(SHORT, alone=True), means=GAP
    ),
    "more nodes are ready": Row(
        R.GROW, "2 more are ready", MORE, means=Means(size=2, target=4, spares=2, waiting=2)
    ),
    "more, just after a change": Row(
        R.CARRY_ON,
        "not paid for itself",
        MORE,
        means=Means(size=2, target=4, spares=2, waiting=2),
        prices=Prices(since_change_s=1.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE.keys())
def test_the_table(row: Row) -> None:
    chosen = choose(Situation(
        trouble=row.trouble, history=row.history, means=row.means, prices=row.prices
    ))  # fmt: skip
    assert (chosen.rung, row.words in chosen.reason) == (row.step, True), chosen.reason
    assert [one.rung for one in chosen.weighed] == list(Rung)


def test_every_step_is_in_the_table_of_this_test() -> None:
    assert {row.step for row in TABLE.values()} == set(Rung)


@pytest.mark.parametrize("cause", sorted(CAUSES))
def test_no_cause_that_lies_in_the_code_or_around_it_takes_a_machine(cause: str) -> None:
    origin = CAUSES[cause].origin
    trouble = Trouble(
        cause=cause,
        summary=SUM,
        ended=True,
        node="b",
        user_error=origin is Origin.CODE,
        environment=origin is Origin.ENVIRONMENT,
    )
    chosen = choose(Situation(trouble=trouble, history=History(faults=99), means=SPARE))
    blames = origin is Origin.ELSEWHERE and replace.blames_machine(cause)
    assert (chosen.rung is Rung.REPLACE) == blames


@pytest.mark.parametrize(
    ("severity", "alerts", "lasts"),
    [(Severity.FATAL, 0, True), (Severity.ALERT, 1, False), (Severity.ALERT, 2, True)],
)
def test_a_lost_device_lasts_and_one_alert_does_not(
    severity: Severity, alerts: int, lasts: bool
) -> None:
    assert ladder.is_lasting(severity, alerts) == lasts


def test_what_was_measured_decides_and_not_what_was_assumed() -> None:
    """The same wait is too long for a job that starts in 5 s, and short for one that takes 300."""
    steps = {
        start_s: choose(Situation(
            trouble=SHORT, means=ELASTIC, prices=Prices(change_s=start_s, waited_s=60.0)
        )).rung
        for start_s in (5.0, 300.0)
    }  # fmt: skip
    assert steps == {5.0: Rung.SHRINK, 300.0: Rung.WAIT}


# ── whatever the situation ──

FLAG, COUNT, TIME = st.booleans(), st.integers(0, 5), st.floats(0.0, 1e6)
CAUSE = st.sampled_from([*CAUSES, ladder.ALERT, "nodes-missing"])
TROUBLES = st.builds(
    Trouble,
    cause=CAUSE,
    summary=st.sampled_from(["", SUM]),
    confidence=st.floats(0, 1),
    user_error=FLAG,
    environment=FLAG,
    final=FLAG,
    ended=FLAG,
    trains=FLAG,
    harmless=st.sampled_from(["", "never mind"]),
    node=st.sampled_from(["", "b"]),
    faulty=FLAG,
    bad_step=st.one_of(st.none(), st.integers(1, 9)),
    stops=FLAG,
    alone=FLAG,
)
HISTORIES = st.builds(
    History,
    faults=COUNT,
    again=FLAG,
    bad_again=FLAG,
    poisoned=FLAG,
    spent=FLAG,
    restored=st.one_of(st.none(), COUNT),
    fruitless=st.integers(0, 2000),
    barren=COUNT,
    restarts=COUNT,
    freed_s=TIME,
    trouble_s=st.one_of(st.none(), TIME),
    growths=st.integers(0, 50),
    unproven=st.sampled_from(["", "version 2 failed"]),
    checked=FLAG,
    slowed=FLAG,
    named=COUNT,
    nameless=COUNT,
    kept=COUNT,
    stays=FLAG,
    recurs=st.sampled_from([None, CODES, MACHINES]),
)


@st.composite
def means(draw: st.DrawFn) -> Means:
    size = draw(st.integers(1, 20_000))
    fewest, waiting = draw(st.integers(1, size)), draw(st.integers(0, 9))
    return Means(
        spares=draw(st.integers(0, waiting)),
        waiting=waiting,
        vacant=draw(st.integers(0, min(size, 9))),
        size=size,
        fewest=fewest,
        target=draw(st.integers(fewest, size + 3)),
        older=draw(st.one_of(st.none(), COUNT)),
        replace_after=draw(st.integers(0, 3)),
        held=draw(st.sampled_from(["", "4 removed"])),
        held_s=draw(TIME),
        stragglers=draw(FLAG),
        checks=draw(FLAG),
        repeats=draw(FLAG),
        max_restarts=draw(COUNT),
        exact=draw(FLAG),
        window_s=draw(st.floats(1.0, 1e5)),
        node_wait_s=draw(TIME),
    )


PRICES = st.builds(
    Prices,
    stop_s=TIME,
    start_s=TIME,
    move_s=TIME,
    arrival_s=TIME,
    expected_s=st.one_of(st.none(), TIME),
    waited_s=TIME,
    since_change_s=st.one_of(st.none(), TIME),
    change_s=TIME,
    step_s=TIME,
    redone=COUNT,
    behind=st.integers(0, 10_000),
)
SITUATIONS = st.builds(
    Situation, trouble=TROUBLES, history=HISTORIES, means=means(), prices=PRICES
).filter(  # as `versions.unproven` has it
    lambda s: not (s.history.unproven and s.trouble.cause in versions.INNOCENT)
)


@settings(max_examples=examples(400), deadline=None)
@given(SITUATIONS)
def test_the_cheapest_step_that_would_do_is_taken_and_all_are_weighed(s: Situation) -> None:
    chosen = choose(s)
    assert [one.rung for one in chosen.weighed] == list(Rung)
    would_do = [one for one in chosen.weighed if not one.against]
    assert all(math.isfinite(one.cost_s) and one.cost_s >= 0 for one in chosen.weighed)
    best = min(would_do, key=lambda one: one.cost_s)
    assert (chosen.rung, chosen.reason) == (best.rung, best.reason)
    assert (chosen.outcome is not None) == (chosen.rung is Rung.GIVE_UP)
    assert chosen.rung is not Rung.GIVE_UP or len(would_do) == 1, "the last resort"
    assert choose(s) == chosen


@settings(max_examples=examples(400), deadline=None)
@given(SITUATIONS)
def test_no_machine_is_left_for_the_script_or_its_surroundings_or_by_a_guess(s: Situation) -> None:
    asked = bool(ladder.asks_node(s))
    trouble = s.trouble
    assert not (asked and (trouble.user_error or trouble.environment))
    assert not (asked and trouble.cause == replace.STRAGGLER and not s.means.stragglers)
    assert not (asked and replace.blames_machine(trouble.cause) and trouble.confidence < 0.5)
    assert not (asked and trouble.trains and not s.means.spares), "it is better than none"
    assert not (s.means.held and (asked or ladder.asks_isolation(s)))


@settings(max_examples=examples(400), deadline=None)
@given(SITUATIONS)
def test_what_trains_soundly_is_only_stopped_for_something_better(s: Situation) -> None:
    chosen = choose(s)
    if not s.trouble.trains:
        assert chosen.rung not in (Rung.CARRY_ON, Rung.GROW)
    elif s.trouble.harmless:
        assert chosen.rung in (Rung.CARRY_ON, Rung.GROW)
    elif s.trouble.cause in (ladder.ALERT, replace.STRAGGLER) and s.trouble.bad_step is None:
        assert chosen.rung in (Rung.CARRY_ON, Rung.REPLACE)
        assert chosen.rung is not Rung.REPLACE or s.means.spares > 0


@pytest.mark.parametrize(
    ("most", "said"),
    [
        (0, "no restart is allowed; last: "),
        (1, "1 restart in 3600 s is allowed, and was used; last: "),
        (2, "2 restarts in 3600 s are allowed, all of them used; last: "),
    ],
)
def test_the_account_of_a_cap_says_how_many_were_allowed(most: int, said: str) -> None:
    """Found by hand: "1 restarts are allowed, all of them used", and the same of none."""
    trouble = Trouble(cause="worker-killed", summary="it was killed", ended=True)
    means = Means(max_restarts=most, exact=True)
    chosen = choose(Situation(trouble=trouble, history=History(restarts=most), means=means))
    assert chosen.reason == f"{said}it was killed"


@settings(max_examples=examples(400), deadline=None)
@given(SITUATIONS)
def test_a_job_ends_with_an_account_and_not_while_it_may_try(s: Situation) -> None:
    chosen, end = choose(s), ladder.ending(s)
    if chosen.rung is not Rung.GIVE_UP:
        return
    assert end is not None or s.trouble.alone or s.trouble.trains
    if end is not None:
        assert (chosen.outcome, chosen.reason) == end
        used = max(s.history.restarts, s.history.barren) >= s.means.max_restarts
        assert not s.trouble.ended or used or _hopeless(s)


def _hopeless(s: Situation) -> bool:
    """Something other than the cap on restarts ends it."""
    trouble, history = s.trouble, s.history
    stops = trouble.stops or trouble.final or trouble.bad_step is not None
    return stops or history.again or trouble.environment


@settings(max_examples=examples(400), deadline=None)
@given(st.integers(2, 10_000), st.data())
def test_waiting_and_shrinking_change_places_at_the_break_even(
    size: int, data: st.DataObject
) -> None:
    missing = data.draw(st.integers(1, size - 1))
    change_s = data.draw(st.floats(0.1, 1e4))
    even_s = shrink.break_even_s(size, missing, change_s)
    means = Means(vacant=missing, size=size, fewest=1, target=size, node_wait_s=math.inf)
    for share, step in ((0.99, Rung.WAIT), (1.01, Rung.SHRINK)):
        prices = Prices(change_s=change_s, waited_s=share * even_s)
        assert choose(Situation(trouble=SHORT, means=means, prices=prices)).rung is step
        prices = Prices(change_s=change_s, expected_s=share * even_s)
        assert choose(Situation(trouble=SHORT, means=means, prices=prices)).rung is step


@settings(max_examples=examples(200), deadline=None)
@given(SITUATIONS)
def test_state_is_never_rolled_back_for_causes_that_no_older_one_would_change(
    s: Situation,
) -> None:
    innocent = s.trouble.environment or s.trouble.cause in poison.INNOCENT
    if innocent and s.trouble.bad_step is None:
        assert choose(s).rung is not Rung.ROLL_BACK
