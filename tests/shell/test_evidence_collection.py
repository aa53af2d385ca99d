"""When an incident opens, how nodes are is asked for, becomes one fact, and stays small."""

from collections.abc import Sequence

import msgspec
import pytest

from holdfast.controller import Limits
from holdfast.controller.conditions import standing
from holdfast.controller.incidents import EVIDENCE_KEPT
from holdfast.events import EvidenceTaken, Progress, Store, WorkerExited
from holdfast.evidence import NodeEvidence, PeerReach, RankEvidence
from holdfast.messages import EvidenceReply, TakeEvidence, WorkersStopped
from holdfast.shell.evidence_collection import (
    NODE_S,
    NODES_MAX,
    TOLD_BYTES,
    fitting,
    with_stacks,
)
from holdfast.shell.reachability import CONDITION, PEERS_MAX, STANDS_S
from tests.shell.scene import Scene, Wire


def exited(wire: Wire, rank: int, attempt: int = 1) -> WorkerExited:
    return WorkerExited(
        node=wire.node, attempt=attempt, rank=rank, exit_code=None, signal=9,
        progress=Progress(step=1),
    )  # fmt: skip


def asked(wire: Wire) -> list[TakeEvidence]:
    return [order for order in wire.told(TakeEvidence) if isinstance(order, TakeEvidence)]


def answer(
    scene: Scene, wire: Wire, number: int = 1, *ranks: RankEvidence, cut_from: Sequence[str] = ()
) -> None:
    found = NodeEvidence(node=wire.node, ranks=ranks, host=("load: 1",))
    reached = tuple(
        PeerReach(node=peer.node, trouble="timed out" if peer.node in cut_from else "")
        for peer in asked(wire)[-1].peers
    )
    reply = EvidenceReply(number=number, found=found, reached=reached)
    scene.shell.answered(wire.node, reply)
    scene.settle()


def test_what_the_nodes_tell_is_kept_with_the_incident() -> None:
    scene = Scene()
    a, b = scene.running("a", "b")
    assert not asked(a)
    b.fact(2, exited(b, 1))
    assert [order.number for order in asked(a)] == [1] == [order.number for order in asked(b)]
    answer(scene, b, 1, RankEvidence(rank=1, ended="signal 9", output=("bye",)))
    assert not scene.events(EvidenceTaken)
    answer(scene, a)
    [incident] = scene.state.incidents
    assert [one.node for one in incident.collected] == ["b", "a"]
    assert incident.collected[0].ranks[0].output == ("bye",) and not incident.missing


@pytest.mark.parametrize("how", ["silent", "gone"])
def test_who_does_not_tell_holds_up_nobody_and_is_named(how: str) -> None:
    scene = Scene()
    a, b = scene.running("a", "b")
    b.fact(2, exited(b, 1))
    answer(scene, a)
    if how == "gone":
        scene.shell.closed("b", b)
        scene.settle()
    else:
        scene.wait(NODE_S + 0.5, a, b)
    [told] = scene.events(EvidenceTaken)
    assert isinstance(told, EvidenceTaken) and told.missing == ("b",)


def test_an_answer_about_another_incident_is_ignored_and_a_stop_by_hand_asks_nobody() -> None:
    scene = Scene()
    a, b = scene.running("a", "b")
    b.fact(2, exited(b, 1))
    answer(scene, a, number=7)
    answer(scene, b, number=7)
    assert not scene.events(EvidenceTaken)


def test_nodes_try_each_other_and_one_that_nobody_reaches_twice_is_replaced() -> None:
    scene = Scene(Limits(node_count=3, spare_count=1, max_restarts=99))
    a, b, c, _ = everybody = scene.running("a", "b", "c", "d")
    for attempt in (1, 2):
        c.fact(3 * attempt, exited(c, 2, attempt))
        assert sorted(peer.node for peer in asked(a)[-1].peers) == ["b", "c"]
        assert all(peer.host == "h" and peer.port for peer in asked(a)[-1].peers)
        for wire, lost in ((a, "c"), (b, "c"), (c, "ab")):
            answer(scene, wire, attempt, cut_from=lost)
        incident = scene.state.incidents[-1]
        assert incident.network == ["a, b cannot reach c (timed out)"]
        assert "c" in scene.state.nodes, "a network may be back in a moment"
        for wire in (a, b, c):
            store = Store("h", 1000 * attempt + sum(wire.node.encode()), True)
            stopped = WorkersStopped(node=wire.node, attempt=attempt, store=store)
            wire.fact(3 * attempt + 1, stopped)
        scene.wait(30.0, *everybody)
    assert "c" not in scene.state.nodes
    assert sorted(scene.state.ranks.values()) == ["a", "b", "d"]


