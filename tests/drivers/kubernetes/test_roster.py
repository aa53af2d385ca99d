"""Which pods are nodes, which have gone, and how many are still to be made."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller import Limits, Phase
from holdfast.controller.state import Node, State
from holdfast.drivers.kubernetes.pods import Pod
from holdfast.drivers.kubernetes.roster import GONE_KEPT, Gone, Roster, life, uid_of
from holdfast.events import NodeJoined, NodeLeft, NodeLost, NodeLostReason, NodeReady, Store
from tests.drivers.kubernetes.seen import RUNS, condition, ended, pod

STORE = Store(host="h", port=1, hosted=True)


def state(*nodes: str, asked: int = 0, lost: tuple[str, ...] = ()) -> State:
    """What the controller knows."""
    known = {n: Node(node=n, name=n, address="", workers=1) for n in nodes}
    return State(
        limits=Limits(node_count=2), nodes=known, asked=asked, lost=dict.fromkeys(lost, "")
    )


def test_a_container_that_was_started_again_is_another_node() -> None:
    assert life(pod("a", uid="u")) == "u"
    assert life(pod("a", uid="u", restarts=1)) == "u.2"
    assert uid_of("u.2") == uid_of("u") == "u"


def test_a_pod_that_ends_takes_its_node_with_it() -> None:
    roster = Roster(state("uid-a"))
    assert roster.see(pod("a")) == []
    assert roster.see(ended("a", 137)) == [Gone("uid-a", "its container exited with status 137")]
    assert roster.see(ended("a", 137)) == [], "told once"


def test_an_agent_that_leaves_is_told_of_with_who_takes_its_pod() -> None:
    roster = Roster(state("uid-a", "uid-b.2"))
    roster.see(pod("a", leaving=True))
    drained = [condition("DisruptionTarget", "True", "EvictionByEvictionAPI", "api")]
    roster.see(pod("b", leaving=True, restarts=1, conditions=drained))
    roster.see(pod("c"))
    by_person = NodeLeft(node="uid-a", detail="its pod was deleted")
    assert roster.explained(NodeLeft(node="uid-a")) == by_person
    assert roster.explained(by_person) == by_person
    told = roster.explained(NodeLeft(node="uid-b.2"))
    assert isinstance(told, NodeLeft) and "evicted" in told.detail
    others = (NodeLeft(node="uid-c"), NodeLeft(node="gone"), NodeReady(node="uid-a", store=STORE))
    for event in others:
        assert roster.explained(event) == event


OOM = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
AGAIN = "its container exited with status 137 (OOMKilled) and was started again"


def again(restarts: int = 1, state: dict[str, Any] | None = None, proxy: int = 0) -> Pod:
    """A pod whose container its kubelet has started again."""
    main = {"name": "main", "state": state or RUNS, "lastState": OOM, "restartCount": restarts}
    other = {"name": "proxy", "state": RUNS, "lastState": OOM, "restartCount": proxy}
    return pod("a", containerStatuses=[main, other])


class Restarting:
    """The roster of a job whose one node has joined, unless it never did."""

    def __init__(self, *, restarts: int = 0, joins: bool = True, known: bool = True) -> None:
        self.state = state("uid-a") if joins else state(asked=1)
        self.roster = Roster(self.state)
        self.connected: list[str] = []
        assert self.sees(pod("a", restarts=restarts)) == []
        if joins and known:
            self.joins()

    def joins(self) -> None:
        event = NodeJoined(node="uid-a", name="a", address="", workers=1)
        assert self.roster.explained(event) == event
        self.connected = ["uid-a"]

    def sees(self, pod: Pod) -> list[Gone]:
        return [*self.roster.see(pod), *self.roster.restarts.ended(pod, lambda: self.connected)]

    def silent(self, node: str = "uid-a", reason: str = "silent") -> str:
        lost = NodeLost(node=node, reason=NodeLostReason(reason), detail="no heartbeat")
        told = self.roster.explained(lost)
        assert isinstance(told, NodeLost)
        return told.detail


def test_a_node_whose_container_the_kubelet_starts_again_is_gone_once_and_it_is_known_how() -> None:
    for before in (0, 3):
        job = Restarting(restarts=before)
        job.connected = []
        assert job.sees(again(before + 1)) == [Gone("uid-a", AGAIN)]
        assert job.sees(again(before + 1)) == []
        job.state.nodes["uid-a.2"] = job.state.nodes.pop("uid-a")
        job.state.lost["uid-a"] = AGAIN
        job.roster.restarts.joined("uid-a.2")
        assert job.sees(again(before + 2)) == [Gone("uid-a.2", AGAIN)]


def test_a_node_that_lives_is_not_taken_for_one_whose_container_was_started_again() -> None:
    job = Restarting()
    assert job.sees(again(0, proxy=4)) == [], "that was a sidecar"
    assert job.sees(again()) == [], "it is connected, so it joined from the new container"
    job.connected = []
    assert job.sees(again()) == [] and job.silent() == "no heartbeat"
    assert not job.roster.restarts.goes_on("uid-a")
    late = Restarting(joins=False)
    assert late.sees(again()) == []
    late.joins()
    assert late.silent() == "no heartbeat", "its agent has started once, its container twice"
    fresh = Restarting()
    fresh.roster.see(again())
    fresh.joins()
    fresh.connected = []
    assert fresh.sees(again()) == [], "it has joined from that one"


def test_what_was_before_a_controller_began_says_nothing_of_nodes_it_took_over() -> None:
    job = Restarting(restarts=2, known=False)
    assert job.sees(again(2)) == [] and job.silent() == "no heartbeat"
    assert job.sees(again(3)) == [Gone("uid-a", AGAIN)]


def test_what_the_kubelet_knows_of_a_node_that_is_silent_is_told_with_it() -> None:
    job = Restarting(joins=False)
    waits = {"waiting": {"reason": "CrashLoopBackOff"}}
    assert job.sees(again(0, waits)) == []
    assert job.silent() == "its container exited with status 137 (OOMKilled) (no heartbeat)"
    assert job.sees(again(1)) == [], "nobody has joined from it"
    assert job.silent() == f"{AGAIN} (no heartbeat)"
    assert job.silent("uid-a.2") == "no heartbeat", "that one runs"
    assert job.silent(reason="process") == "no heartbeat", "somebody knew already"
    assert job.silent("gone") == "no heartbeat"


def test_a_pod_that_never_became_a_node_is_told_of_too() -> None:
    roster = Roster(state(asked=1))
    roster.see(pod("a"))
    assert [gone.node for gone in roster.lose(pod("a"))] == ["uid-a"]


def test_a_pod_that_is_deleted_before_it_has_a_machine_says_nothing_against_any() -> None:
    roster = Roster(state("uid-known", asked=2))
    waits: dict[str, Any] = {"machine": "", "phase": "Pending", "state": {}}
    for name in ("a", "b"):
        roster.see(pod(name, **waits))
    assert roster.missing() == 0
    assert roster.lose(pod("a", leaving=True, **waits)) == []
    assert roster.relist([]) == [], "nor one whose deletion nobody has seen"
    assert (roster.missing(), roster.snatched) == (2, 2), "both are made again"
    roster.withdrawn.add("uid-c")
    roster.see(pod("c", **waits))
    assert roster.lose(pod("c", **waits)) == [] and roster.snatched == 2, "that was us"
    for seen in (pod("d"), ended("e", machine=""), pod("known", machine="")):
        roster.see(pod(seen.metadata.name, machine=seen.spec.node_name))
        assert [gone.node for gone in roster.lose(seen)] == [seen.uid]
    assert roster.snatched == 0, "one has got a machine meanwhile"


def with_sidecar(name: str = "a", *, exit_code: int = 1, policy: str = "Never", **more: Any) -> Pod:
    """A pod in which our container has ended, and another one runs."""
    done = {"terminated": {"exitCode": exit_code, "reason": "Error"}}
    statuses = [{"name": "main", "state": done}, {"name": "proxy", "state": RUNS}]
    seen = pod(name, containerStatuses=statuses, **more)
    spec = msgspec.structs.replace(seen.spec, restart_policy=policy)
    return msgspec.structs.replace(seen, spec=spec)


def test_an_agent_that_ends_before_it_registers_is_known_at_once_though_a_sidecar_runs_on() -> None:
    roster = Roster(state(asked=1))
    roster.see(pod("a"))
    (gone,) = roster.see(with_sidecar())
    assert gone == Gone("uid-a", "its container exited with status 1")
    assert roster.see(with_sidecar()) == [], "told once"
    assert roster.alone("uid-a") is not None, "it can be removed"
    roster._state.lost["uid-a"] = "told"
    assert roster.lose(with_sidecar(leaving=True)) == [] and not roster.pods


@pytest.mark.parametrize(
    ("seen", "known"),
    [
        (with_sidecar(), state("uid-a")),  # its connection tells more
        (with_sidecar(), state(lost=("uid-a",))),
        (with_sidecar(exit_code=0), state(asked=1)),
        (with_sidecar(policy="Always"), state(asked=1)),  # its kubelet starts it again
        (with_sidecar(policy="OnFailure"), state(asked=1)),
        (pod("a"), state(asked=1)),
        (with_sidecar(), State(limits=Limits(node_count=1), phase=Phase.CLOSING)),
    ],
)
def test_one_that_has_registered_or_may_come_or_is_to_end_is_not_taken_for_that(
    seen: Pod, known: State
) -> None:
    assert Roster(known).see(seen) == []


def test_a_node_that_is_known_to_be_lost_is_not_told_again() -> None:
    roster = Roster(state(lost=("uid-a",)))
    roster.see(pod("a"))
    assert roster.see(ended("a")) == []


def test_the_later_life_of_a_pod_is_the_one_that_goes() -> None:
    roster = Roster(state("uid-a.2", lost=("uid-a",)))
    roster.see(pod("a", restarts=1))
    assert [gone.node for gone in roster.lose(pod("a"))] == ["uid-a.2"]
    roster.see(pod("a", restarts=1))
    assert roster.alone("uid-a") is None, "its pod is the home of another node now"


def test_the_controllers_pod_is_no_node() -> None:
    roster = Roster(state())
    roster.see(pod("c", role="controller"))
    assert not roster.pods


def test_a_new_list_tells_what_was_missed() -> None:
    roster = Roster(state("uid-a", "uid-b"))
    for name in "ab":
        roster.see(pod(name))
    assert [gone.node for gone in roster.relist([pod("b"), pod("c")])] == ["uid-a"]
    assert set(roster.pods) == {"uid-b", "uid-c"}


def test_pods_are_made_until_every_node_that_was_asked_for_can_come() -> None:
    roster = Roster(state("uid-a", asked=2))
    roster.see(pod("a"))
    assert roster.missing() == 2
    roster.see(pod("b"))
    assert roster.missing() == 1
    roster.see(pod("c", leaving=True))
    assert roster.missing() == 1, "one that is being deleted does not count"


def test_the_pod_of_a_lost_node_does_not_count() -> None:
    roster = Roster(state("uid-b", asked=1, lost=("uid-a",)))
    roster.see(pod("a"))
    roster.see(pod("b"))
    assert roster.missing() == 1
    assert (roster.room(2), roster.useless()) == (0, 1), "the cluster still runs it"
    roster.see(pod("a", leaving=True))
    assert (roster.room(2), roster.useless()) == (1, 1)


def test_a_pod_on_its_way_out_is_replaced_once_its_node_is_given_up_and_only_once() -> None:
    """Its machine's kubelet has stopped: the pod stays for ever, and its node trains on."""
    known = state("uid-a", "uid-b")
    roster = Roster(known)
    roster.see(pod("a", leaving=True))
    roster.see(pod("b"))
    assert roster.missing() == 0, "nobody has asked for another"
    del known.nodes["uid-a"]
    known.lost["uid-a"], known.asked = "silent", 1
    assert roster.missing() == 1
    roster.see(pod("c"))
    assert roster.missing() == 0
    known.nodes["uid-c"], known.asked = known.nodes["uid-b"], 0
    assert roster.missing() == 0, "the pod that stays asks for no further one"


