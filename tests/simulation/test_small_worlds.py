"""Small worlds: a few facts of two nodes in every order in which they can come.

A swarm draws worlds; here nothing is drawn. Each case takes up to six things that happen, goes
through the interleavings that keep the order within a lane, and lets each of them end in calm: one
in five, or all of them with HOLDFAST_TEST_MORE=1.
The invariants are checked after each fact, the referees hear each order, and wherever the order of
things must not matter the end is the same.
"""

import itertools
from collections.abc import Iterator
from math import factorial, prod

import pytest

from holdfast.controller import Controller
from tests.more import MORE, sample
from tests.simulation.site import Site

JOINED = ("a connects", "b connects", "a readies", "b readies")
TRAINS = (*JOINED, "a reports", "b reports")
Lanes = tuple[tuple[str, ...], ...]
End = tuple[str, int, int]  # phase, attempts, incidents


def each(*phrases: str) -> Lanes:
    """A lane for each: they may come in any order."""
    return tuple((phrase,) for phrase in phrases)


CASES: dict[str, tuple[tuple[str, ...], Lanes, set[End]]] = {
    "two nodes join": (
        (),
        (("a connects", "a readies", "a reports"), ("b connects", "b readies", "b reports")),
        {("running", 1, 0)},
    ),
    "nodes are ready before they are connected, and connections break": (
        (),
        (*each("a connects", "a readies", "b connects", "b readies"), ("a blips", "b blips")),
        {("running", 1, 0)},
    ),
    "both workers fail": (
        TRAINS,
        each("a exits", "b exits", "a answers", "b answers", "a reports", "b reports"),
        {("running", 2, 1), ("running", 3, 2)},
    ),
    "both workers fail and fail again": (
        TRAINS,
        (("a exits", "a answers", "a exits"), ("b exits", "b answers", "b exits")),
        {("running", 3, 2)},
    ),
    "a worker fails while its node is cut off": (
        TRAINS,
        each("a blips", "a exits", "a connects", "a answers", "b answers", "b exits"),
        {("running", 2, 1), ("running", 3, 2)},
    ),
    "a node dies, the other one fails, a third one comes": (
        TRAINS,
        each("a dies", "b exits", "b answers", "b reports", "c connects", "c readies"),
        {("running", 2, 1), ("running", 3, 2)},
    ),
    "both nodes die": (
        TRAINS,
        (("a dies",), ("b dies",), ("c connects", "c readies"), ("d connects", "d readies")),
        {("running", 2, 1)},
    ),
    "a node is silent for too long and comes back": (
        TRAINS,
        each("a vanishes", "a connects", "b exits", "b answers", "c connects", "c readies"),
        {("running", 2, 1), ("running", 3, 2)},
    ),
    "a node dies before anything starts": (
        (),
        (("a connects", "a readies", "a dies"), ("b connects", "b readies"), ("c connects",)),
        {("running", 1, 0), ("running", 2, 1)},
    ),
    "the controller dies while a worker fails": (
        TRAINS,
        each("controller dies", "a exits", "a connects", "b connects", "a answers", "b answers"),
        {("running", 2, 1)},
    ),
    "the controller dies while a node does": (
        TRAINS,
        each("controller dies", "a dies", "b connects", "b answers", "c connects", "c readies"),
        {("running", 2, 1)},
    ),
    "the controller dies before it carries out its orders": (
        TRAINS,
        each("controller chokes", "a exits", "a connects", "b connects", "a answers", "b answers"),
        {("running", 2, 1)},
    ),
    "the controller dies before it fences a node that is silent": (
        TRAINS,
        each(
            "controller chokes", "a vanishes", "b connects", "b answers", "c connects", "c readies"
        ),
        {("running", 2, 1)},
    ),
    "the controller dies and a node has no store": (
        TRAINS,
        each("controller dies", "a exits", "a halts", "b answers", "a readies", "a connects"),
        {("running", 2, 1)},
    ),
    "the controller dies twice before everybody has come": (
        (),
        (("controller dies", "controller dies"), *each("a connects", "b connects", "a readies")),
        {("running", 1, 0)},
    ),
    "a person stops the job in the middle of it": (
        TRAINS,
        each("person stops", "a exits", "b dies", "a answers", "c connects", "controller dies"),
        {("stopped", 1, 0), ("stopped", 1, 1)},
    ),
    "workers finish while a node dies": (
        TRAINS,
        each("a finishes", "b finishes", "a dies", "controller dies", "a reports", "b connects"),
        {("succeeded", 1, 0), ("succeeded", 2, 1)},
    ),
}


def interleavings(lanes: Lanes) -> Iterator[tuple[str, ...]]:
    """Every order that keeps the order within each lane."""
    if not any(lanes):
        yield ()
    for number, lane in enumerate(lanes):
        if lane:
            rest = (*lanes[:number], lane[1:], *lanes[number + 1 :])
            yield from ((lane[0], *others) for others in interleavings(rest))


def lived(before: tuple[str, ...], order: tuple[str, ...]) -> End:
    """What becomes of a job; the journal must tell the same."""
    site = Site()
    for phrase in (*before, *order):
        site.happen(phrase)
    site.calm()
    again = Controller(site.limits)
    for entry in site.journal:
        assert again.handle(entry.event, entry.at) == list(entry.actions)
    assert again.state == site.state
    return site.state.phase.value, site.state.attempt, len(site.state.incidents)


WHEN_ASKED = (  # much like others
    "the controller dies while a node does",
    "the controller dies before it fences a node that is silent",
    "the controller dies and a node has no store",
)


@pytest.mark.parametrize(
    "case", sample([one for one in CASES if one not in WHEN_ASKED], WHEN_ASKED)
)
def test_every_order_ends_well(case: str) -> None:
    before, lanes, ends = CASES[case]
    assert sum(map(len, lanes)) <= 6
    found: dict[End, tuple[str, ...]] = {}
    for order in itertools.islice(interleavings(lanes), None, None, 1 if MORE else 5):
        try:
            found.setdefault(lived(before, order), order)
        except Exception as error:
            pytest.fail(f"{', '.join(order)}: {error!r}")
    assert set(found) == ends, found


@pytest.mark.parametrize("case", CASES)
def test_no_order_is_left_out(case: str) -> None:
    _, lanes, _ = CASES[case]
    marked = tuple(tuple(f"{n}:{i}" for i in range(len(lane))) for n, lane in enumerate(lanes))
    orders = list(interleavings(marked))
    lengths = [len(lane) for lane in lanes]
    assert (
        len(set(orders)) == len(orders) == factorial(sum(lengths)) // prod(map(factorial, lengths))
    )
