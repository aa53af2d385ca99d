"""Which cluster runs the job: rules, and worlds of clusters that come and go."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast.operator.federation.decide import (
    GAP_S,
    FederationState,
    Offer,
    Order,
    Role,
    Seen,
    Standing,
    Terms,
    Withdraw,
    decide,
    over,
)
from tests.more import examples

TERMS = Terms(max_wait_s=100.0, lost_after_s=50.0)
AWAY = Seen(reachable=False)
EMPTY = Seen(reachable=True)
WAITS = Seen(reachable=True, there=True, made=True, controlled=True)
RUNS = Seen(reachable=True, there=True, made=True, admitted=True, controlled=True)
ENDED = Seen(reachable=True, there=True, made=True, outcome="succeeded")
ORPHAN = Seen(reachable=True, there=True, made=True)


def after(
    *looks: tuple[float, list[Seen]], state: FederationState | None = None
) -> tuple[FederationState, list[Order]]:
    """The state and the orders after a series of looks."""
    now = state or FederationState(tuple(Standing() for _ in looks[0][1]))
    orders: list[Order] = []
    for at, seen in looks:
        now, orders = decide(now, seen, [TERMS] * len(seen), at)
    return now, orders


def roles(state: FederationState) -> list[Role]:
    return [standing.role for standing in state.standings]


START = (1000.0, [EMPTY, EMPTY])


def test_the_first_is_asked_first_and_again_until_it_is_seen_there() -> None:
    assert after(START)[1] == [Offer(0, 1)]
    assert after(START, (1005.0, [EMPTY, EMPTY]))[1] == [Offer(0, 1)]
    assert after(START, (1005.0, [WAITS, EMPTY]))[1] == []


def test_a_job_that_is_half_made_is_made_again() -> None:
    half = Seen(reachable=True, there=True)
    assert after(START, (1005.0, [half, EMPTY]))[1] == [Offer(0, 1)]


def test_the_one_that_admits_it_runs_it() -> None:
    state, orders = after(START, (1010.0, [RUNS, EMPTY]), (2000.0, [RUNS, EMPTY]))
    assert roles(state) == [Role.RUNS, Role.IDLE] and not orders


def test_the_next_is_asked_only_when_the_first_has_let_go() -> None:
    late = (START, (1050.0, [WAITS, EMPTY]), (1100.0, [WAITS, EMPTY]))
    assert after(*late)[1] == [Withdraw(0)]
    assert after(*late, (1105.0, [WAITS, EMPTY]))[1] == [Withdraw(0)]
    assert after(*late, (1110.0, [EMPTY, EMPTY]))[1] == [Offer(1, 2)]


def test_after_the_last_the_first_is_asked_again() -> None:
    state = FederationState(
        (Standing(Role.IDLE), Standing(Role.OFFERED, 1000.0)), term=2, next=1, at=1090.0
    )
    state, orders = after((1100.0, [EMPTY, WAITS]), state=state)
    assert orders == [Withdraw(1)]
    assert after((1105.0, [EMPTY, EMPTY]), state=state)[1] == [Offer(0, 3)]


def test_a_cluster_that_refuses_the_job_need_not_be_waited_for() -> None:
    refused = Seen(reachable=True, refused="quota")
    state, _ = after(START, (1001.0, [refused, EMPTY]))
    assert roles(state)[0] is Role.LEAVING
    assert after((1002.0, [EMPTY, EMPTY]), state=state)[1] == [Offer(1, 2)]


@pytest.mark.parametrize("trouble", [AWAY, ORPHAN, EMPTY])
def test_a_loss_is_one_only_after_its_time(trouble: Seen) -> None:
    runs = (START, (1010.0, [RUNS, EMPTY]), (1020.0, [trouble, EMPTY]))
    assert roles(after(*runs, (1069.0, [trouble, EMPTY]))[0])[0] is Role.RUNS
    assert (
        roles(after(*runs, (1060.0, [RUNS, EMPTY]), (1071.0, [trouble, EMPTY]))[0])[0] is Role.RUNS
    )
    assert roles(after(*runs, (1070.0, [trouble, EMPTY]))[0])[0] in (Role.LOST, Role.LEAVING)


def test_a_lost_cluster_is_cleared_before_anything_else_happens_there() -> None:
    state, orders = after(START, (1010.0, [RUNS, EMPTY]), (1020.0, [AWAY, EMPTY]),
                          (1070.0, [AWAY, EMPTY]))  # fmt: skip
    assert orders == [Offer(1, 2)]
    state, orders = after((1080.0, [RUNS, RUNS]), state=state)
    assert orders == [Withdraw(0)] and roles(state) == [Role.LEAVING, Role.RUNS]
    assert roles(after((1085.0, [EMPTY, RUNS]), state=state)[0]) == [Role.IDLE, Role.RUNS]


def test_a_cluster_without_a_controller_is_cleared_before_another_is_asked() -> None:
    state, orders = after(START, (1010.0, [RUNS, EMPTY]), (1020.0, [ORPHAN, EMPTY]),
                          (1070.0, [ORPHAN, EMPTY]))  # fmt: skip
    assert orders == [Withdraw(0)]
    assert after((1075.0, [EMPTY, EMPTY]), state=state)[1] == [Offer(0, 2)]


def test_silence_everywhere_is_our_own() -> None:
    state, orders = after(START, (1010.0, [RUNS, EMPTY]), (1020.0, [AWAY, AWAY]),
                          (1050.0, [AWAY, AWAY]), (1090.0, [AWAY, EMPTY]))  # fmt: skip
    assert roles(state)[0] is Role.RUNS and not orders


def test_time_that_nobody_watched_does_not_count() -> None:
    state, _ = after(START, (1010.0, [RUNS, EMPTY]), (1020.0, [AWAY, EMPTY]))
    state, _ = after((1021.0 + GAP_S, [AWAY, EMPTY]), state=state)
    assert roles(state)[0] is Role.RUNS


def test_the_end_is_the_end_once_nothing_is_left_anywhere() -> None:
    state, orders = after(START, (1010.0, [RUNS, EMPTY]), (1020.0, [ENDED, EMPTY]))
    assert (state.outcome, orders, over(state)) == ("succeeded", [], True)
    lost = FederationState((Standing(Role.LOST), Standing(Role.RUNS)), term=2, at=1000.0)
    state, _ = after((1005.0, [AWAY, ENDED]), state=lost)
    assert state.outcome == "succeeded" and not over(state)
    state, orders = after((1010.0, [RUNS, ENDED]), state=state)
    assert orders == [Withdraw(0)]
    assert over(after((1015.0, [EMPTY, ENDED]), (1100.0, [EMPTY, AWAY]), state=state)[0])


def test_what_is_found_at_the_start_is_kept_but_only_once() -> None:
    state, orders = after((1000.0, [EMPTY, RUNS, WAITS]))
    assert roles(state) == [Role.IDLE, Role.OFFERED, Role.LEAVING]
    assert orders == [Withdraw(2)]
    state, _ = after((1005.0, [EMPTY, RUNS, EMPTY]), state=state)
    assert roles(state) == [Role.IDLE, Role.RUNS, Role.IDLE]


# ── worlds ────────────────────────────────────────────────────────────────────────────────────

STEP_S = 10.0


class World:
    """Clusters that are cut off, fill up and lose controllers; orders reach only those in reach."""

    def __init__(self, count: int) -> None:
        self.reach = [True] * count
        self.room = [True] * count
        self.control = [True] * count
        self.job = [False] * count

    def seen(self) -> list[Seen]:
        return [
            Seen(True, job, job, job and room, job and control) if reach else AWAY
            for reach, room, control, job in zip(
                self.reach, self.room, self.control, self.job, strict=True
            )
        ]

    def suffer(self, what: str, who: int) -> None:
        flags: list[bool] = getattr(self, what)
        flags[who % len(flags)] ^= True


blows = st.tuples(st.sampled_from(["reach", "room", "control", "nothing"]), st.integers(0, 2))


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 3), st.lists(blows, max_size=40), st.data())
def test_no_world_makes_two_clusters_run_it_that_can_be_reached(
    count: int, story: list[tuple[str, int]], data: Any
) -> None:
    world, now = World(count), 1000.0
    state = FederationState(tuple(Standing() for _ in range(count)))
    for what, who in story:
        if what != "nothing":
            world.suffer(what, who)
        state, orders = look(world, state, now, late=data.draw(st.booleans()))
        now += STEP_S
        running = [s for s in state.standings if s.role in (Role.OFFERED, Role.RUNS)]
        assert len(running) <= 1
        assert not any(isinstance(o, Offer) for o in orders) or len(orders) == 1


def look(
    world: World, state: FederationState, now: float, *, late: bool
) -> tuple[FederationState, list[Order]]:
    """One decision, carried out where that is possible; `late`: a removal takes longer."""
    seen = world.seen()
    state, orders = decide(state, seen, [TERMS] * len(seen), now)
    for order in orders:
        match order:
            case Offer(cluster=i):
                others = [j for j, job in enumerate(world.job) if job and j != i]
                assert all(state.standings[j].role is Role.LOST for j in others), state
                assert not world.job[i], "nothing is offered where something may be left"
                world.job[i] = world.reach[i]
            case Withdraw(cluster=i):
                world.job[i] = world.job[i] and late
    return state, orders


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(1, 3), st.lists(blows, max_size=20), st.integers(0, 2))
def test_once_the_world_is_well_the_job_runs_in_one_cluster(
    count: int, story: list[tuple[str, int]], good: int
) -> None:
    world, now = World(count), 1000.0
    state = FederationState(tuple(Standing() for _ in range(count)))
    for what, who in story:
        if what != "nothing":
            world.suffer(what, who)
        state, _ = look(world, state, now, late=False)
        now += STEP_S
    world.reach, world.control = [True] * count, [True] * count
    world.room = [i == good % count for i in range(count)]
    for _ in range(60 * count):
        state, _ = look(world, state, now, late=False)
        now += STEP_S
    assert roles(state).count(Role.RUNS) == 1
    assert world.job == [role is Role.RUNS for role in roles(state)]