def test_never_more_pods_can_train_than_the_job_wants_whatever_is_asked_for() -> None:
    roster = Roster(state("uid-a", asked=100))
    roster.see(pod("a"))
    roster.see(pod("b", leaving=True))
    roster.see(pod("c"))
    assert roster.missing() == 99
    assert roster.room(3) == 1
    roster.see(pod("d"))
    assert roster.room(3) == 0


def test_pods_that_never_go_hold_up_new_ones_at_last() -> None:
    roster = Roster(state(asked=2))
    for number in range(9):
        roster.see(pod(f"run-{number}", leaving=True))
    assert (roster.room(2), roster.useless()) == (1, 9)
    roster.see(pod("run-9", leaving=True))
    assert roster.room(2) == 0


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["join", "go", "lose", "end"]))),
)
def test_whatever_happens_there_are_never_more_pods_than_asked_for(
    wanted: int, story: list[tuple[int, str]]
) -> None:
    """Controller and cluster in turn: pods join, are marked for deletion, are given up, end."""
    known = state(asked=wanted)
    roster, made = Roster(known), 0
    for which, what in story:
        while min(roster.missing(), roster.room(wanted)) > 0:
            roster.see(pod(f"run-{made}"))
            made += 1
        found = sorted(roster.pods)
        uid = found[which % len(found)]
        seen = roster.pods[uid]
        match what:
            case "join" if uid not in {*known.nodes, *known.lost}:
                known.nodes[uid] = Node(node=uid, name=uid, address="", workers=1)
                known.asked -= 1
            case "go":
                roster.see(pod(seen.metadata.name, leaving=True))
            case "lose" if uid in known.nodes:
                del known.nodes[uid]
                known.lost[uid] = "silent"
                known.asked += 1
            case "end":
                roster.see(ended(seen.metadata.name))
                if known.nodes.pop(uid, None) is not None:
                    known.asked += 1
                known.lost[uid] = "ended"
            case _:
                continue
        assert len(known.nodes) + known.asked == wanted
        assert sum(not pod.leaving for pod in roster.pods.values()) <= wanted


