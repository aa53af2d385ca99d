"""A node that is sick gives its rank to a spare that is not; nobody healthy is removed."""

import pytest

from holdfast.actions import AnyAction, AssignRank, Fence, StartAttempt, StopAttempt
from holdfast.controller import Phase
from holdfast.controller.policies.replace import (
    CORDONS_MIN,
    REMOVALS_S,
    WINDOW_S,
    cordons_most,
)
from holdfast.events import (
    AttemptStopped,
    Diagnosed,
    HealthChanged,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    NodeLostReason,
    NodeReady,
    Severity,
    WorkerError,
)
from tests.controller.test_controller import World, kinds, only, running

XID = "GPU 0000:3b:00: XID 79, GPU has fallen off the bus"


def change(
    node: str = "b", severity: Severity = Severity.FATAL, condition: str = "xid-79", **what: object
) -> HealthChanged:
    what = {"device": "0000:3b:00", "detail": XID, "advice": "drain and reboot"} | what
    return HealthChanged(node=node, condition=condition, severity=severity, **what)  # type: ignore[arg-type]


def link(
    severity: Severity = Severity.ALERT, device: str = "eth0", node: str = "b"
) -> HealthChanged:
    return change(node, severity, "link-down", device=device, detail=f"{device} lost its link")


def replaced(world: World, actions: list[AnyAction], node: str = "b") -> None:
    """These are the orders that follow the stop, and they give the rank of `node` to `c`."""
    assert only(actions, Fence).node == node and only(actions, Fence).blamed
    assert only(actions, AssignRank).node == "c"
    assert only(actions, StartAttempt).attempt == 2
    assert node not in world.state.nodes


def test_a_fault_that_will_not_pass_stops_the_attempt_and_a_spare_takes_over() -> None:
    world = running()
    stop = only(world.tell(change()), StopAttempt)
    assert XID in stop.reason
    # survivors fail with whatever they were doing; that explains nothing
    actions = world.recover(cause="peer-lost", rank=0, summary="Rank 0 lost its connection")
    replaced(world, actions)
    (incident,) = world.state.incidents
    assert (incident.cause, incident.node) == ("hardware-fault", "b")
    assert incident.summary == f"b: {XID}"
    assert incident.health and "drain and reboot" in incident.health[0]
    assert incident.confidence == 0.9


def test_an_error_that_the_stop_brings_about_does_not_move_the_blame() -> None:
    world = running()
    world.tell(change("b"))
    actions = world.recover(cause="worker-exception", rank=0, user_error=True, signature="x@y:1")
    replaced(world, actions, "b")
    assert world.state.last_failure is None


def test_a_sick_node_that_steps_back_meanwhile_takes_nobody_with_it() -> None:
    """Its forkserver died, so a spare has its rank already: whoever failed is well."""
    world = running(copies=1)
    world.tell(change("b"))
    world.tell(world.exited("a", 0))
    stopped = AttemptStopped(attempt=1, store=world.store(), unready=("b",))
    world.tell(stopped)
    assert world.state.nodes["b"].node_rank is None
    actions = world.verdict(cause="peer-lost", rank=0)
    assert "Fence" not in kinds(actions) and only(actions, AssignRank).node == "c"
    assert world.state.incidents[-1].cause == "hardware-fault"


def test_a_worker_that_fails_on_a_node_with_a_fault_is_explained_by_it() -> None:
    world = running()
    world.kill("b", 1)
    assert world.tell(change()) == []
    said = "Rank 1 failed with CUDA error: unspecified launch failure."
    actions = world.recover(cause="device-error", rank=1, summary=said)
    replaced(world, actions)
    (incident,) = world.state.incidents
    assert incident.cause == "hardware-fault" and incident.rank == 1
    assert XID in incident.summary and said.rstrip(".") in incident.summary


