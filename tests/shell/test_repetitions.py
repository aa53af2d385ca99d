"""Groups of nodes repeat a step when the controller says so: who is asked, and what is told."""

import msgspec
import pytest

from holdfast.actions import CheckNodes
from holdfast.controller import Limits, State
from holdfast.controller.state import TierRecord
from holdfast.digests import StepsToRepeat
from holdfast.events import Milestone, NodesChecked, Progress, RepetitionRequested, Store
from holdfast.messages import (
    AskReplay,
    GroupOpened,
    RepeatStep,
    ReplayReply,
    Report,
    Start,
    StepRepeated,
    Stop,
    ToClient,
    WorkerReport,
    WorkersStopped,
)
from holdfast.shell.repetitions import GROUP_S
from tests.shell.scene import RECONNECT_S, Scene

GOOD, BAD = {"w": "1"}, {"w": "2"}
THERE = Store("h", 1, False)
TRAINED = [m for m in Milestone if m not in (Milestone.FINISHED, Milestone.OUTPUT)]


class Repeating:
    """Nodes of a job that have stopped training, and what they are ordered to repeat."""

    def __init__(self, *names: str, **wish: object) -> None:
        self.scene = Scene(Limits(node_count=len(names)))
        self.wires = dict(zip(names, self.scene.running(*names), strict=True))
        self.heard = dict.fromkeys(names, 0)
        self.wish = StepsToRepeat(step=9, **wish)  # type: ignore[arg-type]
        self.obey(*names)

    def obey(self, *names: str) -> None:
        """The controller orders it for these."""
        order = CheckNodes(nodes=names, attempt=1, repeat=self.wish, reason="x")
        self.scene.shell.checks.obey(order, tuple(self.wires), self.scene.now)
        self.scene.settle()

    def asked(self, name: str) -> list[RepeatStep]:
        told = self.wires[name].told(RepeatStep)
        return [one for one in told if isinstance(one, RepeatStep)]

    def news(self) -> list[tuple[str, RepeatStep]]:
        """What was ordered since the last look."""
        found = []
        for name in self.wires:
            told = self.asked(name)
            found += [(name, one) for one in told[self.heard[name] :]]
            self.heard[name] = len(told)
        return found

    def say(self, name: str, answer: GroupOpened | StepRepeated) -> None:
        self.scene.shell.answered(name, answer)
        self.scene.settle()

    def repeat(self, bad: str = "", *, dies: bool = False) -> None:
        """All do as they are told, until nobody is told anything; these nodes are `bad`."""
        while news := self.news():
            for name, order in news:
                if order.opens:
                    self.say(name, GroupOpened(number=order.number, store=THERE))
                rank = order.start.node_rank
                is_bad = name in tuple(bad)
                ends = {rank: BAD if is_bad else GOOD}
                why = "it died" if is_bad and dies else ""
                said = StepRepeated(
                    number=order.number, digests={} if why else ends, why=why, first="loss 1",
                    again="loss 1",
                )  # fmt: skip
                self.say(name, said)

    @property
    def told(self) -> NodesChecked:
        [found] = self.scene.events(NodesChecked)
        assert isinstance(found, NodesChecked)
        return found


def test_the_first_of_a_group_says_where_it_meets_and_then_the_others_begin() -> None:
    it = Repeating("a", "b", "c", "d")
    firsts = it.news()
    assert [(name, one.opens) for name, one in firsts] == [("a", True), ("c", True)]
    start = firsts[0][1].start
    assert (start.node_rank, start.node_count, start.attempt) == (0, 2, 2)
    assert start.restore_below == firsts[0][1].step == 9
    it.say("a", GroupOpened(number=firsts[0][1].number, store=THERE))
    [(name, second)] = it.news()
    assert (name, second.opens, second.start.store, second.start.node_rank) == (
        "b",
        False,
        THERE,
        1,
    )


@pytest.mark.parametrize("dies", [False, True])
def test_the_node_whose_groups_end_otherwise_is_told(dies: bool) -> None:
    it = Repeating("a", "b", "c", "d")
    it.repeat("c", dies=dies)
    assert it.told.found == {"c": "c fails in every group of 2 it was tried in"}
    assert it.told.attempt == 1 and it.told.told == it.told.found["c"]


