"""A machine is remembered over jobs: bounded, for 28 days, and out for longer each time."""

import json

from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnosis import machine_memory as memories
from holdfast.diagnosis.lemons import WINDOW_S, LemonSignal
from holdfast.diagnosis.machine_memory import (
    AHEAD_S,
    CORDON_S,
    LIFTED,
    PASSED,
    MachineMemory,
    cordoned,
    cordons_most,
)

NOW = 2e9
DAY_S = 86_400.0
NEW = MachineMemory()


def out(memory: MachineMemory, now: float) -> MachineMemory:
    return cordoned(memory, by="team/run", why="GPU 0: XID 79", now=now)


def failing(memory: MachineMemory, now: float) -> MachineMemory:
    return memories.checked(memory, "memory: 3 words differ", by="the operator", now=now)


def until(memory: MachineMemory) -> int | None:
    assert memory.cordon is not None
    return memory.cordon.until


def test_signals_count_over_jobs_for_28_days() -> None:
    memory = memories.remembered(NEW, [(LemonSignal.XID, NOW), (LemonSignal.HANG, NOW)], NOW)
    memory = memories.remembered(memory, [(LemonSignal.LOST, NOW + 5)], NOW + 5)
    assert memories.is_lemon(memory, NOW + 5)
    later = NOW + WINDOW_S + 1
    assert memories.counts(memory, later) == {LemonSignal.LOST: 1}
    assert not memories.is_lemon(memory, later)


def test_the_same_signal_told_twice_is_counted_once() -> None:
    told = [(LemonSignal.XID, NOW)]
    memory = memories.remembered(memories.remembered(NEW, told, NOW), told, NOW)
    assert memories.counts(memory, NOW) == {LemonSignal.XID: 1}


def test_a_cordon_ends_by_a_check_that_passes_after_its_expiry_and_not_before() -> None:
    memory = out(NEW, NOW)
    assert until(memory) == NOW + CORDON_S
    early = memories.checked(memory, "", by="x", now=NOW + 10)
    assert early.cordon == memory.cordon and early.checked_at == NOW + 10
    assert not memories.is_due(memory, NOW + 10)
    back = memories.checked(memory, "", by="x", now=NOW + CORDON_S)
    assert back.cordon is None and back.cordons[-1].ended == PASSED


def test_each_cordon_is_longer_and_the_third_stays_until_a_person_lifts_it() -> None:
    memory, now = out(NEW, NOW), NOW + CORDON_S
    memory = failing(memory, now)
    assert until(memory) == now + 2 * CORDON_S, "the second"
    now += 2 * CORDON_S
    memory = failing(memory, now)
    assert until(memory) is None, "the third"
    for day in (1, 20):
        kept = memories.checked(memory, "", by="x", now=now + day * DAY_S)
        assert kept.cordon == memory.cordon, "no check returns it"
    lifted = memories.ended(memory, LIFTED, now + DAY_S)
    assert lifted.cordon is None
    assert until(out(lifted, now + 2 * DAY_S)) is not None, "what was before counts no more"


def test_a_machine_that_is_out_stays_so_for_its_first_reason() -> None:
    memory = out(NEW, NOW)
    assert cordoned(memory, by="team/other", why="again", now=NOW + 9) == memory
    assert memories.undone(memory, out(NEW, NOW + 9).cordon) == memory, "another job's"
    assert memories.undone(memory, memory.cordon) == NEW


def test_never_more_than_a_share_of_a_cluster_and_never_its_only_machine() -> None:
    assert [cordons_most(n, 0.1) for n in (0, 1, 2, 9, 19, 20, 1000)] == [0, 0, 1, 1, 1, 2, 100]
    assert cordons_most(1000, 0.0) == 0


def test_what_a_stranger_wrote_is_nothing() -> None:
    for text in ("", "{", "[]", '{"cordons": 3}', '{"signals": {"luck": [1]}}'):
        assert memories.read(text) == NEW


def test_what_is_no_time_that_can_be_written_as_a_date_is_what_a_stranger_wrote() -> None:
    cordon = {"at": int(NOW), "by": "x", "why": "y", "until": int(NOW)}
    assert memories.read(json.dumps({"cordons": [cordon]})).cordon is not None
    for at in (-1, 10**12, 10**30, 1e300):
        for key in ("at", "until", "ended_at"):
            assert memories.read(json.dumps({"cordons": [{**cordon, key: at}]})) == NEW, key
        assert memories.read(json.dumps({"signals": {"XIDs": [at]}})) == NEW


def test_a_cordon_that_begins_in_the_future_is_due_and_one_that_a_clock_differs_by_is_not() -> None:
    """Somebody's clock was wrong; else the machine would be out until that day, and a day more."""
    assert memories.is_due(out(NEW, NOW + 300 * DAY_S), NOW)
    assert not memories.is_due(out(NEW, NOW + AHEAD_S / 2), NOW)
    by_a_person = out(failing(failing(NEW, NOW), NOW), NOW)
    assert not memories.is_due(by_a_person, NOW)


def test_signals_and_cordons_of_the_future_count_for_nothing() -> None:
    later = NOW + 100 * DAY_S
    told = [(LemonSignal.XID, later), (LemonSignal.LOST, NOW + AHEAD_S / 2)]
    memory = memories.remembered(NEW, told, NOW)
    assert memories.counts(memory, NOW) == {LemonSignal.LOST: 1}
    for _ in range(2):
        memory = memories.ended(out(memory, later), PASSED, later)
    assert memories.times_out(memory, NOW) == 0 and until(out(memory, NOW)) == NOW + CORDON_S


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["signal", "cordon", "fail", "pass", "lift"]),
        st.sampled_from(list(LemonSignal)),
        st.integers(0, int(3 * DAY_S)),
    ),
    max_size=120,
)


@given(STEPS)
def test_whatever_happens_it_fits_into_an_annotation_and_reads_back(
    steps: list[tuple[str, LemonSignal, int]],
) -> None:
    memory, now = NEW, NOW
    for step, signal, after_s in steps:
        now += after_s
        match step:
            case "signal":
                memory = memories.remembered(memory, [(signal, now)], now)
            case "cordon":
                memory = cordoned(memory, by="n" * 63 + "/" + "j" * 50, why="w" * 999, now=now)
            case "fail":
                memory = memories.checked(memory, "f" * 999, by="the operator", now=now)
            case "pass":
                memory = memories.checked(memory, "", by="the operator", now=now)
            case _:
                memory = memories.ended(memory, LIFTED, now)
        assert sum(one.ended_at is None for one in memory.cordons) <= 1
    text = memories.written(memory)
    assert len(text) < 4096 and memories.read(text) == memory
