"""A machine that fails its checks before it trains is replaced, and is in nobody's way."""

import pytest

from holdfast.actions import AnyAction, AskNodes, CheckNodes, EndJob, Fence, Outcome, StartAttempt
from holdfast.controller import Phase
from holdfast.controller.conditions import sound_spares
from holdfast.controller.machines import IN_A_ROW
from holdfast.controller.policies.replace import CORDONS_MIN
from holdfast.events import (
    ControllerResumed,
    DeadlinePassed,
    HealthChanged,
    JobSubmitted,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeLostReason,
    NodeReady,
    NodesChecked,
    NodeUnfit,
    Severity,
)
from tests.controller.test_controller import World, kinds, only, running


def unfit(world: World, node: str) -> list[AnyAction]:
    world.tell(NodeJoined(node=node, name=node, address="127.0.0.1", workers=1))
    return world.tell(NodeUnfit(node=node, why="memory: 1 of 64 blocks"))


def test_a_node_that_fails_its_checks_is_replaced_and_never_gets_a_rank() -> None:
    world = World()
    world.tell(JobSubmitted())
    actions = unfit(world, "a")
    fence = only(actions, Fence)
    assert (fence.node, fence.blamed) == ("a", True)
    assert fence.reason == "a failed its checks: memory: 1 of 64 blocks"
    assert only(actions, AskNodes).count == 1
    world.tell(NodeReady(node="a", store=world.store()))
    assert "a" not in world.state.nodes and len(world.state.failed_checks) == 1
    world.add("b")
    assert not world.state.failed_checks


def test_nodes_that_fail_their_checks_one_after_the_other_end_a_job_that_waits_for_them() -> None:
    world = World()
    world.tell(JobSubmitted())
    actions = [action for node in "abc" for action in unfit(world, node)]
    assert only(actions, EndJob).outcome is Outcome.GAVE_UP
    assert "failed its checks" in world.state.why


def test_spares_that_fail_their_checks_do_not_end_a_job_that_trains() -> None:
    world = running()
    for node in "def":
        assert "EndJob" not in kinds(unfit(world, node))
    assert world.state.phase is Phase.RUNNING
    assert world.tell(NodeUnfit(node="a", why="late")) == [], "a member trains already"


def test_new_nodes_that_fail_do_not_end_a_job_that_only_waits_for_its_back_off() -> None:
    world = running()
    for _ in range(3):
        world.kill("b", 1)
        world.recover()
    assert (world.state.phase, len(world.state.ranks)) == (Phase.WAITING, 2)
    assert all("EndJob" not in kinds(unfit(world, node)) for node in "def")
    assert only(world.tell(DeadlinePassed(), after_s=30.0), StartAttempt).attempt == 4


# ── checks that the controller orders ──


def test_a_spare_counts_once_its_machine_has_passed_its_checks() -> None:
    world = World(checks="spares")
    world.submit()
    assert world.state.phase is Phase.STARTING and sound_spares(world.state) == 0
    world.train(step=10)
    world.tell(ControllerResumed(existing=("a", "b", "c")))
    asked = only(world.tell(DeadlinePassed()), CheckNodes)
    assert asked.nodes == ("c",)
    assert world.tell(DeadlinePassed()) == [], "it was asked"
    world.tell(NodesChecked(found={"c": ""}))
    assert sound_spares(world.state) == 1
    assert only(world.add("d"), CheckNodes).nodes == ("d",)


def test_a_spare_that_has_not_answered_is_asked_again_with_the_next_news() -> None:
    world = running(checks="spares")
    assert world.tell(NodesChecked(found={}, missing=("c",))) == []
    assert only(world.tell(DeadlinePassed()), CheckNodes).nodes == ("c",)


def test_a_spare_that_fails_them_alone_is_replaced_before_it_is_needed() -> None:
    world = running(checks="spares")
    asked = only(world.tell(NodesChecked(found={"c": "memory: 1 of 64 blocks"})), CheckNodes)
    assert (asked.nodes, asked.beside) == (("c", "b"), "memory"), "a member runs that one, too"
    actions = world.tell(NodesChecked(found={"c": "memory: 1 of 64 blocks", "b": ""}))
    assert only(actions, Fence).node == "c" and only(actions, AskNodes).count == 1
    assert only(actions, Fence).blamed and not world.state.doubted
    assert world.state.phase is Phase.RUNNING
    [note] = world.state.notes
    assert note.text.startswith("spare c is replaced: c failed its checks: memory: 1 of 64 blocks")