def test_a_rank_that_lost_a_sick_node_is_not_blamed_for_it() -> None:
    world = running()
    world.kill("a", 0)
    world.tell(change("b"))
    replaced(world, world.recover(cause="peer-lost", rank=0, summary="NCCL error"))
    (incident,) = world.state.incidents
    assert (incident.cause, incident.node, incident.rank) == ("hardware-fault", "b", 1)


def test_a_fault_long_ago_does_not_explain_what_fails_elsewhere() -> None:
    world = running(spare_count=0)
    world.tell(NodeLost(node="c", reason=NodeLostReason.SILENT))
    world.tell(change("b"))
    world.now += 3600
    world.kill("a", 0)
    world.recover(cause="peer-lost", rank=0)
    assert world.state.incidents[-1].cause == "peer-lost"


def test_an_error_of_the_script_stays_one_on_a_sick_node_and_evicts_nobody() -> None:
    world = running(spare_count=0)
    world.tell(NodeLost(node="c", reason=NodeLostReason.SILENT))
    assert world.tell(change("b")) == [], "there is no spare"
    error = WorkerError(type="ValueError", message="x")
    world.tell(world.exited("b", 1, error=error))
    actions = world.recover(
        cause="worker-exception", rank=1, user_error=True, signature="ValueError@t.py:1"
    )
    assert "Fence" not in kinds(actions)
    assert world.state.incidents[-1].cause == "worker-exception"


def test_an_exit_status_without_a_word_on_a_sick_node_is_explained_by_its_fault() -> None:
    world = running()
    world.tell(world.exited("b", 1))
    world.tell(change("b"))
    replaced(world, world.recover(cause="worker-exit", rank=1, user_error=True, signature="1"))


def test_a_sick_node_is_replaced_at_the_next_start_whatever_that_is_for() -> None:
    world = running(node_count=3, spare_count=2, copies=2)
    world.add("d")
    world.add("e")
    world.train(step=10)
    world.kill("a", 0)
    world.tell(change("b"))
    world.tell(change("c"))
    actions = world.recover(cause="worker-exception", rank=0, user_error=True, signature="s")
    assert [a.node for a in actions if isinstance(a, Fence)] == ["b", "c"]
    assert [a.node for a in actions if isinstance(a, AssignRank)] == ["d", "e"]
    assert world.state.incidents[-1].cause == "worker-exception"


def test_no_more_sick_nodes_are_given_up_than_there_are_sound_spares() -> None:
    world = running(node_count=3, spare_count=1)
    world.add("d")
    world.train(step=10)
    world.kill("a", 0)
    world.tell(change("b"))
    world.tell(change("c"))
    actions = world.recover(cause="device-error", rank=1)
    assert [a.node for a in actions if isinstance(a, Fence)] == ["b"]


def test_without_a_sound_spare_training_goes_on() -> None:
    world = running()
    assert world.tell(change("c")) == []
    assert world.tell(change("b")) == []
    assert world.state.phase is Phase.RUNNING and not world.state.incidents


def test_once_there_is_a_sound_spare_a_sick_node_that_trains_gives_way_to_it() -> None:
    world = running()
    world.tell(change("c"))
    world.tell(change("b"))
    assert world.state.phase is Phase.RUNNING
    assert kinds(world.add("d")) == ["StopAttempt"]
    actions = world.recover(cause="node-lost", rank=None)
    assert only(actions, Fence).node == "b" and only(actions, AssignRank).node == "d"
    world.train(step=20, restored=10)
    assert world.add("e") == [], "everybody who trains is well now"


def test_a_spare_with_a_fault_gets_a_rank_last() -> None:
    world = running(spare_count=2)
    world.add("d")
    world.tell(change("c"))
    world.tell(NodeLost(node="a", reason=NodeLostReason.PROCESS))
    actions = world.recover(cause="node-lost", rank=None)
    assert only(actions, AssignRank).node == "d"
    world.tell(NodeLost(node="d", reason=NodeLostReason.PROCESS))
    actions = world.recover(cause="node-lost", rank=None)
    assert only(actions, AssignRank).node == "c", "a doubtful node is better than none"


