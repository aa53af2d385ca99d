"""From reports that do not change to an order to look, and from the answers to a judgement."""

from collections.abc import Collection

import pytest

from holdfast.controller import Limits
from holdfast.controller.hangs import ENDED
from holdfast.detection.after_loop import AFTER_S, CLOSES_S
from holdfast.detection.hang import FLOOR_S
from holdfast.dimensions import Layout
from holdfast.events import (
    AnyEvent,
    EvidenceTaken,
    HangJudged,
    HangSuspected,
    HealthChanged,
    Judgement,
    Milestone,
    Progress,
    Progressed,
    Severity,
    in_rows,
)
from holdfast.evidence import NodeEvidence, PeerAddress, PeerReach, RankEvidence, Traffic
from holdfast.messages import (
    EvidenceReply,
    Report,
    Stacks,
    Stop,
    TakeEvidence,
    TakeStacks,
    WorkerReport,
)
from holdfast.shell.evidence_collection import NODE_S as EVIDENCE_S
from holdfast.shell.hang_detection import LOOKS
from holdfast.shell.stack_collection import NODE_S
from holdfast.stacks import Activity, StackGroup, ThreadStack
from tests.shell.scene import Scene, Wire

TRAINED = [m for m in Milestone if m not in (Milestone.FINISHED, Milestone.OUTPUT)]
STEP_S = 0.05


class Training(Scene):
    """Two nodes with a rank each, or so many, whose pages say what the test wants."""

    def __init__(
        self, hang_timeout_s: float = 600.0, nodes: str = "ab", **limits: float | Layout
    ) -> None:
        limits = {"node_count": len(nodes), "hang_timeout_s": hang_timeout_s, **limits}
        super().__init__(Limits(**limits))  # type: ignore[arg-type]
        self.wires = self.running(*nodes)
        self.steps, self.phase = dict.fromkeys(range(len(nodes)), 0), "step"
        self.tell()

    def tell(self, ago_s: float = 0.0) -> None:
        for wire in self.wires:
            rank = self.wires.index(wire)
            page = WorkerReport(
                rank=rank,
                pid=1,
                progress=Progress(step=self.steps[rank], step_ago_s=ago_s),
                milestones=dict.fromkeys(TRAINED, 1.0),
                phase=self.phase,
                step_time_s=STEP_S,
            )
            self.shell.report(Report(node=wire.node, attempt=self.state.attempt, workers=(page,)))
        self.settle()

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.now += STEP_S
            self.steps = {rank: step + 1 for rank, step in self.steps.items()}
            self.tell()

    def decided_before(self, event: AnyEvent) -> list[AnyEvent]:
        """What was decided upon and is durable before this was."""
        told = [entry.event for entry in self.book.entries]
        return told[: told.index(event)]

    def stall(self, seconds: float = FLOOR_S + 0.5) -> None:
        self.wait(seconds, *self.wires)

    def answer(
        self,
        wire: Wire,
        at: str,
        does: Activity = Activity.STILL,
        trouble: str = "",
        of: Collection[str] = (),
        below: tuple[ThreadStack, ...] = (),
        sent_bytes: int | None = None,
    ) -> None:
        [asked] = wire.told(TakeStacks)[-1:]
        assert isinstance(asked, TakeStacks) and asked.looks == LOOKS
        rank = self.wires.index(wire)
        thread = ThreadStack(name="MainThread", pid=1, frames=("main (t.py:1)", at))
        group = StackGroup(
            ranks=in_rows([rank]), threads=(thread,), below=below, state="sleeping", activity=does
        )
        apart = [not of or {wire.node, peer.node} & {*of} for peer in asked.peers]
        reached = tuple(
            PeerReach(node=peer.node, trouble=trouble if bad else "")
            for peer, bad in zip(asked.peers, apart, strict=True)
        )
        answer = Stacks(
            number=asked.number, groups=(group,), reached=reached, traffic=carried(sent_bytes)
        )
        self.shell.answered(wire.node, answer)
        self.settle()


def conditions(scene: Scene) -> list[tuple[str, str, Severity]]:
    """What was told of the health of nodes."""
    told = [one for one in scene.events(HealthChanged) if isinstance(one, HealthChanged)]
    return [(one.node, one.condition, one.severity) for one in told]


def carried(sent_bytes: int | None) -> tuple[Traffic, ...]:
    """By the links of a node, in a second."""
    if sent_bytes is None:
        return ()
    return (Traffic(kind="link", sent_bytes=sent_bytes, received_bytes=0, seconds=1.0),)


