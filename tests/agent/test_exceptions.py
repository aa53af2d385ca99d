"""An exception that ends a worker is told when it is raised, not when Python has come apart."""

import signal
from pathlib import Path

import pytest

from holdfast.events import WorkerExited
from tests.agent.conftest import Node
from tests.agent.controller_stub import is_alive, until
from tests.more import sample

SAVES_AT_EXIT = """
import atexit, os, time
from pathlib import Path

def save():
    while not Path("go").exists():
        time.sleep(0.01)
    Path("saved").write_text("state")

atexit.register(save)
raise ValueError("bad")
"""


def test_it_is_told_while_the_worker_still_ends_and_its_hooks_get_the_usual_grace(
    node: Node, home: Path
) -> None:
    controller, _ = node(SAVES_AT_EXIT)
    controller.ready()
    controller.start()
    [pid] = controller.started()
    exited = controller.exited()
    assert (exited.exit_code, exited.signal) == (1, None)
    assert exited.error is not None and exited.error.type == "ValueError"
    assert is_alive(pid) and not (home / "saved").exists()
    (home / "go").touch()
    controller.stop(grace_s=120.0)
    assert (home / "saved").read_text() == "state"
    assert not is_alive(pid)


def test_hooks_that_do_not_end_are_killed_after_the_grace_time(node: Node, home: Path) -> None:
    controller, _ = node(SAVES_AT_EXIT)
    controller.ready()
    controller.start()
    [pid] = controller.started()
    controller.exited()
    controller.stop(grace_s=0.1)
    assert not is_alive(pid) and not (home / "saved").exists()


ENDS = {
    "thread": "t = threading.Thread(target=int, args=('x',)); t.start(); t.join(); stay()",
    "exit": "sys.exit(3)",
    "interrupt": "raise KeyboardInterrupt",
    "caught": "try:\n    int('x')\nexcept ValueError:\n    stay()",
}
STAYS = """
import atexit, sys, threading, time
from pathlib import Path

def stay():
    print("here", flush=True)
    while not Path("go").exists():
        time.sleep(0.01)

atexit.register(stay)
"""


@pytest.mark.parametrize(
    ("ends", "code", "number"),
    sample([("thread", 0, None), ("interrupt", None, 2)], [("exit", 3, None), ("caught", 0, None)]),
)
def test_what_does_not_end_a_worker_with_status_1_is_told_when_it_has_ended(
    node: Node, home: Path, ends: str, code: int | None, number: int | None
) -> None:
    controller, agent = node(STAYS + ENDS[ends])
    controller.ready()
    controller.start()
    until(lambda: "here" in agent.log(), "the worker goes on, or ends")
    looks = len(controller.reports)
    until(lambda: len(controller.reports) > looks + 1, "the agent looks a few times more")
    assert not controller.of_kind(WorkerExited)
    (home / "go").touch()
    exited = controller.exited()
    assert (exited.exit_code, exited.signal) == (code, number)
    assert number in (None, signal.SIGINT)
