"""From facts to effects: in this order, once, and whoever is stuck holds up nobody else."""

import msgspec
import pytest

from holdfast.actions import Outcome, StopAttempt
from holdfast.controller import Limits, State
from holdfast.events import (
    ControllerResumed,
    DeadlinePassed,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    NodeLostReason,
    Progress,
    ScaleRequested,
    StopRequested,
    Surveyed,
    WorkerExited,
    WorkersExited,
    each_of,
)
from holdfast.messages import (
    Ack,
    AskStatus,
    Done,
    Fact,
    JournalCopy,
    Keep,
    Kept,
    Leave,
    Report,
    ScaleJob,
    Start,
    StatusReply,
    Stop,
    StopJob,
    ToClient,
    Welcome,
    WorkersStarted,
    WorkersStopped,
)
from holdfast.shell.decisions import BATCH, FULL_DISK_RETRY_S
from tests.shell.scene import RECONNECT_S, TERM, TIMEOUT_S, Scene, Wire, acked, hello, ready

ONE = Limits(node_count=1, restart_grace_s=0.0)


def exited(node: str, attempt: int = 1, code: int = 1) -> WorkerExited:
    return WorkerExited(node=node, attempt=attempt, rank=0, exit_code=code)


def stopped(node: str, attempt: int = 1) -> WorkersStopped:
    return WorkersStopped(node=node, attempt=attempt, store=ready(node).store)


# ── order of effects ──


def test_a_fact_is_durable_before_it_is_acknowledged_and_acknowledged_before_its_orders() -> None:
    scene = Scene(ONE)
    a = scene.connect("a")
    scene.effects.clear()
    a.fact(1, ready("a"))
    assert scene.effects == [("durable", "NodeReady"), ("a told", "Ack"), ("a told", "Start")]


def test_a_fact_is_held_where_it_outlives_the_controller_before_it_is_acknowledged() -> None:
    scene = Scene(copies=True)
    a, b = scene.connect("a"), scene.connect("b")
    a.fact(1, ready("a"))
    assert acked(a) == [0] and a.told(Keep)
    a.holds()
    assert acked(a) == [0, 1]
    b.fact(1, ready("b"))
    assert acked(b) == [0] and not b.told(Start) and b.told(Keep)
    b.holds()
    assert acked(b) == [0, 1] and a.told(Start) and b.told(Start)


def test_orders_are_carried_out_one_after_the_other_each_before_later_facts_are_decided() -> None:
    scene = Scene(ONE)
    scene.connect("a")
    scene.shell.fact("a", Fact(seq=1, event=ready("a")))
    scene.effects.clear()
    assert scene.shell.step()  # decided
    scene.shell.put(StopRequested(by="me"))
    scene.settle()
    names = [what for _, what in scene.effects]
    assert names.index("Start") < names.index("StopRequested") < names.index("Stop")


def test_facts_that_wait_together_become_durable_together_up_to_a_limit() -> None:
    scene = Scene(Limits(node_count=2 * BATCH))
    for number in range(BATCH + 1):
        scene.shell.hello(Wire(f"n{number}", scene), hello(f"n{number}"))
    syncs = scene.book.saves
    scene.settle()
    assert scene.book.saves == syncs + 2
    assert len(scene.state.nodes) == BATCH + 1


def test_news_that_only_concern_a_node_are_acknowledged_too() -> None:
    scene = Scene(ONE)
    (a,) = scene.running("a")
    saves = scene.book.saves
    a.fact(2, WorkersStarted(node="a", attempt=1))
    assert acked(a) == [0, 1, 2] and scene.book.saves == saves, "and nothing is written for it"


def test_nothing_is_decided_before_the_first_fact_and_that_is_the_first() -> None:
    scene = Scene(ONE, begin=False)
    scene.connect("a")
    assert scene.book.seq == 0 and scene.shell.next_deadline() is None
    scene.shell.begin(JobSubmitted())
    scene.settle()
    assert [type(e.event) for e in scene.book.entries] == [JobSubmitted, NodeJoined]