MATMUL = "matmul: the check exited with status 1: libcublas.so.12"


def fails(world: World, node: str, why: str = MATMUL, **others: str) -> list[AnyAction]:
    return world.tell(NodesChecked(found={node: why, **others}))


def noted(world: World) -> str:
    return world.state.notes[-1].text


def test_what_fails_on_the_next_machine_too_is_shared_and_costs_no_other_machine() -> None:
    world = running(checks="spares")
    assert kinds(fails(world, "c")) == ["CheckNodes"]
    assert fails(world, "c", b=MATMUL) == [], "it stays, and the member trains on"
    assert world.state.spares == ["c"] and sound_spares(world.state) == 0
    assert world.state.phase is Phase.RUNNING and "b" not in world.state.health
    assert "spare c has failed its checks (matmul: " in noted(world)
    assert "stays: b failed the same check, so check what the nodes share" in noted(world)
    notes = len(world.state.notes)
    for _ in range(3):
        asked = only(world.tell(DeadlinePassed(), after_s=600.0), CheckNodes)
        assert asked.nodes == ("c",) and fails(world, "c") == []
    assert len(world.state.notes) == notes, "it is said once"
    assert world.controller.next_deadline() is not None
    only(world.tell(DeadlinePassed(), after_s=600.0), CheckNodes)
    world.tell(NodesChecked(found={"c": ""}))
    assert sound_spares(world.state) == 1 and "c has passed" in noted(world)
    assert not world.state.health and not world.state.failed_checks


def test_while_nobody_has_answered_a_spare_that_has_failed_stays_and_is_compared_again() -> None:
    world = running(checks="spares")
    fails(world, "c")
    assert world.tell(NodesChecked(found={"c": MATMUL}, missing=("b",))) == []
    assert world.state.spares == ["c"] and sound_spares(world.state) == 0
    assert "no other machine has reported the result of that check" in noted(world)
    assert only(world.tell(DeadlinePassed(), after_s=600.0), CheckNodes).nodes == ("c",)
    assert only(fails(world, "c"), CheckNodes).nodes == ("c", "b")
    assert only(fails(world, "c", b=""), Fence).node == "c"


def test_a_failure_that_does_not_come_again_costs_nothing() -> None:
    world = running(checks="spares")
    fails(world, "c")
    assert fails(world, "c", why="", b="") == []
    assert sound_spares(world.state) == 1 and not world.state.doubted


def test_a_member_that_fails_otherwise_because_it_trains_excuses_nobody() -> None:
    world = running(checks="spares")
    fails(world, "c")
    actions = fails(world, "c", b="matmul: CUDA out of memory")
    assert only(actions, Fence).node == "c" and "b" not in world.state.health


def test_another_spare_is_asked_before_any_member() -> None:
    world = running(checks="spares", spare_count=2)
    world.add("d")
    assert only(fails(world, "c"), CheckNodes).nodes == ("c", "d")
    assert only(fails(world, "c", d=""), Fence).node == "c"


def promoted() -> World:
    """Spare c was asked, and has become a member before it has answered."""
    world = running(checks="spares")
    world.tell(NodeLost(node="b", reason=NodeLostReason.PROCESS))
    world.recover(cause="node-lost", rank=None)
    assert "c" in world.state.ranks.values()
    return world


@pytest.mark.parametrize("alike", [True, False])
def test_a_member_that_was_asked_as_a_spare_is_compared_before_it_is_taken_for_bad(
    alike: bool,
) -> None:
    world = promoted()
    asked = only(fails(world, "c"), CheckNodes)
    assert (asked.nodes, asked.beside) == (("c", "a"), "matmul") and not world.state.health
    assert fails(world, "c", a=MATMUL if alike else "") == [], "there is no spare"
    assert ("c" in world.state.health, world.state.doubted) == (not alike, {})


def test_a_member_that_nobody_was_compared_with_is_not_taken_for_bad() -> None:
    world = promoted()
    fails(world, "c")
    assert world.tell(NodesChecked(found={"c": MATMUL}, missing=("a",))) == []
    fails(world, "c")
    assert world.tell(NodesChecked(found={"a": ""}, missing=("c",))) == []
    assert not world.state.health and not world.state.doubted


