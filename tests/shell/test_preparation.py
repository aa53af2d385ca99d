"""Nodes are asked to prepare a version: together, or one of them first; the first no ends it."""

from typing import Any

from holdfast.actions import PrepareUpdate
from holdfast.controller import Limits, NodeState, State
from holdfast.controller.state import Node
from holdfast.events import UpdatePrepared
from holdfast.messages import PrepareVersion, VersionPrepared
from holdfast.shell.preparation import NODE_S, Preparation
from holdfast.versions import Version

VERSION = Version(number=2)


class Scene:
    """Two members, a spare and a node that only joins, all of them connected."""

    def __init__(self, *, canary: bool = False, connected: str = "abcj") -> None:
        self.state = State(limits=Limits(node_count=2), ranks={0: "a", 1: "b"}, spares=["c"])
        for name, kind in zip("abcj", ("member", "member", "spare", "joining"), strict=True):
            self.state.nodes[name] = Node(
                node=name, name=f"node-{name}", address="h", workers=1, state=NodeState(kind)
            )
        self.sent: list[tuple[str, PrepareVersion]] = []
        self.told: list[Any] = []
        self.preparation = Preparation(self.state, lambda *m: self.sent.append(m), self.told.append)
        order = PrepareUpdate(version=VERSION, canary=canary, reason="x")
        self.preparation.begin(order, set(connected), 0.0)

    def answer(self, node: str, why: str = "", at: float = 1.0) -> None:
        number = self.sent[-1][1].number
        self.preparation.answered(node, VersionPrepared(number=number, why=why), at)

    @property
    def asked(self) -> str:
        return "".join(node for node, _ in self.sent)


def test_all_that_can_start_workers_are_asked_and_their_answers_are_told_together() -> None:
    scene = Scene()
    assert scene.asked == "abc" and all(m.version == VERSION for _, m in scene.sent)
    scene.answer("a")
    scene.answer("a")
    scene.answer("b")
    assert not scene.told
    scene.answer("c")
    assert scene.told == [UpdatePrepared(version=2, ready_count=3)]


def test_the_first_that_cannot_ends_it() -> None:
    scene = Scene()
    scene.answer("a")
    scene.answer("b", "SyntaxError: x")
    scene.answer("c", "SyntaxError: x")
    assert scene.told == [
        UpdatePrepared(version=2, ready_count=1, why="SyntaxError: x", node="node-b")
    ]


def test_a_canary_is_a_spare_and_the_others_follow_it() -> None:
    scene = Scene(canary=True)
    assert scene.asked == "c"
    scene.answer("c")
    assert scene.asked == "cab"
    scene.answer("a")
    scene.preparation.gone("b", 2.0)
    assert scene.told == [UpdatePrepared(version=2, ready_count=2, missing=("node-b",))]


def test_nobody_follows_a_canary_that_cannot() -> None:
    scene = Scene(canary=True)
    scene.preparation.gone("a", 0.5)
    scene.answer("c", "no")
    assert scene.asked == "c"
    assert scene.told == [
        UpdatePrepared(version=2, ready_count=0, why="no", node="node-c", missing=("node-a",))
    ]


def test_who_is_not_connected_or_says_nothing_is_not_waited_for() -> None:
    scene = Scene(connected="ab")
    scene.answer("a")
    scene.preparation.look(NODE_S - 1.0)
    assert not scene.told
    scene.preparation.look(NODE_S)
    assert scene.told == [UpdatePrepared(version=2, ready_count=1, missing=("node-b", "node-c"))]


def test_without_a_node_the_answer_is_that() -> None:
    assert Scene(connected="").told == [
        UpdatePrepared(version=2, ready_count=0, missing=("node-a", "node-b", "node-c"))
    ]


def test_a_later_version_ends_the_questions_about_the_one_before() -> None:
    scene = Scene()
    order = PrepareUpdate(version=Version(number=3), reason="y")
    scene.preparation.begin(order, {"a"}, 1.0)
    late = VersionPrepared(number=scene.sent[0][1].number, why="no")
    scene.preparation.answered("a", late, 1.0)
    assert not scene.told
    scene.answer("a")
    assert [one.version for one in scene.told] == [3]


def test_another_image_is_tried_before_any_node_is_asked() -> None:
    scene = Scene(connected="ab")
    tried: list[Any] = []
    scene.preparation.try_image = lambda image, done: tried.append((image, done))
    order = PrepareUpdate(version=Version(number=3, image="img:2"), canary=False, reason="x")
    scene.sent.clear()
    scene.preparation.begin(order, "ab", 2.0)
    (image, done), *_ = tried
    assert (image, scene.asked) == ("img:2", "")
    scene.preparation.gone("a", 3.0)
    scene.preparation.look(900.0)
    assert not scene.told, "it takes as long as it takes"
    done("", "b", 900.0)
    assert scene.asked == "b"
    scene.answer("b", at=901.0)
    assert scene.told == [UpdatePrepared(version=3, ready_count=1, missing=("node-a", "node-c"))]


def test_an_image_that_cannot_be_used_ends_it_and_one_that_was_overtaken_is_no_news() -> None:
    scene = Scene()
    tried: list[Any] = []
    scene.preparation.try_image = lambda _image, done: tried.append(done)
    for number in (3, 4):
        version = Version(number=number, image=f"img:{number}")
        order = PrepareUpdate(version=version, canary=False, reason="x")
        scene.preparation.begin(order, "ab", 2.0)
    tried[0]("", "ab", 3.0)
    assert scene.asked == "abc", "only what was asked for the first version"
    tried[1]("ImagePullBackOff", "ab", 3.0)
    assert scene.told == [UpdatePrepared(version=4, ready_count=0, why="ImagePullBackOff")]


def test_where_nodes_have_no_image_none_can_be_asked_for() -> None:
    scene = Scene()
    order = PrepareUpdate(version=Version(number=3, image="img:2"), canary=False, reason="x")
    scene.preparation.begin(order, "abc", 2.0)
    assert "have no image" in scene.told[0].why


def test_only_an_image_that_was_never_used_is_tried_by_the_engine() -> None:
    scene, tried = Scene(), list[str]()
    scene.preparation.try_image = lambda image, _: tried.append(image)
    scene.state.updating.used = [Version(number=2, image="img:2"), Version(number=3, image="img:3")]
    for image in ("img:2", "", "img:4"):
        version = Version(number=4, image=image)
        scene.preparation.begin(PrepareUpdate(version=version, reason="x"), set("abc"), 0.0)
    assert tried == ["img:4"]
