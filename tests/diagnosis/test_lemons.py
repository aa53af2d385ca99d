"""Nodes that trouble a job in several ways are told from those that were merely there."""

import msgspec

from holdfast.actions import AnyAction, AssignRank, Entry, Fence, StartAttempt
from holdfast.diagnosis.lemons import WINDOW_S, Counts, LemonSignal, score, signals
from holdfast.events import (
    AnyEvent,
    Diagnosed,
    HangJudged,
    HealthChanged,
    Judgement,
    NodeJoined,
    NodeLost,
    NodeLostReason,
    NodeUnfit,
    Severity,
    Store,
)
from holdfast.occurrences import Occurrence, Recurrence

NOW = WINDOW_S * 2


def journal(*events: AnyEvent, at: float = NOW) -> list[Entry]:
    """A job of two nodes with two workers each, and what happened to it."""
    start = StartAttempt(
        attempt=1, node_count=2, workers_per_node=2, store=Store("h", 1, True), redo_until=0,
        restarts=0, reason="",
    )  # fmt: skip
    orders: list[tuple[AnyEvent, tuple[AnyAction, ...]]] = [
        (
            NodeJoined(node=f"id-{n}", name=f"node-{n}", address="h", workers=2),
            (AssignRank(node=f"id-{n}", node_rank=n, reason=""),),
        )
        for n in range(2)
    ]
    orders += [(NodeLost(node="x", reason=NodeLostReason.SILENT), (start,))]
    first = [Entry(n, 0.0, event, actions) for n, (event, actions) in enumerate(orders, 1)]
    return first + [Entry(9 + n, at, event, ()) for n, event in enumerate(events)]


def counted(*events: AnyEvent, at: float = NOW) -> dict[str, Counts]:
    return signals(journal(*events, at=at), NOW)


def health(condition: str, severity: Severity, node: str = "id-1") -> HealthChanged:
    return HealthChanged(node=node, condition=condition, severity=severity)


def verdict(cause: str, rank: int | None = 3, *, user_error: bool = False) -> Diagnosed:
    return Diagnosed(
        attempt=1, cause=cause, summary="", confidence=1.0, rank=rank, user_error=user_error
    )


def everywhere() -> Diagnosed:
    """An error of a device that came to another node at the same step."""
    found = Recurrence(whose="code", confidence=0.8, text="it came on both")
    came = Occurrence(
        cause="device-error", signature="x", rank=3, step=9, nodes=("node-1",), recurs=found
    )
    return msgspec.structs.replace(verdict("device-error"), occurrence=came)


HANG = HangJudged(
    attempt=1, judgement=Judgement.HANG, summary="", confidence=1.0, ago_s=1.0, ranks=((2, 2),)
)
EACH = (
    health("xid-79", Severity.FATAL),
    health("xid-31", Severity.WARN),
    health("link-down", Severity.ALERT),
    health("disk-full", Severity.WARN),
    NodeLost(node="id-1", reason=NodeLostReason.SILENT),
    verdict("device-error"),
    HANG,
)


def test_each_signal_is_counted_for_the_node_that_gave_it() -> None:
    found = counted(*EACH)
    assert found == {"node-0": {}, "node-1": dict.fromkeys(LemonSignal, 1)}
    assert (score(found["node-0"]), score(found["node-1"])) == (0, 7)


def test_the_same_signal_again_is_counted_and_is_still_one() -> None:
    found = counted(EACH[0], EACH[0], EACH[0])["node-1"]
    assert found == {LemonSignal.FAULT: 3} and score(found) == 1


def test_what_the_script_did_and_what_others_did_to_it_is_no_signal() -> None:
    innocent = (
        verdict("worker-exception", user_error=True),
        verdict("peer-lost"),
        verdict("hardware-fault"),
        verdict("device-error", rank=None),
        everywhere(),
        health("xid-79", Severity.OK),
        health("xid-79", Severity.FATAL, node="somebody"),
    )
    assert counted(*innocent) == {"node-0": {}, "node-1": {}}


def test_what_people_and_schedulers_do_to_a_machine_is_no_signal_against_it() -> None:
    drained = NodeLost(node="id-1", reason=NodeLostReason.PROCESS, planned=True)
    stuck = NodeLost(node="id-1", reason=NodeLostReason.STUCK)  # told of one that is lost already
    by_hand = health("machine-cordoned", Severity.WARN)  # as `kubectl cordon` does
    announced = health("machine-leaving", Severity.FATAL)
    assert counted(by_hand, announced, drained, stuck) == {"node-0": {}, "node-1": {}}


def test_a_machine_that_failed_its_checks_has_given_a_signal() -> None:
    def seen(*, blamed: bool) -> Counts:
        fence = Fence(node="id-1", reason="x", blamed=blamed)
        line = Entry(9, NOW, NodeUnfit(node="id-1", why="x"), (fence,))
        return signals([*journal(at=NOW), line], NOW)["node-1"]

    assert seen(blamed=True) == {LemonSignal.FAULT: 1}
    assert not seen(blamed=False), "others have failed alike"


def test_what_was_long_ago_counts_no_more() -> None:
    assert counted(*EACH, at=NOW - WINDOW_S - 1) == {"node-0": {}, "node-1": {}}