def test_a_node_that_is_reached_again_is_not_said_to_be_out_of_reach_for_ever() -> None:
    scene = Scene(Limits(node_count=3))
    a, b, c = scene.running("a", "b", "c")
    c.fact(2, exited(c, 2))
    for wire, lost in ((a, "c"), (b, "c"), (c, "ab")):
        answer(scene, wire, cut_from=lost)
    assert [one.condition for one in standing(scene.state, "c")] == [CONDITION]
    scene.wait(STANDS_S + 1.0, a, b, c)
    assert not standing(scene.state, "c")


def test_of_a_large_job_a_sample_is_asked_and_whoever_is_to_blame() -> None:
    names = [f"n{number:02}" for number in range(40)]
    scene = Scene(Limits(node_count=len(names)))
    wires = dict(zip(names, scene.running(*names), strict=True))
    by_rank = {rank: wires[node] for rank, node in scene.state.ranks.items()}
    first, guilty = by_rank[13], by_rank[27]
    lost = WorkerExited(node=first.node, attempt=1, rank=13, exit_code=0, progress=Progress(step=3))
    first.fact(2, msgspec.structs.replace(lost, exit_code=3))
    sample = [wire for wire in wires.values() if asked(wire)]
    assert first in sample and len(sample) == NODES_MAX and guilty not in sample
    tried = [peer.node for wire in sample for peer in asked(wire)[0].peers]
    assert len(tried) == NODES_MAX * PEERS_MAX and tried.count("n13") == NODES_MAX - 1
    guilty.fact(2, exited(guilty, 27))
    for wire in wires.values():
        wire.fact(3, WorkersStopped(node=wire.node, attempt=1, store=Store("h", 1, True)))
    assert scene.state.incidents[0].rank == 27
    assert len(asked(guilty)) == 1
    assert sum(bool(asked(wire)) for wire in wires.values()) == NODES_MAX + 1


def test_what_is_kept_is_bounded_and_the_rank_that_is_blamed_comes_first() -> None:
    lines = tuple("x" * 300 for _ in range(20))
    nodes = [
        NodeEvidence(
            node=f"n{n}", ranks=(RankEvidence(rank=n, ended="signal 9" * (n > 2), output=lines),)
        )
        for n in range(8)
    ]
    told = fitting(nodes, blamed=5)
    assert told[0].node == "n5" and len(told[0].ranks[0].output) == 20
    assert 1 < len(told) < 8 and len(msgspec.msgpack.encode(told)) <= TOLD_BYTES
    assert [one.node for one in told[1:]] == ["n3", "n4", "n6", "n7"][: len(told) - 1]


def test_stacks_of_a_hang_are_kept_within_the_same_bound_and_the_rest_gives_way() -> None:
    lines = tuple("x" * 300 for _ in range(20))
    nodes = [
        NodeEvidence(node=f"n{n}", ranks=(RankEvidence(rank=n, output=lines),)) for n in range(8)
    ]
    stacks = tuple(f"{number} {'y' * 1000}" for number in range(12))
    told = fitting(with_stacks(nodes, {("n3", 3): stacks}), blamed=3)
    assert told[0].node == "n3" and told[0].ranks[0].stacks == stacks and len(told) < 8
    many = tuple(f"{number} {'y' * 1000}" for number in range(30))
    [left] = fitting(with_stacks(nodes, {("n3", 3): many}), blamed=3)
    assert left.ranks[0].stacks == many[: len(left.ranks[0].stacks)], "the first ones"
    assert left.ranks[0].stacks
    for found in (told, (left,)):
        assert len(msgspec.msgpack.encode(found)) <= TOLD_BYTES


def test_only_the_newest_incidents_keep_theirs() -> None:
    scene = Scene(Limits(node_count=1, max_restarts=99))
    [a] = scene.running("a")
    for number in range(1, EVIDENCE_KEPT + 3):
        a.fact(3 * number, exited(a, 0, attempt=number))
        answer(scene, a, number)
        stopped = WorkersStopped(node="a", attempt=number, store=Store("h", 100 + number, True))
        a.fact(3 * number + 1, stopped)
        scene.wait(60.0, a)
    kept = [bool(incident.collected) for incident in scene.state.incidents]
    assert kept == [False] * 2 + [True] * EVIDENCE_KEPT