@pytest.mark.parametrize("alike", [True, False])
def test_a_new_node_that_fails_its_checks_is_compared_with_one_that_trains(alike: bool) -> None:
    world = running(checks="all")
    asked = only(unfit(world, "d"), CheckNodes)
    assert asked.nodes == ("d", "c") and asked.beside == "memory"
    assert only(world.tell(ControllerResumed(existing=tuple("abcd"))), CheckNodes).nodes == (
        "d", "c",
    )  # fmt: skip
    found = {"d": "memory: 3 of 64 blocks", "c": "memory: 1 of 64 blocks" if alike else ""}
    fence = only(world.tell(NodesChecked(found=found)), Fence)
    assert (fence.node, fence.blamed) == ("d", not alike)


def test_a_new_node_whose_second_answer_never_comes_is_left_all_the_same() -> None:
    world = running(checks="all")
    unfit(world, "d")
    actions = world.tell(NodesChecked(found={"c": ""}, missing=("d",)))
    assert only(actions, Fence).node == "d"


def test_spares_that_fail_the_same_check_at_once_all_stay() -> None:
    world = running(checks="spares", spare_count=2)
    world.add("d")
    assert world.tell(NodesChecked(found={"c": MATMUL, "d": MATMUL})) == []
    assert world.state.spares == ["c", "d"] and sound_spares(world.state) == 0


def test_a_machine_that_fails_where_others_pass_is_left() -> None:
    world = running(checks="spares", spare_count=2)
    fails(world, "c")
    world.add("d")
    fails(world, "c", d=MATMUL)
    assert world.state.spares == ["c", "d"]
    world.add("e")
    asked = only(fails(world, "d", e=""), CheckNodes)
    assert asked.nodes == ("d", "e"), "what they share may have failed since that one passed"
    assert only(fails(world, "d", e=""), Fence).node == "d"


@pytest.mark.parametrize("one_passes", [False, True])
def test_only_so_many_machines_are_left_for_their_checks(one_passes: bool) -> None:
    """In a row, or of a job within a day; then the spare stays, and that is told."""
    world = running(checks="spares", spare_count=2)
    other = {"well": ""} if one_passes else {"b": "busy: y"}
    if one_passes:
        world.add("well")
    spare, left = "c", 0
    for number in range(CORDONS_MIN + 2):
        if "CheckNodes" in kinds(actions := fails(world, spare, f"check {number}: x")):
            actions = fails(world, spare, f"check {number}: x", **other)
        if "Fence" in kinds(actions):
            assert only(actions, AskNodes).count == 1
            left, spare = left + 1, f"new-{number}"
            world.add(spare)
    assert left == (CORDONS_MIN if one_passes else IN_A_ROW)
    assert spare in world.state.spares and sound_spares(world.state) == one_passes
    why = "3 cordoned within a day" if one_passes else "2 others failed theirs"
    assert why in noted(world) and "is not used as a spare" in noted(world)


def test_where_most_members_fail_their_checks_none_is_left() -> None:
    world = in_doubt()
    aborts(world)
    world.tell(NodesChecked(found={"a": MATMUL, "b": MATMUL}, attempt=3))
    assert not world.state.health and set(world.state.ranks.values()) == {"a", "b"}
    assert "of 2 members checked, 2 failed (" in noted(world)


def test_a_shared_folder_that_refuses_is_told_once_and_costs_nobody() -> None:
    world = running(checks="spares")
    detail = "/checkpoints/shared/job cannot be written to: user 1000 may not"
    for node in "abc":
        refused = HealthChanged(
            node=node, condition="folder-denied", severity=Severity.WARN,
            device="/checkpoints/shared/job", detail=detail, advice="let that user write there",
        )  # fmt: skip
        assert world.tell(refused) == []
    world.tell(NodesChecked(found={"c": ""}))
    assert sound_spares(world.state) == 1
    [note] = world.state.notes
    assert detail in note.text and "no node is replaced for it" in note.text
    assert "let that user write there" in note.text


