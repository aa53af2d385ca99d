"""What `holdfast why` tells one after the other is what the journal has of an incident."""

from itertools import pairwise

import msgspec
import pytest

from holdfast.actions import AnyAction, Entry
from holdfast.controller import Controller
from holdfast.drivers.incident_facts import EACH_MAX, KEPT, IncidentFacts
from holdfast.events import (
    AnyEvent,
    EvidenceTaken,
    ExitGroup,
    HealthChanged,
    Judgement,
    NodeLost,
    NodeLostReason,
    NodesChecked,
    Severity,
    StopRequested,
    WorkerError,
    WorkerExited,
    WorkersExited,
)
from holdfast.evidence import NodeEvidence
from holdfast.simulation.hardship import draw
from holdfast.simulation.world import World as HostileWorld
from tests.controller.test_controller import World
from tests.controller.test_hangs import STORY, judged, suspected


class Scene(World):
    """A job whose journal is heard."""

    def __init__(self) -> None:
        super().__init__()
        self.facts, self.seq = IncidentFacts(), 0
        self.submit()
        self.train(step=10)

    def tell(self, event: AnyEvent, after_s: float = 0.1) -> list[AnyAction]:
        actions = super().tell(event, after_s)
        self.seq += 1
        self.facts.hear(Entry(seq=self.seq, at=self.now, event=event, actions=tuple(actions)))
        return actions

    def told(self, number: int = 1) -> list[str]:
        """Of one incident, each with its time in tenths of a second since that began."""
        incident = self.state.incidents[number - 1]
        began = incident.started_at
        return [f"{(f.at - began) * 10:.0f} {f.text}" for f in self.facts.of(incident)]

    def kinds(self, number: int = 1) -> list[str]:
        """Those of its facts."""
        return [fact.kind for fact in self.facts.of(self.state.incidents[number - 1])]


def test_a_hang_is_suspected_looked_at_judged_stopped_and_over_with_the_first_step() -> None:
    scene = Scene()
    scene.tell(suspected(scene))
    scene.tell(judged(scene), after_s=1.0)
    scene.all_stopped()
    found = (NodeEvidence(node="a"), NodeEvidence(node="b"))
    scene.tell(EvidenceTaken(incident=1, found=found, missing=("c",)))
    scene.tell(EvidenceTaken(incident=1, found=(), network=("2 links", "b sends only 1 MB/s")))
    scene.train(step=11, restored=9)
    assert scene.told() == [
        "20 suspected: no progress of rank 1 for 2.0 s, the limit is 2.0 s",
        "20 look at all workers",
        f"30 judged: a hang (confidence 90 %): {STORY}",
        "31 no process of attempt 1 runs any more",
        "32 evidence taken on a, b; 1 did not answer",
        "33 2 links; b sends only 1 MB/s",
        "37 attempt 2 goes on after step 9, which was restored; steps up to 10 are done again",
        "38 attempt 2 has done its first step",
    ]


TAKEN = "port 31900 of 10.0.0.2 is taken by another process: port 40123 is used instead"


@pytest.mark.parametrize(("met", "over"), [(False, False), (False, True), (True, False)])
def test_ports_of_the_job_that_are_taken_are_told_where_ranks_have_not_met(
    met: bool, over: bool
) -> None:
    scene = Scene()
    scene.kill("b", 1, step=12)
    scene.recover()
    taken = HealthChanged(
        node="b", condition="ports-taken", severity=Severity.WARN, device="network.ports.stores",
        detail=TAKEN,
    )  # fmt: skip
    scene.tell(taken)
    if over:
        scene.tell(msgspec.structs.replace(taken, severity=Severity.OK, detail=""))
    if met:
        scene.train(step=13, restored=9)
    scene.kill("b", 1)
    told = [f.text for f in scene.facts.of(scene.state.incidents[1]) if f.kind == "port"]
    expected = [f"{scene.state.nodes['b'].name}: {TAKEN}; other nodes must be able to reach it"]
    assert told == ([] if met or over else expected)


def test_which_ranks_exited_and_how_is_told_with_the_verdict_on_them() -> None:
    scene = Scene()
    error = WorkerError(type="ValueError", message="bad", file="/app/train.py", line=4)
    scene.tell(scene.exited("b", 1, error=error, ago_s=0.02))
    gone = scene.exited("a", 0, exit_code=None, signal=6, ago_s=0.05)
    group = ExitGroup(kind="x", first=gone, others=((2, 4),))
    late = WorkersExited(attempt=1, groups=(group,), last_ago_s=0.05)
    scene.tell(late)
    scene.tell(late)
    scene.recover(summary="it failed", cause="worker-exception", confidence=0.95)
    assert [fact.text for fact in scene.facts.of(scene.state.incidents[0])] == [
        "rank 1 on b raised ValueError (train.py:4)",
        "rank 0 on a was killed by SIGABRT; likewise ranks 2-4",
        "no process of attempt 1 runs any more",
        "verdict on the workers: worker-exception (confidence 95 %): it failed",
    ]


def test_a_suspicion_that_came_to_nothing_is_no_part_of_a_later_fault() -> None:
    scene = Scene()
    scene.tell(suspected(scene))
    scene.tell(judged(scene, Judgement.SLOW, summary="No step for 3 s", ranks=()))
    scene.kill("b", 1, step=12)
    assert scene.kinds() == ["exited"]
    standing = Scene()
    for ago_s in (2.0, 2.9):
        standing.tell(msgspec.structs.replace(suspected(standing), ago_s=ago_s))
        standing.tell(judged(standing, Judgement.SLOW, summary=f"No step for {ago_s} s", ranks=()))
    standing.tell(judged(standing))
    assert standing.kinds() == ["suspected", "looked", "judged"] * 2 + ["judged"]


