"""In a pod of KubeRay's, Ray runs beside the agent and ends with it, no sooner and no later."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.events import NodeLeft
from holdfast.messages import Leave
from tests.agent.controller_stub import StubController, is_alive, until
from tests.agent.pods import Pod, pod

SHORT = "print('trained')"
RAY = "echo $$ >> {0}; test -e {1} || exec sleep 600"

Make = Callable[..., tuple[StubController, Pod]]


@pytest.fixture
def make(home: Path, nothing_left: None) -> Iterator[Make]:  # noqa: ARG001
    """Make a stub controller and a pod; ended, and checked for leftovers, with the test."""
    with ExitStack() as stack:
        yield lambda source=SHORT, **job: stack.enter_context(pod(home, source, **job))


class _Ray:
    """What stands for `ray start --block`: says who it is, and ends at once when `lost`."""

    def __init__(self, folder: Path) -> None:
        self._says, self.lost = folder / "ray.pid", folder / "lost"
        self.command = RAY.format(self._says, self.lost)

    def starts(self) -> list[int]:
        """The shell of each start so far."""
        return [int(word) for word in self._says.read_text().split()] if self.runs() else []

    def runs(self) -> bool:
        return self._says.exists() and self._says.read_text().endswith("\n")

    def start(self, pod: Pod) -> int:
        """With the agent of a pod; its process id."""
        pod.start(HOLDFAST_ENGINE="rayjob", KUBERAY_GEN_RAY_START_CMD=self.command)
        until(self.runs, "Ray has started")
        return self.starts()[0]


def test_ray_outlives_an_attempt_and_ends_with_the_agent(make: Make, tmp_path: Path) -> None:
    (controller, pod), ray = make(), _Ray(tmp_path)
    shell = ray.start(pod)
    controller.ready()
    controller.start()
    controller.exited()
    controller.stop()
    assert is_alive(shell), "the agent ends what is left below it, and Ray is not"
    controller.send(Leave(reason="test", exit_code=113))
    assert pod.ended() == 113
    until(lambda: not is_alive(shell), "Ray has ended with the agent")


def test_ray_is_started_again_whenever_it_ends(make: Make, tmp_path: Path) -> None:
    (controller, pod), ray = make(), _Ray(tmp_path)
    ray.lost.touch()
    shell = ray.start(pod)
    controller.ready()
    until(lambda: len(ray.starts()) > 1, "another start")
    os.kill(shell, signal.SIGKILL)
    until(lambda: ray.starts()[-1] != shell, "another shell")
    pod.signal(signal.SIGTERM)
    assert pod.ended() == 143


def test_after_the_end_a_worker_stays_ready_until_the_cluster_goes(
    make: Make, tmp_path: Path
) -> None:
    (controller, pod), ray = make(), _Ray(tmp_path)
    shell = ray.start(pod)
    controller.ready()
    controller.send(Leave(reason="test", exit_code=0))
    controller.wait_for(NodeLeft)
    pod.answers("/ready", 200)
    assert is_alive(shell)
    pod.signal(signal.SIGTERM)
    assert pod.ended() == 0


def test_who_waits_for_a_rayjob_waits_as_long_as_it_takes(make: Make) -> None:
    controller, pod = make(recovery={"controller_absence_s": 0.1})
    controller.close()
    pod.start("--wait", HOLDFAST_ENGINE="rayjob", KUBERAY_GEN_RAY_START_CMD="exit 1")
    assert pod.process is not None and pod.process.stderr is not None
    assert b"no controller" in pod.process.stderr.readline(), "after the absence that is allowed"
    controller.outcome = "succeeded"
    controller.open(same_port=True)
    assert pod.ended() == 0