# ── a full disk ──


def test_nothing_takes_effect_while_the_disk_is_full_and_all_of_it_once_there_is_room() -> None:
    scene = Scene(ONE)
    a = scene.connect("a")
    scene.book.full = True
    a.fact(1, ready("a"))
    assert acked(a) == [0] and not a.told(Start) and scene.engine.full == [True]
    assert scene.shell.next_deadline() == scene.now + FULL_DISK_RETRY_S
    scene.wait(0.75, a)
    assert scene.engine.full == [True]  # it is not tried again and again
    scene.book.full = False
    scene.wait(0.75, a)
    assert acked(a) == [0, 1] and a.told(Start) and scene.engine.full == [True, False]


def test_a_node_that_falls_silent_while_the_disk_is_full_is_disconnected_nevertheless() -> None:
    scene = Scene(ONE)
    (a,) = scene.running("a")
    scene.book.full = True
    scene.shell.put(StopRequested(by="me"))
    scene.wait(TIMEOUT_S + 1)
    assert a.end == "aborted" and not scene.events(NodeLost)
    scene.book.full = False
    scene.wait(FULL_DISK_RETRY_S)
    assert scene.events(NodeLost)


# ── giving up a node ──


def lost(scene: Scene, node: str) -> None:
    scene.shell.nodes.died(node, "its pod is gone")
    scene.settle()


def test_what_follows_from_a_fence_waits_until_nothing_of_the_node_acts() -> None:
    scene = Scene(Limits(node_count=2, spare_count=1))
    a, b, c = scene.running("a", "b", "c")
    scene.engine.at_once = False
    lost(scene, "a")
    b.fact(2, stopped("b"))
    assert not b.told(Stop), "the order to stop comes after the fence"
    assert a.end == "closed" and a.told(Leave)
    scene.engine.removing.pop("a")(())
    scene.settle()
    assert b.told(Stop)
    b.fact(3, stopped("b"))
    scene.wait(4, b, c)
    assert [m.attempt for m in c.told(Start) if isinstance(m, Start)] == [2]


def test_what_came_to_light_while_a_node_was_removed_is_heard_before_what_follows() -> None:
    scene = Scene(Limits(node_count=2))
    scene.running("a", "b")
    scene.engine.at_once = False
    lost(scene, "a")
    stuck = NodeLost(node="a", reason=NodeLostReason.STUCK, detail="state D")
    scene.engine.removing.pop("a")((stuck,))
    scene.settle()
    assert scene.events(NodeLost)[-1] == stuck


def test_while_a_node_is_removed_others_are_heard_and_found_silent_but_nothing_is_decided() -> None:
    """How long that may take is bounded by the engine: a rank must not be given away before."""
    scene = Scene(Limits(node_count=3))
    _, b, c = scene.running("a", "b", "c")
    scene.engine.at_once = False
    lost(scene, "a")
    decided = len(scene.book.entries)
    c.fact(2, exited("c"))
    scene.wait(TIMEOUT_S + 1, c)
    assert b.end == "aborted" and not c.end
    assert len(scene.book.entries) == decided and acked(c) == [0, 1]
    assert scene.shell.next_deadline() is None
    scene.engine.at_once = True
    scene.engine.removing.pop("a")(())
    scene.settle()
    assert acked(c) == [0, 1, 2]
    assert {e.node for e in scene.events(NodeLost) if isinstance(e, NodeLost)} == {"a", "b"}


def test_an_engine_that_says_twice_that_a_node_is_removed_is_heard_once() -> None:
    scene = Scene(Limits(node_count=2))
    scene.running("a", "b")
    scene.engine.at_once = False
    lost(scene, "a")
    done = scene.engine.removing.pop("a")
    done(())
    scene.settle()
    lost(scene, "b")
    before = len(scene.book.entries)
    done((JobSubmitted(),))
    scene.settle()
    assert len(scene.book.entries) == before and "b" in scene.engine.removing


