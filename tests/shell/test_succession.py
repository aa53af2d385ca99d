"""Which journal a new controller goes on from, and for whom it waits."""

import msgspec
import pytest

from holdfast.actions import Entry
from holdfast.events import ControllerResumed, DeadlinePassed, JobSubmitted
from holdfast.shell.succession import (
    NEAR_WITHIN_S,
    NOWHERE,
    WITHIN_S,
    Position,
    RollCall,
    newest,
    position_of,
)


def journal(*terms: int) -> bytes:
    """A header, and entries of controllers of these terms; the first entry of each says so."""
    lines = [b'{"journal":2}\n']
    for seq, term in enumerate(terms, 1):
        began = seq == 1 or terms[seq - 2] != term
        resumed = ControllerResumed(existing=(), term=term) if seq > 1 else JobSubmitted(term=term)
        event = resumed if began else DeadlinePassed()
        lines.append(msgspec.json.encode(Entry(seq=seq, at=0.0, event=event, actions=())) + b"\n")
    return b"".join(lines)


@pytest.mark.parametrize(
    ("content", "position"),
    [
        (b"", NOWHERE),
        (journal(), Position(0, 0)),
        (journal(1, 1, 1), Position(1, 3)),
        (journal(1, 1, 4, 4), Position(4, 4)),
        (journal(1, 1, 4) + b'{"seq":4,"at"', Position(4, 3)),
    ],
)
def test_a_journal_ends_at_the_term_of_its_newest_controller(
    content: bytes, position: Position
) -> None:
    assert position_of(content) == position


def test_the_newest_term_counts_and_then_the_length() -> None:
    short, long, older = journal(1, 2), journal(1, 2, 2), journal(1, 1, 1, 1, 1)
    assert newest([older, short, long, b""]) == long
    assert newest([b"", b""]) == newest([]) == b""


def heard(call: RollCall, *nodes: str) -> RollCall:
    for node in nodes:
        call.heard(node, ordered=3, fenced=2)
    return call


def test_everybody_is_waited_for_until_the_time_is_up() -> None:
    call = heard(RollCall({"a", "b"}, {"c"}, 100.0), "a", "c")
    assert not call.is_over(100.0 + WITHIN_S)
    assert call.is_over(100.1 + WITHIN_S)
    assert heard(call, "b").is_over(100.0)
    assert call.obeyed == 3


def test_those_beside_the_controller_before_are_waited_for_if_there_are_no_others() -> None:
    call = heard(RollCall({"a"}, {"c"}, 0.0), "a")
    assert not call.is_over(NEAR_WITHIN_S)
    assert call.is_over(NEAR_WITHIN_S + 0.1)
    assert not RollCall((), {"c"}, 0.0).is_over(NEAR_WITHIN_S + 0.1)
    assert RollCall((), (), 0.0).is_over(0.0)


def test_who_has_ended_meanwhile_is_waited_for_no_more_and_who_runs_is() -> None:
    call = heard(RollCall({"a", "b", "c"}, {"d"}, 0.0), "a")
    call.only({"a", "b"})
    assert call.silent == {"b"} and not call.is_over(WITHIN_S)
    call.only({"a", "new"})
    assert call.is_over(0.0) and not call.silent


def test_only_a_newer_copy_is_fetched() -> None:
    call = RollCall({"a", "b"}, (), 0.0)
    assert not call.wanted(0, -1)
    call.fetched(1, 5, b"older")
    assert not call.wanted(1, 5) and call.wanted(1, 6) and call.wanted(2, 0)
    call.fetched(2, 0, b"newer")
    call.fetched(1, 9, b"longer")
    assert call.best == b"newer"