WAITS = "all_reduce (torch/distributed/distributed_c10d.py:1)"


def test_a_stall_has_every_member_looked_at_and_a_rank_apart_is_stopped() -> None:
    scene = Training()
    scene.train(50)
    assert not scene.events(HangSuspected)
    scene.stall()
    assert len(scene.events(HangSuspected)) == 1
    a, b = scene.wires
    scene.answer(a, WAITS)
    assert not scene.events(HangJudged) and not a.told(Stop)
    scene.answer(b, "sleep (t.py:9)")
    [judged] = scene.events(HangJudged)
    assert isinstance(judged, HangJudged) and judged.judgement is Judgement.HANG
    assert judged.ranks == ((1, 1),)
    [first], [second] = a.told(Stop), b.told(Stop)
    assert isinstance(first, Stop) and isinstance(second, Stop)
    assert first.hung is None and second.hung == 1, "its node looks at it once more"
    assert scene.state.incidents[-1].cause == "hang"


@pytest.mark.parametrize("silent", [False, True])
def test_all_stacks_of_whoever_is_blamed_are_kept_whether_its_node_answers_again_or_not(
    silent: bool,
) -> None:
    scene = Training()
    scene.train(50)
    scene.stall()
    a, b = scene.wires
    scene.answer(a, WAITS)
    loader = ThreadStack(name="MainThread", pid=7, frames=("loop (l.py:1)", "read (s.py:3)"))
    scene.answer(b, "sleep (t.py:9)", below=(loader,))
    for wire in (a, b)[: 1 if silent else 2]:
        rank = RankEvidence(rank=scene.wires.index(wire), page="step 50")
        found = NodeEvidence(node=wire.node, ranks=(rank,))
        scene.shell.answered(wire.node, EvidenceReply(number=1, found=found))
    scene.wait(EVIDENCE_S + 0.5, a, b)
    [incident] = scene.state.incidents
    kept = {one.rank: one for node in incident.collected for one in node.ranks}
    assert kept[1].stacks == (
        "MainThread of process 1: sleep (t.py:9) < main (t.py:1)",
        "MainThread of process 7: read (s.py:3) < loop (l.py:1)",
    )
    assert not kept[0].stacks and kept[0].page == "step 50"
    assert incident.missing == ["b"] * silent and kept[1].page == ("" if silent else "step 50")


def test_where_a_rank_that_hangs_is_in_the_layout_is_told_first() -> None:
    scene = Training(layout=Layout(pp=2))
    scene.train(50)
    scene.stall()
    for wire, at in zip(scene.wires, (WAITS, "sleep (t.py:9)"), strict=True):
        scene.answer(wire, at)
    [judged] = scene.events(HangJudged)
    assert isinstance(judged, HangJudged)
    assert judged.evidence[0] == "layout: rank 1 is at pp 1" and len(judged.evidence) == 3


def test_the_time_of_the_look_counts_and_progress_is_told_ahead_of_it() -> None:
    scene = Training()
    scene.train(50)
    scene.stall(FLOOR_S + 1.0)
    began = scene.now
    scene.wait(2.0, *scene.wires)
    scene.answer(scene.wires[0], WAITS)
    scene.answer(scene.wires[1], "sleep (t.py:9)")
    [judged] = scene.events(HangJudged)
    assert isinstance(judged, HangJudged) and judged.ago_s > FLOOR_S + 2.0
    assert began < scene.now
    told = [entry.event for entry in scene.book.entries]
    before = told[told.index(judged) - 1]
    assert isinstance(before, Progressed) and before.progress.step == 50
    assert scene.state.incidents[-1].step == 50


def test_a_node_that_sends_nothing_while_others_send_is_evidence_and_blames_nobody() -> None:
    scene = Training(nodes="abc")
    scene.train(50)
    began = scene.now
    while not scene.wires[0].told(Stop) and scene.now < began + 60.0:
        scene.wait(0.5, *scene.wires)
        if len(scene.events(HangSuspected)) > len(scene.events(HangJudged)):
            for wire, sent_bytes in zip(scene.wires, (5_000_000, 0, 6_000_000), strict=True):
                scene.answer(wire, WAITS, sent_bytes=sent_bytes)
    judged = scene.events(HangJudged)[-1]
    assert isinstance(judged, HangJudged) and judged.judgement is Judgement.HANG
    assert judged.evidence[0].startswith("network traffic while stacks were taken: b sent 0.0 kB/s")
    assert not judged.ranks and scene.state.incidents[-1].rank is None
    assert conditions(scene) == [("b", "network-silent", Severity.WARN)], "in several looks"
    assert scene.events(HealthChanged)[0] in scene.decided_before(judged)
    scene.wait(200.0, *scene.wires)
    assert conditions(scene)[1:] == [("b", "network-silent", Severity.OK)]