def test_a_node_given_up_is_neither_told_nor_heard_nor_a_replica() -> None:
    scene = Scene(Limits(node_count=2), copies=True)
    a, b = scene.connect("a"), scene.connect("b")
    for wire in (a, b):
        wire.fact(1, ready(wire.node))
        a.holds()
    lost(scene, "a")
    b.holds()
    sent, decided, stops = len(a.sent), scene.book.seq, len(b.told(Stop))
    a.fact(2, exited("a"))
    scene.shell.answered("a", Kept(seq=10**6, term=TERM))
    scene.shell.report(Report(node="a", attempt=1, workers=()))
    scene.shell.put(StopRequested(by="me"))
    scene.settle()
    assert len(a.sent) == sent and a.end == "closed"
    assert scene.book.entries[-1].event == StopRequested(by="me")
    assert scene.book.seq == decided + 1
    assert len(b.told(Stop)) == stops, "only b can hold it, and has not"
    b.holds()
    assert len(b.told(Stop)) == stops + 1


# ── who decides ──


@pytest.mark.parametrize("full", [False, True])
def test_nothing_is_decided_or_done_while_it_is_paused_and_nothing_spins(full: bool) -> None:
    scene = Scene(ONE)
    scene.book.full = full
    a = scene.connect("a")
    scene.shell.paused = "its lease is in doubt"
    decided = scene.book.seq
    a.fact(1, ready("a"))
    scene.now += 1000.0
    a.heard_at = scene.now
    for _ in range(3):
        scene.shell.look()
    assert scene.settle() == 0 and scene.book.seq == decided
    assert scene.shell.next_deadline() is None
    scene.shell.paused = ""
    scene.book.full = False
    scene.wait(FULL_DISK_RETRY_S, a)
    assert acked(a)[-1] == 1


def test_an_agent_that_has_obeyed_a_newer_controller_ends_this_one() -> None:
    scene = Scene(ONE)
    wire = Wire("a", scene)
    assert not scene.shell.hello(wire, hello("a", obeyed=TERM + 1))
    assert wire.sent == [] and scene.shell.replaced_by == TERM + 1
    scene.shell.put(StopRequested(by="me"))
    assert not scene.shell.step()


def test_a_replica_that_holds_lines_of_a_newer_controller_ends_this_one() -> None:
    scene = Scene(ONE, copies=True)
    (a,) = scene.running("a")
    scene.shell.answered("a", Kept(seq=0, term=TERM + 2))
    assert scene.shell.replaced_by == TERM + 2 and scene.settle() == 0
    assert not a.told(Start)


def test_an_agent_that_has_obeyed_this_controller_or_one_before_is_welcome() -> None:
    scene = Scene()
    for obeyed, node in ((0, "a"), (TERM, "b")):
        wire = scene.connect(node, obeyed)
        (welcome,) = wire.told(Welcome)
        assert isinstance(welcome, Welcome) and welcome.known and welcome.term == TERM


def test_a_controller_that_takes_over_expects_the_nodes_that_exist() -> None:
    before = Scene(Limits(node_count=2))
    before.running("a", "b")
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(before.state), type=State)
    resumed = ControllerResumed(existing=("a", "b"))
    scene = Scene(Limits(node_count=2), state=state, existing=("a", "b"), first=resumed)
    a = scene.connect("a")
    assert a.told(Start), "what holds is told again"
    scene.wait(RECONNECT_S - 1, a)
    assert not scene.events(NodeLost)
    scene.wait(2, a)
    (event,) = scene.events(NodeLost)
    assert isinstance(event, NodeLost) and event.node == "b"


def test_a_node_that_exists_and_connected_before_the_take_over_is_not_expected_again() -> None:
    scene = Scene(Limits(node_count=2))
    a, b = scene.running("a", "b")
    scene.shell.begin(JobSubmitted(), ("a", "b"))
    scene.wait(RECONNECT_S + 1, a, b)
    assert not scene.events(NodeLost)


# ── time ──


