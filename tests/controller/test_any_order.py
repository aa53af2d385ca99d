"""Whatever is heard, in whatever order: the invariants hold and a replay gives the same state."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.controller import Controller, Limits, State
from holdfast.controller.invariants import check
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    ControllerResumed,
    DeadlinePassed,
    Diagnosed,
    ExitGroup,
    HealthChanged,
    Milestone,
    MilestoneReached,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeLostReason,
    NodeReady,
    Progress,
    Progressed,
    ScaleRequested,
    Severity,
    StopRequested,
    Store,
    UpdatePrepared,
    UpdateRequested,
    WorkerExited,
    WorkersExited,
    in_rows,
)
from holdfast.occurrences import Occurrence, Recurrence
from tests.more import examples

NODES = st.sampled_from(["a", "b", "c", "d"])
ATTEMPTS = st.integers(0, 4)
STEPS = st.one_of(st.none(), st.integers(0, 5))
STORES = st.builds(Store, st.just("h"), st.integers(1, 9), st.booleans())
PROGRESS = st.builds(Progress, step=STEPS, finished=st.booleans())
LIMITS = st.builds(
    Limits,
    node_count=st.integers(1, 2),
    min_nodes=st.integers(0, 1),
    max_nodes=st.sampled_from([0, 3]),
    copies=st.integers(0, 1),
    spare_count=st.integers(0, 1),
    max_restarts=st.integers(0, 3),
    window_s=st.just(50.0),
    node_wait_s=st.just(30.0),
    trial_steps=st.sampled_from([0, 3]),
)
EXITS = st.builds(
    WorkerExited,
    node=NODES,
    attempt=ATTEMPTS,
    rank=st.integers(0, 3),
    exit_code=st.sampled_from([0, 1]),
    progress=PROGRESS,
)
GROUPS = st.builds(
    ExitGroup,
    kind=st.sampled_from(["x", "x here", "y"]),
    first=EXITS,
    others=st.sets(st.integers(0, 3)).map(in_rows),
)
OCCURRENCES = st.builds(
    Occurrence,
    cause=st.just("device-error"),
    signature=st.sampled_from(["here", "there"]),
    rank=st.integers(0, 3),
    step=st.integers(1, 3),
    nodes=st.tuples(NODES),
    recurs=st.one_of(
        st.none(),
        st.builds(
            Recurrence,
            whose=st.sampled_from(["code", "machine"]),
            confidence=st.floats(0, 1),
            text=st.just("x"),
        ),
    ),
)
EVENTS: st.SearchStrategy[AnyEvent] = st.one_of(
    st.builds(NodeJoined, node=NODES, name=NODES, address=st.just("h"), workers=st.integers(1, 2)),
    st.builds(NodeReady, node=NODES, store=STORES, instrumented=st.booleans()),
    st.builds(NodeLost, node=NODES, reason=st.sampled_from(NodeLostReason)),
    st.builds(NodeLeft, node=NODES),
    st.builds(
        HealthChanged,
        node=NODES,
        condition=st.sampled_from(["xid-79", "link-down"]),
        severity=st.sampled_from(Severity),
    ),
    EXITS,
    st.builds(
        WorkersExited,
        attempt=ATTEMPTS,
        groups=st.lists(GROUPS, max_size=3).map(tuple),
        last_ago_s=st.just(0.0),
        progress=PROGRESS,
    ),
    st.builds(
        AttemptStopped,
        attempt=ATTEMPTS,
        store=st.one_of(st.none(), STORES),
        progress=PROGRESS,
    ),
    st.builds(MilestoneReached, attempt=ATTEMPTS, milestone=st.sampled_from(Milestone), step=STEPS),
    st.builds(Progressed, attempt=ATTEMPTS, progress=PROGRESS),
    st.builds(
        Diagnosed,
        attempt=ATTEMPTS,
        cause=st.sampled_from(["x", "device-error"]),
        summary=st.just("x"),
        confidence=st.just(1.0),
        rank=st.one_of(st.none(), st.integers(0, 3)),
        user_error=st.booleans(),
        signature=st.sampled_from([None, "here", "there"]),
        occurrence=st.one_of(st.none(), OCCURRENCES),
    ),
    st.builds(ScaleRequested, by=st.just("x"), nodes=st.integers(0, 4)),
    st.builds(
        UpdateRequested,
        by=st.just("x"),
        id=st.sampled_from(["1", "2", "3", "4"]),
        when=st.sampled_from(["now", "next-step", "next-failure"]),
        back=st.booleans(),
    ),
    st.builds(
        UpdatePrepared,
        version=st.integers(1, 4),
        ready_count=st.integers(0, 2),
        why=st.sampled_from(["", "", "x"]),
    ),
    st.builds(StopRequested, by=st.just("x"), now=st.booleans()),
    st.builds(DeadlinePassed),
    st.builds(ControllerResumed, existing=st.lists(NODES, max_size=4).map(tuple)),
)
TIMED = st.lists(st.tuples(EVENTS, st.floats(0, 40)), max_size=60)


@settings(max_examples=examples(300), deadline=None)
@given(limits=LIMITS, events=TIMED)
def test_invariants_hold_whatever_is_heard(
    limits: Limits, events: list[tuple[AnyEvent, float]]
) -> None:
    controller = Controller(limits)
    now = 0.0
    for event, later in events:
        now += later
        controller.handle(event, now)
        check(controller.state)
        deadline = controller.next_deadline()
        assert not controller.state.ended or deadline is None


@settings(max_examples=examples(100), deadline=None)
@given(limits=LIMITS, events=TIMED, cut=st.integers(0, 60))
def test_a_replay_and_a_saved_state_give_the_same_decisions(
    limits: Limits, events: list[tuple[AnyEvent, float]], cut: int
) -> None:
    first, second = Controller(limits), Controller(limits)
    now = 0.0
    for number, (event, later) in enumerate(events):
        now += later
        if number == cut:
            encoded = msgspec.json.encode(second.state)
            second = Controller(limits, msgspec.json.decode(encoded, type=State))
        assert first.handle(event, now) == second.handle(event, now)
    assert msgspec.json.encode(first.state) == msgspec.json.encode(second.state)