def unreachable(scene: Training, node: str, seconds: float) -> None:
    """All wait, and none reaches this one, in looks and when evidence is taken."""
    began, looked = scene.now, 0
    while not scene.wires[0].told(Stop) and scene.now < began + seconds:
        scene.wait(0.5, *scene.wires)
        if len(scene.events(HangSuspected)) > looked:
            looked = len(scene.events(HangSuspected))
            for wire in scene.wires:
                scene.answer(wire, WAITS, trouble="timed out after 2 s", of=(node,))
    for wire in scene.wires:
        for order in wire.told(TakeEvidence):
            assert isinstance(order, TakeEvidence)
            reached = [PeerReach(node=n.node, trouble=lost(wire, n, node)) for n in order.peers]
            found = NodeEvidence(node=wire.node)
            reply = EvidenceReply(number=order.number, found=found, reached=tuple(reached))
            scene.shell.answered(wire.node, reply)
    scene.settle()


def lost(wire: Wire, peer: PeerAddress, node: str) -> str:
    """Why this peer cannot be reached."""
    return "timed out after 2 s" if node in (wire.node, peer.node) else ""


def test_a_node_that_others_cannot_reach_is_an_alert_of_its_own_within_ten_seconds_and_once() -> (
    None
):
    """In looks, before the hang is judged; what evidence says of it later is the same alert."""
    scene = Training(nodes="abc")
    scene.train(50)
    began = scene.now
    unreachable(scene, "c", 60.0)
    assert scene.now - began <= 10.0 and scene.events(EvidenceTaken)
    assert conditions(scene) == [("c", "unreachable", Severity.ALERT)]
    told, judged = scene.events(HealthChanged)[0], scene.events(HangJudged)[-1]
    assert told in scene.decided_before(judged)
    assert isinstance(told, HealthChanged) and "a, b cannot reach c" in told.detail
    assert not any(one.fault for one in scene.state.health["c"].values()), "seen in one attempt"


@pytest.mark.parametrize("does", [Activity.STILL, Activity.BUSY])
def test_nodes_that_cannot_reach_each_other_are_found_within_ten_seconds(does: Activity) -> None:
    scene = Training()
    scene.train(50)
    began = scene.now
    while not any(wire.told(Stop) for wire in scene.wires) and scene.now < began + 60.0:
        scene.wait(0.5, *scene.wires)
        if len(scene.events(HangSuspected)) > len(scene.events(HangJudged)):
            scene.wait(2.0, *scene.wires)  # for connections that time out
            for wire in scene.wires:
                scene.answer(wire, WAITS, does, "timed out after 2 s")
    assert scene.now - began <= 10.0
    judged = scene.events(HangJudged)[-1]
    assert isinstance(judged, HangJudged) and not judged.ranks
    assert "a cannot reach b (timed out after 2 s)" in judged.summary


@pytest.mark.parametrize("does", [Activity.BUSY, Activity.MOVES])
@pytest.mark.parametrize("step_timeout_s", [5.0, 0.0])
def test_a_loop_is_found_within_ten_seconds_where_the_script_names_what_takes_long(
    step_timeout_s: float, does: Activity
) -> None:
    scene = Training(step_timeout_s=step_timeout_s)
    scene.train(50)
    began = scene.now
    while not any(wire.told(Stop) for wire in scene.wires) and scene.now < began + 50.0:
        scene.wait(0.5, *scene.wires)
        if len(scene.events(HangSuspected)) > len(scene.events(HangJudged)):
            scene.wait(1.0, *scene.wires)
            for wire, at, did in zip(
                scene.wires, (WAITS, "spin (t.py:9)"), (Activity.STILL, does), strict=True
            ):
                scene.answer(wire, at, did)
    judged = scene.events(HangJudged)[-1]
    assert isinstance(judged, HangJudged)
    if step_timeout_s:
        assert scene.now - began <= 10.0 and judged.ranks == ((1, 1),)
    else:
        assert judged.judgement is Judgement.SLOW, "it may be an evaluation"


