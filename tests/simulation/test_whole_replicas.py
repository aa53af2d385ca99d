"""The referee of replicas of several nodes, and worlds in which their nodes are lost."""

import msgspec
import pytest

from holdfast.actions import Entry, StartAttempt
from holdfast.events import AnyEvent, AttemptStopped, NodeLost, NodeLostReason
from holdfast.simulation.whole_replicas import WholeReplicas
from holdfast.simulation.world import World
from tests.simulation.test_referees import start
from tests.simulation.test_world import lived, quiet


def begun(referee: WholeReplicas, attempt: int, nodes: str) -> str:
    """What it says of an attempt of these nodes, in the order of their ranks."""
    told = [
        referee.launched(
            node, msgspec.structs.replace(start(attempt, rank=rank), node_count=len(nodes))
        )
        for rank, node in enumerate(nodes)
    ]
    return next(filter(None, told), "")


def told(referee: WholeReplicas, *, lost: str = "", unready: str = "") -> None:
    stopped = AttemptStopped(attempt=1, store=None, unready=tuple(unready))
    events: list[AnyEvent] = [
        *(NodeLost(node=node, reason=NodeLostReason.PROCESS) for node in lost),
        stopped,
    ]
    for seq, event in enumerate(events, 1):
        referee.journaled(Entry(seq=seq, at=0.0, event=event, actions=()))


@pytest.mark.parametrize(
    ("lost", "unready", "after", "foul"),
    [
        ("b", "", "cd", ""),
        ("b", "", "dc", ""),
        ("b", "", "acxd", "tears the replica of c, d apart"),
        ("b", "", "ac", "tears the replica of c, d apart"),
        ("bc", "", "ad", ""),
        ("", "b", "cd", ""),
        ("", "b", "ac", "tears the replica of c, d apart"),
        ("", "", "ab", ""),
        ("", "", "abc", "3 nodes"),
    ],
)
def test_a_replica_that_is_whole_stays_together(
    lost: str, unready: str, after: str, foul: str
) -> None:
    referee = WholeReplicas(2)
    assert not begun(referee, 1, "abcd")
    told(referee, lost=lost, unready=unready)
    said = begun(referee, 2, after)
    assert foul in said if foul else not said


def test_a_node_that_is_lost_before_the_last_has_begun_was_not_whole_since() -> None:
    """One that is told late begins an attempt that is being stopped."""
    referee = WholeReplicas(2)
    order = msgspec.structs.replace(start(1, rank=0), node_count=4)
    for rank, node in enumerate("abc"):
        assert not referee.launched(node, msgspec.structs.replace(order, node_rank=rank))
    told(referee, lost="b")
    assert not referee.launched("d", msgspec.structs.replace(order, node_rank=3))
    assert not begun(referee, 2, "cdax")


def starts(world: World) -> list[StartAttempt]:
    """What the journal has of them."""
    lines = bytes(world.book.lines).splitlines()[1:]
    entries = [msgspec.json.decode(line, type=Entry) for line in lines]
    return [a for entry in entries for a in entry.actions if isinstance(a, StartAttempt)]


@pytest.mark.parametrize(("each", "dies"), [(2, True), (3, False)], ids=["2, controllers die", "3"])
def test_replicas_of_several_nodes_survive_what_replicas_of_one_do(each: int, dies: bool) -> None:
    rates = {"node_deaths": 200.0, "worker_kills": 200.0}
    rates |= {"controller_crashes": 100.0} if dies else {}
    shares = {"crash_midway": 0.3} if dies else {}
    hard = quiet(rates=rates, shares=shares, total_steps=0, hours=2.0, snapshot_every=10)
    limits = msgspec.structs.replace(
        hard.limits,
        node_count=3 * each,
        min_nodes=each,
        spare_count=0,
        max_restarts=100_000,
        in_process=True,
        replicas=True,
        nodes_each=each,
    )
    world = lived(msgspec.structs.replace(hard, limits=limits))
    assert world.referees.outcome == "stopped"
    sizes = [order.node_count for order in starts(world)]
    assert min(sizes) < 3 * each, "some have gone on without the others"
    fewer = next(at for at, size in enumerate(sizes) if size < 3 * each)
    assert 3 * each in sizes[fewer:], "and those came back"