@pytest.mark.parametrize("severity", [Severity.WARN, Severity.ALERT])
def test_what_may_pass_is_remembered_and_stops_nothing(severity: Severity) -> None:
    world = running()
    assert world.tell(change(severity=severity)) == []
    assert world.state.phase is Phase.RUNNING
    assert list(world.state.health) == ["b"]
    world.tell(change(severity=Severity.OK))
    world.kill("b", 1)
    world.recover(cause="device-error", rank=1)
    assert world.state.incidents[-1].cause == "device-error"


def test_an_alert_is_tolerated_once_and_acted_upon_when_it_comes_again_in_five_minutes() -> None:
    world = running()
    assert world.tell(link()) == []
    assert world.tell(link(Severity.OK), after_s=60) == []
    assert kinds(world.tell(link(), after_s=200)) == ["StopAttempt"]
    replaced(world, world.recover(cause="node-lost", rank=None))


@pytest.mark.parametrize("late_s", [0.1, 8.0])
def test_an_alert_that_an_agent_repeats_to_a_new_controller_is_the_same_one(late_s: float) -> None:
    """The first time it had been on its way for so long."""
    world, ages = running(), (1, 61.0 + late_s)
    first, again = (change("b", Severity.ALERT, "link-down", ago_s=ago_s) for ago_s in ages)
    assert world.tell(first) == []
    assert world.tell(again, after_s=60.0) == []
    assert world.state.phase is Phase.RUNNING


@pytest.mark.parametrize("gap_s", [301.0, 5000.0])
def test_alerts_further_apart_are_each_the_first(gap_s: float) -> None:
    world = running()
    for _ in range(4):
        assert world.tell(link(), after_s=gap_s) == []
        world.tell(link(Severity.OK), after_s=1.0)


def test_alerts_of_two_links_or_two_nodes_are_not_one_that_came_twice() -> None:
    world = running()
    assert world.tell(link(device="eth0")) == []
    assert world.tell(link(device="eth1")) == []
    assert world.tell(link(device="eth0", node="a")) == []


def test_warnings_however_many_never_replace_a_node() -> None:
    world = running()
    for number in range(200):
        slow = change(condition=f"slow-{number}", severity=Severity.WARN)
        assert world.tell(slow) == []
    assert len(world.state.health["b"]) <= 80


def test_who_wants_no_replacement_gets_none() -> None:
    world = running(replace_after=0)
    assert world.tell(change()) == []
    world.kill("b", 1)
    actions = world.recover(cause="device-error", rank=1)
    assert "Fence" not in kinds(actions)
    assert world.state.incidents[-1].cause == "hardware-fault"


def test_a_sick_node_without_a_spare_is_replaced_once_it_keeps_the_job_from_progress() -> None:
    world = running(spare_count=0)
    world.tell(NodeLost(node="c", reason=NodeLostReason.SILENT))
    world.tell(change("b"))
    fenced = []
    for _ in range(4):
        if world.state.phase is not Phase.RUNNING and world.state.phase is not Phase.STARTING:
            break
        world.kill("b", 1)
        actions = world.recover(cause="device-error", rank=1)
        fenced += [action for action in actions if isinstance(action, Fence)]
    assert [fence.node for fence in fenced] == ["b"]


def test_a_hang_on_a_node_with_a_fault_is_explained_by_it() -> None:
    world = running()
    world.tell(change("c"))  # so that nothing is done about b at once
    world.tell(change("b"))
    world.state.stopped_for = Diagnosed(
        attempt=1, cause="hang", summary="Rank 1 hung", confidence=0.9, rank=1
    )
    world.kill("b", 1)
    world.all_stopped()
    assert world.state.incidents[-1].cause == "hardware-fault"