class OfAJob(Repeating):
    """The same, of a job that trains on a to d and has spares e and f, until somebody asks."""

    def __init__(self) -> None:
        self.scene = Scene(Limits(node_count=4, spare_count=2))
        self.wires = dict(zip("abcdef", self.scene.running(*"abcdef"), strict=True))
        self.heard = dict.fromkeys(self.wires, 0)
        self.wish = StepsToRepeat(step=9, id="1", by="somebody")
        state = self.scene.state
        state.committed, state.tiers = [3], {"shared": TierRecord()}
        self.train()

    def train(self) -> None:
        """All ranks do."""
        state = self.scene.state
        for rank, name in state.ranks.items():
            page = WorkerReport(
                rank=rank, pid=1, progress=Progress(step=12), milestones=dict.fromkeys(TRAINED, 1.0)
            )
            self.scene.shell.report(Report(node=name, attempt=state.attempt, workers=(page,)))
        self.scene.settle()

    def stop(self) -> None:
        """All were told to, and have."""
        attempt = self.scene.state.attempt
        for name in self.scene.state.ranks.values():
            order = self.wires[name].told(Stop)[-1]
            assert isinstance(order, Stop) and order.attempt == attempt
            self.wires[name].fact(
                1 + attempt, WorkersStopped(node=name, attempt=attempt, store=THERE)
            )

    def ask(self) -> list[ToClient]:
        """The attempt is stopped for it; what is answered comes into this list."""
        replies = list[ToClient]()
        self.scene.shell.client(AskReplay(wish=self.wish), replies.append)
        self.scene.settle()
        self.stop()
        return replies


def test_two_bad_nodes_of_a_job_that_trains_are_named_and_left_for_its_spares() -> None:
    it = OfAJob()
    replies = it.ask()
    it.repeat("ab", dies=True)
    [reply] = replies
    assert isinstance(reply, ReplayReply) and (reply.nodes, reply.sure) == (("a", "b"), True)
    tried = {tuple(order.start.node_count for order in it.asked(name)) for name in "abcd"}
    assert tried == {(2, 2)}, "two phases; in the second each suspect is with a good node"
    assert sorted(it.scene.state.ranks.values()) == ["b", "c", "d", "e"], "each has memory"
    assert it.scene.state.attempt == 2 and it.wires["e"].told(Start)
    it.train()
    it.stop()
    assert sorted(it.scene.state.ranks.values()) == ["c", "d", "e", "f"]
    assert it.scene.state.attempt == 3


def test_where_all_end_alike_nobody_is() -> None:
    it = Repeating("a", "b", "c", "d")
    it.repeat()
    assert it.told.found == {} and "did not recur" in it.told.told


def test_a_step_is_repeated_twice_in_place_and_compared_with_the_first_time() -> None:
    it = Repeating("a", "b", isolate=False)
    it.repeat()
    assert [len(it.asked(name)) for name in ("a", "b")] == [2, 2]
    assert "Step 9 equals the first run (loss 1)" in it.told.told


def test_who_leaves_meanwhile_ends_it_and_who_does_not_answer_has_failed() -> None:
    it = Repeating("a", "b")
    it.scene.shell.closed("b", it.wires["b"])
    it.scene.settle()
    assert it.told.missing == ("b",) and "b was lost while step 9 was repeated" in it.told.told
    late = Repeating("a", "b", isolate=False)
    [(_, order)] = late.news()
    late.say("a", GroupOpened(number=order.number, store=THERE))
    late.scene.wait(GROUP_S + 1.0, *late.wires.values())
    assert "a, b did not complete the step" in late.told.told


@pytest.mark.parametrize(
    ("names", "left", "unit"), [(("a", "b"), (), 1), (("a", "b", "c"), ("a", "b", "c"), 2)]
)
def test_members_that_are_no_whole_replicas_are_answered_and_the_controller_lives(
    names: tuple[str, ...], left: tuple[str, ...], unit: int
) -> None:
    """Nodes were lost between the order and a controller that came back to it."""
    it = Repeating(*names, isolate=False)
    it.wish = msgspec.structs.replace(it.wish, isolate=True, unit=unit)
    it.obey(*left)
    assert f"its {len(left)} nodes are not whole replicas of {unit} nodes each" in it.told.told
    assert it.told.found == {} and it.told.missing == ()