def test_who_moves_is_looked_at_again_later_and_nothing_is_stopped() -> None:
    scene = Training()
    scene.train(50)
    scene.stall()
    for wire in scene.wires:
        scene.answer(wire, "evaluate (t.py:9)", Activity.MOVES)
    assert scene.state.standstill.startswith("No step for")
    scene.stall(5.0)
    assert len(scene.events(HangSuspected)) >= 2
    assert not any(wire.told(Stop) for wire in scene.wires)


CLOSES = "destroy_process_group (torch/distributed/distributed_c10d.py:2190)"


def behind_the_loop() -> Training:
    """Both ranks have done their steps, and their scripts go on."""
    scene = Training()
    scene.train(50)
    scene.phase = "finished"
    scene.tell()
    return scene


def next_look(scene: Training) -> None:
    """Until everybody is asked once more."""
    asked = len(scene.events(HangSuspected))
    for _ in range(700):
        scene.stall(1.0)
        if len(scene.events(HangSuspected)) > asked:
            return
    raise AssertionError("nobody was asked for more than ten minutes")


def test_ranks_that_do_not_come_out_of_the_end_of_their_group_are_found_and_the_job_is_told() -> (
    None
):
    scene = behind_the_loop()
    scene.stall(AFTER_S - 1.0)
    assert not scene.events(HangSuspected)
    for _ in range(2):
        assert not scene.state.incidents
        next_look(scene)
        for wire in scene.wires:
            scene.answer(wire, CLOSES)
    (incident,) = scene.state.incidents
    assert incident.cause == "hang" and incident.rank is None
    assert "Ranks 0-1 hung after step 50: in destroy_process_group" in incident.summary
    assert incident.evidence and scene.state.stopped_for is not None
    assert scene.state.stopped_for.signature == ENDED, "the next attempt repeats it all: once"
    lasted_s = incident.detected_at - incident.started_at
    assert lasted_s == pytest.approx(CLOSES_S, abs=5.0), "since it was seen"


def test_hours_of_work_behind_the_loop_are_told_and_stop_nothing() -> None:
    scene = behind_the_loop()
    for _ in range(7):
        next_look(scene)
        scene.answer(scene.wires[0], "upload (t.py:9)", Activity.BUSY)
        scene.answer(scene.wires[1], CLOSES)
    assert not scene.state.incidents and not any(wire.told(Stop) for wire in scene.wires)
    assert scene.state.standstill.startswith("After the training loop for ")
    assert scene.state.standstill.endswith("rank 0 in upload (t.py:9)")


def test_nor_does_a_node_that_does_not_answer_meanwhile_however_long_that_takes() -> None:
    scene = behind_the_loop()
    for _ in range(7):
        next_look(scene)
        scene.answer(scene.wires[1], CLOSES)
        scene.stall(NODE_S + 1.0)
    told = [event for event in scene.events(HangJudged) if isinstance(event, HangJudged)]
    assert {event.judgement for event in told} == {Judgement.UNKNOWN}
    assert told[-1].ago_s > 600.0 and not scene.state.incidents


def test_a_member_that_does_not_answer_is_waited_for_some_seconds_and_blames_nobody() -> None:
    scene = Training()
    scene.train(50)
    scene.stall()
    scene.answer(scene.wires[0], WAITS)
    scene.wait(NODE_S + 1.0, *scene.wires)
    [judged] = scene.events(HangJudged)
    assert isinstance(judged, HangJudged) and judged.judgement is Judgement.UNKNOWN


def test_an_answer_that_comes_after_the_attempt_was_stopped_is_not_asked_for_any_more() -> None:
    scene = Training()
    scene.train(50)
    scene.stall()
    b = scene.wires[1]
    scene.shell.closed("b", b)
    scene.shell.nodes.died("b", "its agent died")
    scene.settle()
    scene.answer(scene.wires[0], WAITS)
    assert all(event.judgement is Judgement.UNKNOWN for event in scene.events(HangJudged)
               if isinstance(event, HangJudged))  # fmt: skip
    assert scene.state.incidents[-1].cause == "node-lost"


def test_a_job_that_wants_no_watch_is_not_watched() -> None:
    scene = Training(hang_timeout_s=0.0)
    scene.train(50)
    scene.stall(60.0)
    assert not scene.events(HangSuspected)


def test_a_controller_that_stood_still_itself_suspects_nobody() -> None:
    scene = Training()
    scene.train(50)
    scene.now += 60.0
    scene.shell.forgive(60.0)
    for wire in scene.wires:
        wire.heard_at = scene.now
    scene.shell.look()
    scene.settle()
    assert not scene.events(HangSuspected)
