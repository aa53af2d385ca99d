"""The choice of a snapshot: always one that every rank can get, always the furthest."""

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.arena import Key
from holdfast.checkpoint.choose import Holding, RestorePlan, Snapshot, assembled, buddy_of, plan_for
from holdfast.checkpoint.key import newest_first

patient = settings(deadline=None)  # other tests may share the machine

all_keys = st.builds(Key, st.integers(1, 3), st.integers(1, 4))
some = st.frozensets(all_keys, max_size=2)
holdings = st.builds(Holding, some, some, some)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Holding], int]:
    nodes, local = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    size = nodes * local
    return draw(st.lists(holdings, min_size=size, max_size=size)), local


def choose(held: list[Holding], local: int) -> RestorePlan | None:
    """The newest that there is a plan for."""
    keys = newest_first({key for one in held for key in one.shared})
    plans = (plan_for(key, held, local) for key in keys)
    return next((plan for plan in plans if plan is not None), None)


def obtainable(key: Key, held: list[Holding], local: int) -> bool:
    """By the definition, rank by rank."""
    shared = any(key in h.shared for h in held)
    nodes = len(held) // local
    private = all(
        key in h.private or (nodes > 1 and key in held[(r + local) % len(held)].buddy)
        for r, h in enumerate(held)
    )
    return shared and private


@patient
@given(clusters())
def test_every_giver_holds_what_it_is_to_give(cluster: tuple[list[Holding], int]) -> None:
    held, local = cluster
    plan = choose(held, local)
    if plan is None:
        return
    for rank in range(len(held)):
        assert plan.key in held[plan.shared_from[rank]].shared
        giver = plan.private_from[rank]
        assert plan.key in (held[rank].private if giver == rank else held[giver].buddy)
        assert giver in (rank, buddy_of(rank, local, len(held)))


@patient
@given(clusters())
def test_nothing_further_could_have_been_had(cluster: tuple[list[Holding], int]) -> None:
    held, local = cluster
    plan = choose(held, local)
    keys = {Key(a, s) for a in range(1, 4) for s in range(1, 5)}
    possible = {(k.step, k.attempt) for k in keys if obtainable(k, held, local)}
    chosen = plan and (plan.key.step, plan.key.attempt)
    assert chosen == (max(possible) if possible else None)


@patient
@given(clusters())
def test_who_has_its_own_parts_asks_nobody(cluster: tuple[list[Holding], int]) -> None:
    held, local = cluster
    plan = choose(held, local)
    for rank, own in enumerate(held):
        if plan and plan.key in own.shared:
            assert plan.shared_from[rank] == rank
        if plan and plan.key in own.private:
            assert plan.private_from[rank] == rank


def test_a_later_attempt_that_went_on_from_an_older_snapshot_does_not_win_by_its_number() -> None:
    far, late = frozenset({Key(1, 9)}), frozenset({Key(2, 4)})
    both = Holding(far | late, far | late, frozenset())
    plan = choose([both, both], 2)
    assert plan is not None and plan.key == Key(1, 9)


def test_parts_of_two_attempts_are_never_put_together() -> None:
    first, second = frozenset({Key(1, 5)}), frozenset({Key(2, 5)})
    none = frozenset[Key]()
    assert choose([Holding(first, first, none), Holding(second, second, none)], 2) is None


def test_on_one_node_nobody_is_a_buddy() -> None:
    assert buddy_of(0, 4, 4) is None
    assert [buddy_of(r, 2, 6) for r in range(6)] == [2, 3, 4, 5, 0, 1]


@given(st.integers(1, 5), st.sets(st.integers(0, 6)), st.booleans())
def test_a_snapshot_of_another_layout_is_put_together_from_the_parts_of_all_its_ranks(
    size: int, ranks: set[int], common: bool
) -> None:
    one, other = Snapshot(Key(1, 5), size), Snapshot(Key(1, 5), size + 1)
    found = assembled([one] if common else [], {one: ranks, other: range(size + 1)})
    assert found == ([one] if common and ranks >= set(range(size)) else [])