def test_a_fault_before_the_last_one_is_over_has_a_story_of_its_own() -> None:
    scene = Scene()
    scene.kill("b", 1, step=12)
    scene.recover()
    scene.kill("a", 0)
    scene.recover(rank=0)
    scene.train(step=13)
    assert scene.kinds(1) == ["exited", "stopped", "verdict"]
    assert scene.kinds(2) == ["exited", "stopped", "verdict", "restored", "first_step"]
    assert "attempt 3 begins with the first step" in scene.told(2)[-2]


def test_a_node_that_is_lost_meanwhile_is_told_and_evidence_that_comes_late_is_not_lost() -> None:
    scene = Scene()
    scene.kill("b", 1, step=12)
    lost = NodeLost(node="a", reason=NodeLostReason.PROCESS, detail="its agent was killed")
    scene.tell(lost)
    scene.recover(rank=None, cause="node-lost", confidence=0.5)
    scene.kill("c", 0)
    scene.tell(EvidenceTaken(incident=1, found=(NodeEvidence(node="b"),)))
    assert scene.kinds(1) == ["exited", "lost", "stopped", "verdict", "evidence"]
    assert "a was lost: its agent was killed" in scene.told(1)[1]
    assert scene.told(1)[3].endswith("verdict on the workers: none failed on its own")
    assert scene.kinds(2) == ["exited"]


def test_that_a_node_was_silent_before_it_was_lost_is_told_and_other_warnings_are_not() -> None:
    scene = Scene()
    quiet = "no heartbeat for 1.8 s; its machine acknowledges nothing"
    for condition, severity, detail in (
        ("silent", Severity.WARN, quiet),
        ("gpu-hot", Severity.WARN, "GPU 0: 90 C"),
        ("silent", Severity.OK, ""),
    ):
        told = HealthChanged(node="a", condition=condition, severity=severity, detail=detail)
        scene.tell(told)
    scene.tell(NodeLost(node="a", reason=NodeLostReason.SILENT, ago_s=2.0, detail="no heartbeat"))
    scene.recover(rank=None, cause="node-lost", confidence=0.5)
    assert scene.kinds(1) == ["health", "lost", "stopped", "verdict"]
    assert scene.told(1)[0].endswith(f"a: {quiet}")


@pytest.mark.parametrize(
    ("found", "missing", "told"),
    [
        ({"a": "", "b": ""}, (), "all machine checks passed"),
        ({"a": "", "b": "matmul failed"}, (), "b: matmul failed"),
        ({"a": ""}, ("b",), "1 did not answer"),
        ({"a": "full"}, ("b", "c"), "a: full; 2 did not answer"),
    ],
)
def test_checks_have_passed_only_where_every_node_has_answered(
    found: dict[str, str], missing: tuple[str, ...], told: str
) -> None:
    scene = Scene()
    scene.kill("b", 1, step=12)
    scene.all_stopped()
    scene.tell(NodesChecked(found=found, missing=missing, attempt=1))
    assert scene.told()[-1].endswith(f" {told}")


def test_a_stop_that_somebody_asked_for_is_no_incident() -> None:
    scene = Scene()
    scene.kill("b", 1, step=12)
    scene.recover()
    scene.train(step=13)
    known = scene.told()
    scene.tell(StopRequested(by="you"))
    scene.tell(scene.exited("a", 0, exit_code=None, signal=15))
    assert scene.told() == known


def test_however_much_is_told_little_of_each_kind_is_kept_and_of_the_newest_incidents() -> None:
    scene = Scene()
    scene.kill("b", 1)
    for rank in range(40):
        exited = WorkerExited(node="a", attempt=1, rank=rank, exit_code=rank + 1)
        group = ExitGroup(kind=str(rank), first=exited)
        scene.tell(WorkersExited(attempt=1, groups=(group,), last_ago_s=0.0))
    assert scene.kinds() == ["exited"] * EACH_MAX
    assert "rank 1 on b was killed" in scene.told()[0], "the first stays"
    scene.recover()
    for step in range(20, 20 + KEPT):
        scene.state.restarts.clear()
        scene.train(step=step)
        scene.kill("b", 1)
        scene.recover()
    assert len(scene.state.incidents) == KEPT + 1
    assert scene.kinds(1) == [] and scene.kinds(2) != [] and scene.kinds(KEPT + 1) != []


@pytest.mark.parametrize("seed", [1001, 1003])
def test_in_hostile_worlds_every_incident_has_its_own_facts_in_order(seed: int) -> None:
    hardship = draw(seed, hours=24.0, nodes=4)
    world = HostileWorld(hardship)
    world.run()
    facts, controller = IncidentFacts(), Controller(hardship.limits)
    decode = msgspec.json.Decoder(Entry).decode
    for entry in facts.passing(map(decode, bytes(world.book.lines).splitlines()[1:])):
        controller.handle(entry.event, entry.at)
    incidents = controller.state.incidents
    assert len(incidents) > 10
    for incident, after in pairwise(incidents):
        told = facts.of(incident)
        assert "stopped" in {fact.kind for fact in told}, incident.summary
        times = [fact.at for fact in told]
        assert times == sorted(times)
        late = [fact for fact in told if fact.kind != "evidence" and fact.at > after.detected_at]
        assert not late, "that was in a later incident"
