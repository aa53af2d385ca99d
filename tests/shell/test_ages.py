"""A fact is as old as it is when it is decided, and not as when it came."""

import msgspec
import pytest

from holdfast.controller import Limits
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    Broken,
    DeadlinePassed,
    NumbersBroke,
    Progress,
    Progressed,
    Quantity,
    StopRequested,
    WorkerExited,
)
from holdfast.shell.ages import aged
from holdfast.shell.decisions import FULL_DISK_RETRY_S
from tests.shell.scene import Scene, ready
from tests.shell.test_shell import ONE, exited, lost, stopped

NAN = Broken(step=1, what=Quantity.LOSS, value="nan", ago_s=2.0)


def test_a_fact_that_waited_for_room_on_the_disk_is_as_old_as_it_then_is() -> None:
    """What it tells of was booked as if it had happened when there was room again."""
    scene = Scene(ONE)
    (a,) = scene.running("a")
    scene.book.full = True
    scene.shell.put(ready("a"))
    scene.settle()
    progress = Progress(step=4, step_ago_s=1.0)
    a.fact(2, msgspec.structs.replace(exited("a"), ago_s=0.5, progress=progress))
    scene.wait(4, a)
    scene.book.full = False
    scene.wait(FULL_DISK_RETRY_S, a)
    (told,) = scene.events(WorkerExited)
    assert isinstance(told, WorkerExited)
    assert told.ago_s == pytest.approx(0.5 + 4 + FULL_DISK_RETRY_S, abs=0.3)
    assert told.progress.step_ago_s == pytest.approx(told.ago_s + 0.5)


@pytest.mark.parametrize(
    ("event", "later"),
    [
        (Progressed(attempt=1, progress=Progress(step=3, step_ago_s=1.0)), {"step_ago_s": 3.0}),
        (Progressed(attempt=1, progress=Progress()), {"step_ago_s": 0.0}),
        (
            NumbersBroke(
                attempt=1, rank=0, broke=Broken(step=1, what=Quantity.LOSS, value="nan", ago_s=2.0)
            ),
            {"ago_s": 4.0},
        ),
    ],
)
def test_ages_within_a_fact_grow_too(event: AnyEvent, later: dict[str, float]) -> None:
    told = msgspec.to_builtins(aged(event, 2.0))
    inner = told.get("progress", told.get("broke"))
    assert {name: inner[name] for name in later} == later
    assert aged(event, 0.0) is event and aged(event, -1.0) is event  # a clock was set back
    assert aged(DeadlinePassed(), 5.0) == DeadlinePassed()


def test_removing_a_node_makes_the_last_step_no_younger() -> None:
    scene = Scene(Limits(node_count=2))
    _, b = scene.running("a", "b")
    scene.shell.put(StopRequested(by="me"))
    scene.settle()
    progress = Progress(step=4, step_ago_s=1.0)
    b.fact(2, msgspec.structs.replace(stopped("b"), progress=progress))
    scene.engine.at_once = False
    lost(scene, "a")
    scene.wait(3, b)
    scene.engine.removing.pop("a")(())
    scene.settle()
    (told,) = scene.events(AttemptStopped)
    assert isinstance(told, AttemptStopped)
    assert told.progress == Progress(step=4, step_ago_s=4.0)