def test_news_of_nodes_that_are_gone_and_of_those_that_never_were_is_ignored() -> None:
    world = running()
    assert world.tell(change("zzz")) == []
    world.tell(change("c", Severity.WARN))
    world.tell(NodeLost(node="c", reason=NodeLostReason.PROCESS))
    assert world.tell(change("c")) == []
    assert world.state.health == {}


def test_a_node_that_is_lost_while_its_fault_is_dealt_with_is_lost() -> None:
    world = running()
    world.tell(change("b"))
    world.tell(NodeLost(node="b", reason=NodeLostReason.PROCESS, detail="gone"))
    actions = world.recover(cause="peer-lost", rank=0)
    assert "Fence" not in kinds(actions) and only(actions, AssignRank).node == "c"
    assert world.state.incidents[-1].cause == "node-lost"


def test_a_fault_of_a_node_whose_workers_have_all_finished_stops_nobody() -> None:
    world = running()
    world.tell(world.exited("b", 1, exit_code=0))
    assert world.tell(change("b")) == []


def test_of_a_rack_whose_nodes_fail_alike_only_half_are_cordoned() -> None:
    """Then the rack is what is broken. The job leaves the nodes all the same, as far as it may in
    an hour."""
    world = World(node_count=4, spare_count=8, max_restarts=99)
    world.tell(JobSubmitted())
    for number in range(12):
        rack = "row-a" if number < 4 else f"rack-{number}"
        node = f"n{number}"
        joined = NodeJoined(node=node, name=node, address="h", workers=1, rack=rack)
        world.tell(joined)
        world.tell(NodeReady(node=node, store=world.store(), instrumented=True))
    fences: list[Fence] = []
    for node in ("n0", "n1", "n2"):
        world.train(step=10 * (len(fences) + 1))
        world.tell(change(node), after_s=REMOVALS_S)
        fences.append(only(world.recover(cause="peer-lost", rank=None), Fence))
    assert [(fence.node, fence.blamed) for fence in fences] == [
        ("n0", True), ("n1", True), ("n2", False),
    ]  # fmt: skip
    (told,) = [a for a in world.state.incidents[-1].actions if a.action == "Fence"]
    assert "2 of row-a cordoned within a day" in told.reason
    world.train(step=50)
    world.tell(change(world.state.ranks[3]), after_s=REMOVALS_S)  # of row-a too
    assert not only(world.recover(cause="peer-lost", rank=None), Fence).blamed
    world.train(step=60)
    world.tell(change(world.state.ranks[0]))
    assert only(world.recover(cause="peer-lost", rank=None), Fence).blamed, "another rack"


def test_one_job_does_not_take_the_machines_of_a_cluster_from_everybody() -> None:
    world = running()
    fences = []
    for number in range(CORDONS_MIN + 2):
        member = world.state.ranks[1]
        assert kinds(world.tell(change(member), after_s=REMOVALS_S)) == ["StopAttempt"]
        fences.append(only(world.recover(cause="peer-lost", rank=0), Fence))
        assert fences[-1].node == member, "it is left, whatever else"
        world.train(step=20 + 10 * number)
        world.add(f"new-{number}")
    assert [fence.blamed for fence in fences] == [True, True, True, False, False]
    (told,) = [taken for taken in world.state.incidents[-1].actions if taken.action == "Fence"]
    assert told.reason.endswith("; its machine is not cordoned: 3 cordoned within a day")
    member = world.state.ranks[1]
    world.tell(change(member), after_s=WINDOW_S)
    later = only(world.recover(cause="peer-lost", rank=0), Fence)
    assert later.blamed, "those of yesterday do not count any more"


def test_a_large_job_may_cordon_a_tenth_of_its_nodes_in_a_day() -> None:
    assert [cordons_most(nodes) for nodes in (1, 30, 31, 12_500)] == [3, 3, 4, 1250]