def test_the_same_batches_are_left_out_and_nothing_is_restored_that_is_bad_by_now() -> None:
    it = Repeating("a", "b", isolate=False)
    state = it.scene.state
    assert state.start is not None
    state.start = msgspec.structs.replace(state.start, skips=((2, 4),), restore_below=7)
    state.restore_below, state.bad_steps = 5, ((1, 5),)
    it.obey("a", "b")
    start = it.asked("a")[-1].start
    assert (start.skips, start.restore_below, start.bad_steps) == (((2, 4),), 5, ((1, 5),))
    state.restore_below = None  # training has passed it since
    it.obey("a", "b")
    assert it.asked("a")[-1].start.restore_below == it.wish.step


def test_a_controller_that_has_come_back_begins_once_the_nodes_have_found_it() -> None:
    it = Repeating("a", "b", isolate=False)
    state = msgspec.json.decode(msgspec.json.encode(it.scene.state), type=State)
    later = Scene(state=state)
    order = CheckNodes(nodes=("a", "b"), attempt=1, repeat=it.wish, reason="x")
    later.shell.checks.obey(order, later.shell.nodes.connected, later.now)
    first = later.connect("a")
    later.wait(1.0, first)
    assert not first.told(RepeatStep) and not later.events(NodesChecked)
    second = later.connect("b")
    later.wait(1.0, first, second)
    assert len(first.told(RepeatStep)) == 1 and not later.events(NodesChecked)


def asking(wish: StepsToRepeat, *, instrumented: bool) -> tuple[Scene, list[ToClient]]:
    scene, replies = Scene(Limits(node_count=1)), list[ToClient]()
    scene.running("a")
    scene.state.instrumented = instrumented
    scene.shell.client(AskReplay(wish=wish), replies.append)
    scene.settle()
    return scene, replies


@pytest.mark.parametrize(
    ("wish", "instrumented", "why"),
    [
        (StepsToRepeat(step=9, id="1"), False, "does not call holdfast.train.join()"),
        (StepsToRepeat(step=9, id="1"), True, "no checkpoint of a step before 9"),
    ],
)
def test_what_cannot_be_repeated_is_refused_at_once(
    wish: StepsToRepeat, instrumented: bool, why: str
) -> None:
    scene, replies = asking(wish, instrumented=instrumented)
    [reply] = replies
    assert isinstance(reply, ReplayReply) and why in reply.refused
    assert not scene.events(RepetitionRequested)


WISH = StepsToRepeat(step=9, isolate=False, id="1", by="somebody")


def heard_of(state: State | None = None) -> tuple[Scene, list[ToClient]]:
    """A controller that is asked, of a job that can repeat a step; `state`: it has come back."""
    scene, replies = Scene(Limits(node_count=1), state=state), list[ToClient]()
    if state is None:
        scene.running("a")
        scene.state.instrumented, scene.state.committed = True, [3]
        scene.state.tiers = {"shared": TierRecord()}
    scene.shell.client(AskReplay(wish=WISH), replies.append)
    scene.settle()
    return scene, replies


def test_a_controller_that_has_come_back_does_not_hear_an_old_wish_as_a_new_one() -> None:
    scene, _ = heard_of()
    assert len(scene.events(RepetitionRequested)) == 1
    state = msgspec.json.decode(msgspec.json.encode(scene.state), type=State)
    later, replies = heard_of(state)
    assert not later.events(RepetitionRequested) and not replies
    order = CheckNodes(nodes=("a",), attempt=1, repeat=WISH, reason="x")
    later.shell.checks.obey(order, (), later.now)
    assert not replies
    later.wait(RECONNECT_S)
    [reply] = replies
    assert isinstance(reply, ReplayReply) and "a is not connected" in reply.refused, "it goes on"
    state.repeating = None
    over, replies = heard_of(state)
    assert not over.events(RepetitionRequested) and not replies


def test_a_wish_that_gives_way_to_one_of_the_controller_is_answered() -> None:
    scene, replies = heard_of()
    own = CheckNodes(nodes=("a",), attempt=1, repeat=StepsToRepeat(step=13), reason="x")
    scene.shell.checks.obey(own, ("a",), scene.now)
    assert replies == [ReplayReply(refused="another step is being repeated")]