def test_a_deadline_is_told_once_and_does_not_spin() -> None:
    scene = Scene(Limits(node_count=1, node_wait_s=5.0))
    due = scene.shell.next_deadline()
    assert due is not None
    scene.now = due - 0.001
    scene.shell.look()
    assert scene.settle() == 0
    scene.now = due
    for _ in range(3):
        scene.shell.look()
    scene.settle()
    assert len(scene.events(DeadlinePassed)) == 1
    assert scene.shell.outcome is Outcome.GAVE_UP


def test_no_deadline_passes_while_its_decision_could_not_take_effect() -> None:
    scene = Scene(Limits(node_count=1, node_wait_s=5.0))
    scene.book.full = True
    scene.shell.put(StopRequested(by="me"))
    scene.settle()
    scene.now += 0.5
    assert scene.shell.next_deadline() == scene.now + 0.5


def test_slow_replicas_are_asked_for_by_time_alone() -> None:
    scene = Scene(Limits(node_count=5), copies=True)
    wires = [scene.connect(node) for node in "abcde"]
    for wire in wires:
        wire.fact(1, ready(wire.node))
        for replica in wires:
            replica.holds()
    *_, last = wires
    assert not last.told(Keep), "three are enough"
    scene.shell.put(StopRequested(by="me"))
    scene.wait(2.0, *wires)
    assert not last.told(Stop) and last.told(Keep)
    last.holds()
    assert last.told(Stop)


def test_a_survey_reads_the_reports_that_wait_first() -> None:
    scene = Scene(Limits(node_count=2))
    a, b = scene.running("a", "b")
    caught: list[int] = []
    scene.shell.catch_up = lambda: caught.append(scene.book.seq)
    early = msgspec.structs.replace(exited("a", code=0), progress=Progress(step=3))
    a.fact(2, early)
    scene.wait(40, a, b)
    assert caught and scene.events(Surveyed)


# ── requests and the end ──


def test_the_command_line_is_answered_and_its_wish_is_decided_upon() -> None:
    scene, replies = Scene(ONE), list[ToClient]()
    scene.shell.client(AskStatus(), replies.append)
    assert replies == [StatusReply(status=b"{}")]
    scene.shell.client(ScaleJob(by="me", nodes=2), replies.append)
    scene.settle()
    assert scene.events(ScaleRequested) == [ScaleRequested(by="me", nodes=2)]
    assert replies[1:] == [Done()]
    scene.shell.client(StopJob(by="me", now=True), replies.append)
    scene.settle()
    assert scene.events(StopRequested) == [StopRequested(by="me", now=True)]
    assert scene.shell.outcome is Outcome.STOPPED


def test_a_request_to_stop_is_answered_once_it_is_durable_and_held_elsewhere() -> None:
    scene, replies = Scene(ONE, copies=True), list[ToClient]()
    (node,) = scene.running("a")
    node.holds()
    scene.book.full = True
    scene.shell.client(StopJob(by="me", now=False), replies.append)
    scene.settle()
    assert replies == [] and not scene.events(StopRequested), "the disk is full"
    scene.book.full = False
    scene.wait(FULL_DISK_RETRY_S, node)
    assert replies == [] and scene.events(StopRequested), "nobody else has it"
    node.holds()
    assert replies == [Done()]


def test_a_request_to_stop_is_answered_at_the_end_of_the_job_and_after_it() -> None:
    scene, replies = Scene(ONE), list[ToClient]()
    scene.shell.client(StopJob(by="me", now=True), replies.append)
    while scene.shell.outcome is None:
        if scene.shell.decisions.orders and not scene.shell.decisions.pending:
            scene.shell.client(StopJob(by="late", now=True), replies.append)
        assert scene.shell.step()
    assert replies == [Done(), Done()], "the second came just before the job ended"
    scene.shell.client(StopJob(by="later", now=True), replies.append)
    assert replies == [Done()] * 3