def test_a_controller_that_comes_back_names_nodes_as_it_knew_them() -> None:
    roster = Roster(state("uid-a.2", "uid-gone", lost=("uid-b",)))
    roster.relist([pod("a", restarts=1), pod("b"), pod("c")])
    assert roster.existing() == ["uid-a.2", "uid-b", "uid-c"]


def test_names_are_never_used_twice() -> None:
    roster = Roster(state())
    roster.see(pod("run-7"))
    roster.see(ended("run-9"))
    assert [roster.next_name("run") for _ in range(2)] == ["run-10", "run-11"]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["see", "end", "lose"])), max_size=30
    )
)
def test_whatever_happens_a_node_goes_only_after_it_came(story: list[tuple[str, str]]) -> None:
    roster, there = Roster(state("uid-a", "uid-b")), set()
    for name, what in story:
        match what:
            case "see":
                assert roster.see(pod(name)) == []
                there.add(name)
            case "end":
                gone = roster.see(ended(name))
            case _:
                gone = roster.lose(pod(name))
        if what != "see":
            assert [g.node for g in gone] == ([f"uid-{name}"] if name in there else [])
            there.discard(name)
        assert {p.metadata.name for p in roster.pods.values()} == there


def test_at_the_end_pods_are_awaited_that_still_run_and_are_not_on_their_way_out() -> None:
    roster = Roster(state("uid-a"))
    assert not roster.running()
    roster.see(pod("a"))
    roster.see(pod("l", role="launcher"))
    assert roster.running() == {"uid-a", "uid-l"}
    roster.see(ended("a", 0))
    assert roster.running(), "the launcher does"
    roster.see(ended("l", 0, role="launcher"))
    assert not roster.running()
    roster.see(pod("b", leaving=True))
    assert not roster.running()


def test_of_pods_that_are_gone_only_the_newest_are_remembered() -> None:
    """A controller lives for months, and pods come and go all the time."""
    roster = Roster(state())
    for number in range(2 * GONE_KEPT):
        seen = pod(f"run-{number}", restarts=number % 2, machine="")
        roster.see(seen)
        roster.restarts.joined(life(seen))
        roster.restarts.ended(seen, list)
        roster.withdrawn.add(seen.uid)
        over = ended(f"run-{number}", machine="", restarts=number % 2)
        assert roster.see(over) == [], "it was withdrawn"
        assert roster.lose(over) == roster.restarts.ended(over, list) == []
    kept = [*vars(roster).values(), *vars(roster.restarts).values()]
    assert max(len(one) for one in kept if isinstance(one, dict | set)) == GONE_KEPT
    assert f"uid-run-{2 * GONE_KEPT - 1}" in roster.gone and "uid-run-0" not in roster.gone