def test_every_spare_that_goes_is_told_of_with_its_reason() -> None:
    world = running()
    world.tell(NodeLost(node="c", reason=NodeLostReason.PROCESS, detail="its pod was evicted"))
    assert noted(world) == "spare c was lost: its pod was evicted"
    world.add("d")
    world.tell(NodeLeft(node="d", detail="a drain"))
    assert noted(world) == "spare d was removed (planned): it left: a drain"


def in_doubt(**limits: float | str) -> World:
    """Workers abort again and again, and nobody is blamed."""
    world = running(checks="spares", **limits)
    world.tell(NodesChecked(found={"c": ""}))
    for _ in range(2):
        world.tell(world.exited("b", 1, exit_code=None, signal=6))
        world.recover(cause="worker-aborted")
    return world


def aborts(world: World) -> list[AnyAction]:
    world.tell(world.exited("b", 1, exit_code=None, signal=6))
    return world.recover(cause="worker-aborted")


def test_where_attempts_make_no_progress_and_nobody_is_blamed_all_machines_are_checked_once() -> (
    None
):
    world = in_doubt()
    asked = only(aborts(world), CheckNodes)
    assert (asked.nodes, world.state.phase) == (("a", "b"), Phase.RECOVERING)
    assert world.tell(NodesChecked(found={"c": ""})) == [], "a spare tells nothing of them"
    actions = world.tell(NodesChecked(found={"a": "", "b": ""}, attempt=3))
    assert "Fence" not in kinds(actions) and world.state.phase is Phase.WAITING
    world.tell(DeadlinePassed(), after_s=30.0)
    assert "CheckNodes" not in kinds(aborts(world)), "they have just passed"


def test_the_machine_that_fails_them_is_left_and_is_the_cause() -> None:
    world = in_doubt()
    aborts(world)
    actions = world.tell(NodesChecked(found={"a": "matmul: 3 of 64 differ", "b": ""}, attempt=3))
    fence = only(actions, Fence)
    assert (fence.node, fence.blamed, world.state.ranks) == ("a", True, {0: "c", 1: "b"})
    steps = [choice.step for choice in world.state.incidents[-1].choices]
    assert steps[:1] == ["check"] and "replace" in steps


SLOW = "network: a sends only 10 MB/s to b, the median between other nodes is 1.00 GB/s"


def test_a_member_whose_network_is_slow_is_left_for_a_spare_where_attempts_fail() -> None:
    world = in_doubt()
    aborts(world)
    actions = world.tell(NodesChecked(found={"a": SLOW, "b": ""}, attempt=3))
    assert only(actions, Fence).node == "a"
    assert SLOW in world.state.incidents[-1].summary


def test_a_member_that_is_only_slow_is_a_warning_once_training_is_tried_with_it() -> None:
    """It was a fault for good, which explained whatever failed later."""
    world = in_doubt(replace_after=0)
    aborts(world)
    actions = world.tell(NodesChecked(found={"a": SLOW, "b": ""}, attempt=3))
    assert "Fence" not in kinds(actions), "nodes of this job stay"
    [slow] = world.state.health["a"].values()
    assert (slow.condition, slow.severity, slow.fault) == ("slow-network", Severity.WARN, False)
    world.tell(DeadlinePassed(), after_s=30.0)
    world.train(step=20)
    world.tell(world.exited("a", 0, exit_code=None, signal=6))
    world.recover(cause="worker-aborted", rank=0)
    assert world.state.incidents[-1].cause == "worker-aborted"


def test_an_answer_that_is_lost_with_a_controller_is_asked_for_again() -> None:
    world = in_doubt()
    aborts(world)
    assert only(world.tell(ControllerResumed(existing=("a", "b", "c"))), CheckNodes)
    world.tell(NodesChecked(found={}, missing=("a", "b"), attempt=3))
    assert world.state.phase is Phase.WAITING


def test_a_node_that_hangs_again_and_again_is_left_on_suspicion_and_stays_in_use_for_others() -> (
    None
):
    world = running()
    for _ in range(4):  # the first after some progress
        world.tell(DeadlinePassed(), after_s=30.0)
        world.tell(world.exited("b", 1))
        actions = world.recover(cause="hang", rank=1)
    fence = only(actions, Fence)
    assert (fence.node, fence.blamed) == ("b", False)
    assert [c.step for c in world.state.incidents[-1].choices] == ["isolate"]