def test_at_the_end_everybody_is_let_go_also_who_comes_later_and_nothing_more_is_decided() -> None:
    scene = Scene(Limits(node_count=2))
    a, b = scene.connect("a"), scene.connect("b")
    b.fact(1, ready("b"))
    scene.shell.put(StopRequested(by="me", now=True))
    scene.settle()
    assert scene.shell.outcome is Outcome.STOPPED
    late = scene.connect("c")
    for wire in (a, b, late):
        (leave,) = wire.told(Leave)
        assert isinstance(leave, Leave) and (leave.exit_code, leave.term) == (0, TERM)
    assert not a.end
    decided = scene.book.seq
    a.fact(1, ready("a"))
    scene.shell.look()
    assert scene.settle() == 0 and scene.book.seq == decided
    assert scene.shell.next_deadline() is None


# ── who is cut off, and from whom ──


def test_a_controller_to_whom_all_other_machines_fall_silent_at_once_hands_over() -> None:
    """They have hardly died at the same moment, and giving them up would end the job."""
    scene = Scene(Limits(node_count=3))
    scene.engine.nearby = frozenset({"a"})
    a, _b, _c = scene.running("a", "b", "c")
    scene.shell.can_hand_over = lambda: True
    scene.wait(2 * TIMEOUT_S, a)
    assert scene.shell.cut_off and scene.shell.outcome is None
    assert not scene.events(NodeLost) and scene.settle() == 0
    assert scene.shell.next_deadline() is None


def test_a_controller_whose_only_node_and_its_replacement_are_not_heard_hands_over() -> None:
    """One node may have died; that the next cannot connect either makes it likely that we cannot be
    reached. A controller that nobody has ever reached blames the node: handing over helped not."""
    for met in (True, False):
        scene = Scene(ONE)
        scene.shell.can_hand_over = lambda: True
        if met:
            scene.running("a")
            scene.wait(2 * TIMEOUT_S)
            assert set(scene.state.lost) == {"a"}
        scene.shell.nodes.expect("b", 10.0)
        scene.wait(9.5)
        assert not scene.shell.cut_off
        scene.wait(1.0)
        assert scene.shell.cut_off == met
        assert ("b" in scene.state.lost) == (not met)


@pytest.mark.parametrize("why", ["one is heard", "one was left", "nobody could go on", "earlier"])
def test_silent_nodes_are_lost_unless_all_fell_silent_at_once(why: str) -> None:
    scene = Scene(Limits(node_count=3))
    scene.engine.nearby = frozenset({"a", "c"} if why == "one was left" else {"a"})
    a, b, c = scene.running("a", "b", "c")
    scene.shell.can_hand_over = lambda: why != "nobody could go on"
    if why == "earlier":
        scene.wait(TIMEOUT_S * 0.7, a, c)
    lively = [a, c] if why in ("one is heard", "one was left") else [a]
    scene.wait(TIMEOUT_S * (0.35 if why == "earlier" else 1.5), *lively)
    lost = [event.node for event in scene.events(NodeLost) if isinstance(event, NodeLost)]
    assert "b" in lost and not scene.shell.cut_off
    assert b.end


@pytest.mark.parametrize("speaks", [True, False])
def test_a_silent_node_is_not_lost_while_all_others_are_overdue(speaks: bool) -> None:
    """The last sign of life before a cut may be older of one node than of the others, on a machine
    that is busy by more than a whole pulse."""
    scene = Scene(Limits(node_count=3))
    scene.engine.nearby = frozenset({"a"})
    a, _b, c = scene.running("a", "b", "c")
    scene.shell.can_hand_over = lambda: True
    scene.wait(TIMEOUT_S / 2, a, c)
    scene.wait(TIMEOUT_S * 0.55, a)
    assert not scene.events(NodeLost) and not scene.shell.cut_off
    scene.wait(TIMEOUT_S * 0.1, a, *([c] if speaks else []))
    lost = [event.node for event in scene.events(NodeLost) if isinstance(event, NodeLost)]
    assert (lost, scene.shell.cut_off) == ((["b"], False) if speaks else ([], True))


