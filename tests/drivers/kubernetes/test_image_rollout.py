"""Which pod gives way to one with another image: one at a time, and only while nothing is wrong."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from holdfast.controller import NodeState, Phase
from holdfast.controller.state import HealthRecord, Stage, UpdateRecord
from holdfast.drivers.kubernetes import doctor_image, images
from holdfast.drivers.kubernetes.cluster import ApiError, Kind
from holdfast.drivers.kubernetes.images import (
    CONDITION,
    ImageRollout,
    RolloutStep,
    mark,
    refusal,
    with_image,
)
from holdfast.drivers.kubernetes.manifests.names import IMAGE
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.origin import JobOrigin
from holdfast.drivers.kubernetes.roster import Roster
from holdfast.events import HealthChanged, Severity, UpdateRequested
from holdfast.versions import FIRST, Version
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.seen import pod
from tests.drivers.kubernetes.test_roster import state

NEW = Version(number=2, image="img:2")
FRESH = {IMAGE: mark("img:2")}


class Scene:
    """Members a and b, and `spares`; version 2 has another image."""

    def __init__(self, spares: str = "", fresh: str = "") -> None:
        self.state = state(*(f"uid-{name}" for name in "ab" + spares))
        self.roster = Roster(self.state)
        self.now = 0.0
        self.rollout = ImageRollout(self.state, self.roster, lambda: self.now)
        for name in "ab" + spares:
            self.roster.see(pod(name, labels=FRESH if name in fresh else {}))
            kind = NodeState.SPARE if name in spares else NodeState.MEMBER
            self.state.nodes[f"uid-{name}"].state = kind
        self.state.ranks = {0: "uid-a", 1: "uid-b"}
        self.state.spares = [f"uid-{name}" for name in spares]
        self.state.phase = Phase.RUNNING
        self.state.updating.used = [NEW]
        self.state.updating.records = [
            UpdateRecord(id="x", version=NEW, by="me", at=0.0, when="next-step", stage=Stage.USED)
        ]

    def evicted(self) -> str:
        """The pod that gives way now."""
        step = self.rollout.next()
        assert step.facts == ()
        return step.evict.metadata.name if step.evict is not None else ""

    def told(self) -> list[tuple[str, Severity]]:
        """What the controller is told now."""
        step = self.rollout.next()
        assert step.evict is None
        facts = [fact for fact in step.facts if isinstance(fact, HealthChanged)]
        return [(fact.node, fact.severity) for fact in facts]

    def back(self) -> UpdateRequested | None:
        """The wish to go back, if that is what is done now."""
        step = self.rollout.next()
        return next((fact for fact in step.facts if isinstance(fact, UpdateRequested)), None)

    def waits(self) -> bool:
        """Whether time counts."""
        return self.rollout.waits

    def announced(self, node: str) -> None:
        """It was told that this node goes."""
        self.state.health[node] = {
            CONDITION: HealthRecord(
                condition=CONDITION,
                device="",
                severity=Severity.LEAVES,
                detail="",
                advice="",
                at=0.0,
            )
        }


def test_a_spare_gives_way_first_and_then_members_in_turn_to_the_one_that_came() -> None:
    assert Scene("cd").evicted() == "c"
    assert Scene("cd", fresh="c").told() == [("uid-a", Severity.LEAVES)]
    assert Scene("cd", fresh="ca").told() == [("uid-b", Severity.LEAVES)]
    assert Scene("cd", fresh="abc").evicted() == "d", "the spares that are left come last"
    assert Scene("cd", fresh="abcd").rollout.next() == RolloutStep()


def test_without_spares_a_member_gives_way() -> None:
    assert Scene().evicted() == "a"
    assert Scene(fresh="a").evicted() == "b"


def test_one_at_a_time() -> None:
    scene = Scene("c")
    step = scene.rollout.next()
    assert step.evict is not None
    scene.rollout.done(step.evict)
    assert scene.rollout.next() == RolloutStep(), "the watch has not shown yet that it goes"
    scene.roster.see(pod("c", leaving=True))
    assert scene.rollout.next() == RolloutStep()
    scene.roster.lose(pod("c"))
    del scene.state.nodes["uid-c"]
    scene.state.spares.clear()
    scene.roster.see(pod("d", labels=FRESH))
    assert scene.rollout.next() == RolloutStep(), "the next one is on its way"
    scene.state.nodes["uid-d"] = scene.state.nodes["uid-a"].__class__(
        node="uid-d", name="d", address="", workers=1
    )
    assert scene.rollout.next() == RolloutStep(), "and not ready yet"
    scene.state.nodes["uid-d"].state = NodeState.SPARE
    scene.state.spares = ["uid-d"]
    assert scene.told() == [("uid-a", Severity.LEAVES)]
    scene.announced("uid-a")
    assert scene.rollout.next() == RolloutStep(), "it was told"


def test_nothing_gives_way_while_something_else_is_the_matter() -> None:
    for phase in (Phase.WAITING, Phase.STARTING, Phase.RECOVERING, Phase.CLOSING):
        scene = Scene("c")
        scene.state.phase = phase
        assert scene.rollout.next() == RolloutStep()


def test_what_is_taken_back_stays_and_a_pod_that_cannot_start_goes_first() -> None:
    scene = Scene("c", fresh="c")
    scene.announced("uid-a")
    scene.state.updating.used.clear()
    assert scene.told() == [("uid-a", Severity.OK)]
    scene.state.health.clear()
    scene.roster.see(pod("d", labels=FRESH, phase="Pending", state={"waiting": {}}))
    scene.state.phase = Phase.RECOVERING
    assert scene.evicted() == "d", "its image may not be there at all"


PATIENCE_S = 600.0


@pytest.mark.parametrize(
    ("phase", "within_s"), [(Phase.RUNNING, PATIENCE_S), (Phase.WAITING, PATIENCE_S / 2)]
)
def test_the_version_before_comes_back_if_no_pod_becomes_ready(
    phase: Phase, within_s: float
) -> None:
    """Where the job waits for it, before it waits for ever."""
    scene = Scene()
    scene.state.phase, scene.state.asked = phase, 1
    stuck = pod("c", labels=FRESH, phase="Pending", state={"waiting": {}})
    scene.roster.see(stuck)
    assert scene.back() is None and scene.waits()
    scene.now = within_s - 1
    assert scene.back() is None
    scene.roster.lose(stuck)  # each pod that fails is followed by another one
    assert scene.rollout.next().facts == ()
    scene.roster.see(pod("d", labels=FRESH, phase="Pending", state={"waiting": {}}))
    scene.now = within_s
    wish = scene.back()
    assert wish is not None and wish.back and "roll-out of version 2" in wish.by
    again = UpdateRecord(id=wish.id, version=FIRST, by=wish.by, at=0.0, when="next-step", back=True)
    scene.state.updating.records.append(again)
    assert scene.back() is None, "it is told once"
    scene.state.updating.used.clear()
    again.stage = Stage.USED
    assert scene.evicted() == "d", "before a member is"


def test_time_counts_while_no_more_become_ready_and_only_where_they_have_a_machine() -> None:
    scene = Scene()
    scene.roster.see(pod("c", labels=FRESH, machine="", phase="Pending", state={"waiting": {}}))
    assert scene.back() is None and not scene.waits(), "the cluster has no room"
    scene.roster.see(pod("c", labels=FRESH))
    assert scene.back() is None and scene.waits()
    scene.now = PATIENCE_S - 1
    scene.state.nodes["uid-c"] = scene.state.nodes["uid-a"].__class__(
        node="uid-c", name="c", address="", workers=1, state=NodeState.SPARE
    )
    assert scene.back() is None and not scene.waits()
    scene.roster.see(pod("d", labels=FRESH))
    for scene.now in (PATIENCE_S, 2 * PATIENCE_S - 1):
        assert scene.back() is None
    scene.now = 2 * PATIENCE_S
    assert scene.back() is not None


def test_the_last_pod_belongs_to_the_roll_out() -> None:
    scene = Scene(fresh="a")
    assert scene.evicted() == "b"
    scene.roster.lose(pod("b"))
    scene.state.asked = 1
    assert scene.back() is None
    scene.roster.see(pod("c", labels=FRESH, state={"waiting": {}}))
    assert scene.back() is None
    scene.now = PATIENCE_S
    assert scene.back() is not None


def test_a_node_that_is_lost_after_the_roll_out_says_nothing_of_the_image() -> None:
    scene = Scene(fresh="ab")
    assert scene.back() is None
    scene.roster.lose(pod("b"))
    scene.roster.see(pod("c", labels=FRESH, state={"waiting": {}}))
    for scene.now in (0.0, 10 * PATIENCE_S):
        assert scene.back() is None and not scene.waits()


def test_a_newer_wish_is_not_taken_back() -> None:
    scene = Scene()
    scene.roster.see(pod("c", labels=FRESH, state={"waiting": {}}))
    assert scene.back() is None
    newer = Version(number=3, image="img:3")
    wish = UpdateRecord(id="y", version=newer, by="me", at=0.0, when="next-step")
    scene.state.updating.records.append(wish)
    scene.now = PATIENCE_S
    assert wish.stage is Stage.PREPARING and scene.back() is None


def test_only_pods_of_our_own_are_replaced_and_state_has_to_be_somewhere_meanwhile() -> None:
    assert refusal(asked("pods", nodes={"count": 2})) == ""
    assert refusal(asked("pods", checkpoints={"shared": {"path": "/s"}})) == ""
    for spares in (0, 1):  # which has no copy of what a single node keeps
        alone = asked("pods", nodes={"count": 1, "spares": spares})
        assert "would lose the state of the training" in refusal(alone)
    for engine, words in (
        ("job", "pod template of a Job"), ("jobset", "JobSet"), ("trainjob", "spec.trainer"),
        ("pytorchjob", "pods of a pytorchjob"), ("volcano", "pods of a volcano"),
    ):  # fmt: skip
        why = refusal(asked(engine, nodes={"count": 2}))  # type: ignore[arg-type]
        assert words in why and "--replace" in why


def test_the_pod_that_tries_pulls_as_a_node_does_and_ends_though_its_controller_is_gone() -> None:
    """Pull secrets may be those of the service account; what nobody deletes asks for no room."""
    request = asked(
        "pods",
        image={"name": "img:1", "pull_secrets": ["key"]},
        access={"service_account": "trainers"},
        scheduling={"node_selector": {"pool": "a"}},
    )
    spec = doctor_image.pod(with_image(request, "img:2"), "run-image-x")["spec"]
    assert spec["containers"][0]["image"] == "img:2"
    assert spec["serviceAccountName"] == "trainers" and not spec["automountServiceAccountToken"]
    assert spec["imagePullSecrets"] == [{"name": "key"}] and spec["nodeSelector"] == {"pool": "a"}
    assert doctor_image.WITHIN_S < spec["activeDeadlineSeconds"] < 2 * doctor_image.WITHIN_S


class Answers:
    """A cluster in which the pod that looks has ended, and reading what it said goes like this."""

    def __init__(self, *fail: int, refuse: Sequence[int] = ()) -> None:
        self.fail, self.refuse, self.left = [*fail], [*refuse], ["pod"]

    async def create(self, body: Body) -> Body:
        if self.refuse:
            raise ApiError(self.refuse.pop(0), "LeaseInDoubt", "not now")
        return body

    async def get(self, _kind: Kind, name: str) -> Body:
        return {"metadata": {"name": name, "uid": "u"}, "status": {"phase": "Succeeded"}}

    async def log(self, _pod: str, *, container: str) -> AsyncIterator[str]:
        if self.fail:
            raise ApiError(self.fail.pop(0), "asked for", "not now")
        yield f'{{"python": "3.11.7", "torch": "2.9", "holdfast": "{container}"}}'

    async def delete(self, _kind: Kind, _name: str, **_how: object) -> None:
        self.left.clear()


@pytest.mark.parametrize(
    ("fail", "found"),
    [((0, 503), "python 3.11.7, torch 2.9, holdfast look"), ((403,), "output cannot be read")],
)
def test_what_a_busy_api_server_does_not_show_of_the_trial_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, fail: tuple[int, ...], found: str
) -> None:
    monkeypatch.setattr(doctor_image, "POLL_S", 0.0)
    there: Any = Answers(*fail)
    body = {"metadata": {"name": "run-image-x"}}
    told = asyncio.run(doctor_image.looked(there, asked(image="img:2"), body))
    assert found in told.found and there.left == []


@pytest.mark.parametrize(
    ("refuse", "why"), [((0, 503), ""), ((403,), "image img:2 cannot be tried: not now")]
)
def test_an_image_is_tried_again_where_the_cluster_does_not_let_us_at_the_moment(
    monkeypatch: pytest.MonkeyPatch, refuse: tuple[int, ...], why: str
) -> None:
    async def found(*_: object) -> JobOrigin:
        return JobOrigin("u", {"kind": "ConfigMap", "name": "run-job", "uid": "u"})

    monkeypatch.setattr(doctor_image, "POLL_S", 0.0)
    monkeypatch.setattr(images, "origin", found)
    there: Any = Answers(refuse=refuse)
    request = asked("pods", nodes=2, image="img:1")
    told = asyncio.run(images.why_not(there, request, "img:2"))
    assert why in told if why else not told