def test_a_copy_that_was_asked_for_by_another_controller_is_no_answer_to_this_one() -> None:
    scene = Scene(ONE, copies=True)
    scene.running("a")
    scene.shell.answered("a", JournalCopy(offset=0, data=b"", size=0))
    assert not scene.shell.replaced_by


def test_every_order_carries_the_term() -> None:
    scene = Scene(ONE)
    (a,) = scene.running("a")
    a.fact(2, exited("a"))
    a.fact(3, stopped("a"))
    scene.shell.put(StopRequested(by="me", now=True))
    scene.settle()
    terms = {type(m): m.term for m in a.sent if isinstance(m, Welcome | Start | Stop | Leave | Ack)}
    assert set(terms) >= {Welcome, Start, Stop, Ack} and set(terms.values()) == {TERM}


def test_an_order_is_carried_out_although_nobody_is_there_to_hear_it() -> None:
    scene = Scene(ONE)
    (a,) = scene.running("a")
    scene.shell.closed("a", a)
    scene.shell.put(StopRequested(by="me"))
    scene.settle()
    assert any(isinstance(o, StopAttempt) for e in scene.book.entries for o in e.actions)
    back = scene.connect("a")
    (stop,) = back.told(Stop)
    assert isinstance(stop, Stop) and stop.attempt == 1


def test_exits_that_wait_are_acknowledged_once_they_are_in_the_journal() -> None:
    """With nothing else to hear, their time is up by itself, and no deadline has passed then."""
    scene = Scene(Limits(node_count=40))
    wires = scene.running(*(f"n{rank:02}" for rank in range(40)))
    before = len(scene.book.entries)
    for wire in wires:
        rank = scene.state.nodes[wire.node].node_rank
        assert rank is not None
        wire.fact(2, WorkerExited(node=wire.node, attempt=1, rank=rank, exit_code=1))
    acknowledged = [wire for wire in wires if Ack(seq=2, term=TERM) in wire.sent]
    assert len(acknowledged) == 1, "the first failure decides something"
    due = scene.shell.next_deadline()
    assert due is not None
    scene.now = due
    for wire in wires:
        wire.heard_at = due
    scene.shell.look()
    scene.settle()
    assert all(Ack(seq=2, term=TERM) in wire.sent for wire in wires)
    kinds = [type(entry.event).__name__ for entry in scene.book.entries[before:]]
    assert kinds == ["WorkerExited", "WorkersExited"]
    told = scene.book.entries[-1].event
    assert isinstance(told, WorkersExited)
    assert sum(1 + len(list(each_of(group.others))) for group in told.groups) == 39


def test_who_stands_aside_holds_no_silence_against_anybody_and_waits_anew_when_it_is_back() -> None:
    scene = Scene()
    wires = scene.running("a", "b")
    scene.shell.paused = "the lease cannot be renewed"
    scene.shell.nodes.release("another controller may have begun")
    assert [wire.end for wire in wires] == ["closed", "closed"]
    scene.now += 100 * TIMEOUT_S
    scene.shell.look()
    scene.shell.paused = ""
    scene.shell.expect_again()
    scene.settle()
    assert not scene.state.lost
    scene.connect("a")
    scene.now += RECONNECT_S + 0.1
    scene.shell.nodes.hello(Wire("a", scene), hello("a"))
    scene.shell.look()
    scene.settle()
    assert set(scene.state.lost) == {"b"}, "it has not come back"


def test_a_doubt_is_asked_for_before_each_thing_that_is_done() -> None:
    scene = Scene()
    scene.running("a", "b")
    doubts = ["", "stopped meanwhile"]
    scene.shell.doubt = lambda: doubts.pop(0) if doubts else "for good"
    before = len(scene.book.entries)
    scene.shell.put(StopRequested(by="x"))
    scene.settle()
    assert len(scene.book.entries) == before, "decided at most, but not durable and not obeyed"
    scene.shell.doubt = lambda: ""
    scene.settle()
    assert len(scene.book.entries) > before
