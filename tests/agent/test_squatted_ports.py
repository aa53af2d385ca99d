"""Somebody else listens where a node wants to: training goes on at another port, and the node says
which ports are taken where that may matter."""

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.agent.pod import STORE_PORTS
from holdfast.events import STORE_DIED_BEFORE, HealthChanged, NodeReady, Severity, Store
from holdfast.messages import Leave
from tests.agent.conftest import Node
from tests.agent.controller_stub import AgentProcess, StubController, until
from tests.agent.pods import Pod, pod

pytestmark = pytest.mark.slow

FIRST = 31000
RANGE = range(FIRST, FIRST + STORE_PORTS)
STORAGE = 31900
MEET = "import torch.distributed as d; d.init_process_group('gloo'); print('met', flush=True)"
LATER = """
import os, time
print("up", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
"""
BARRIER = "d.barrier(); print('on', flush=True)"

Make = Callable[..., tuple[StubController, Pod]]
Squat = Callable[[str, int], None]


@pytest.fixture
def make(home: Path, nothing_left: None) -> Iterator[Make]:  # noqa: ARG001
    """Make a stub controller and a pod with ports of these tests."""
    ports = {"stores": FIRST, "storage": STORAGE}
    with contextlib.ExitStack() as stack:
        yield lambda source: stack.enter_context(
            pod(home, source, framework="pytorch", network={"ports": ports})
        )


@pytest.fixture
def squat() -> Iterator[Squat]:
    """Take a port, as soon as that is possible, and never answer there."""
    with contextlib.ExitStack() as stack:

        def listener(host: str, port: int) -> socket.socket | None:
            with contextlib.suppress(OSError):
                return stack.enter_context(socket.create_server((host, port)))
            return None

        def take(host: str, port: int) -> None:
            until(lambda: listener(host, port), "the port is ours")

        yield take


def test_a_node_whose_store_ports_are_all_taken_trains_at_another_and_names_them(
    make: Make, squat: Squat
) -> None:
    controller, pod = make(MEET)
    for port in RANGE:
        squat(pod.address, port)
    pod.start()
    store = controller.ready()
    assert store.hosted and store.port not in RANGE
    controller.start(store=store)
    assert controller.exited().exit_code == 0, pod.log()
    told = controller.wait_for(HealthChanged, condition="ports-taken", severity=Severity.WARN)
    assert f"ports {FIRST} to {RANGE[-1]} of {pod.address} are taken" in told.detail
    controller.send(Leave(reason="test", exit_code=0))
    [said] = [line for line in pod.read()[1].splitlines() if "network.ports.stores" in line]
    assert f"ports {FIRST} to {RANGE[-1]} of {pod.address} are taken" in said
    assert f"port {store.port}" in said


def test_ports_that_are_taken_between_two_attempts_are_passed_over(
    make: Make, squat: Squat
) -> None:
    controller, pod = make(MEET)
    pod.start()
    store = controller.ready()
    controller.start(store=store)
    assert controller.exited().exit_code == 0, pod.log()
    for port in RANGE[2:-1]:
        squat(pod.address, port)
    fresh = controller.stop().store
    assert fresh is not None and fresh.hosted and fresh.port == RANGE[-1]
    controller.start(attempt=2, store=fresh)
    assert controller.exited(attempt=2).exit_code == 0, pod.log(attempt=2)
    controller.send(Leave(reason="test", exit_code=0))
    assert "are taken" not in pod.read()[1]


def test_a_taken_port_for_copies_is_named_and_another_used(make: Make, squat: Squat) -> None:
    controller, pod = make(MEET)
    squat(pod.address, STORAGE)
    pod.start()
    controller.ready()
    controller.start()
    assert controller.exited().exit_code == 0, pod.log()
    controller.send(Leave(reason="test", exit_code=0))
    [said] = [line for line in pod.read()[1].splitlines() if "network.ports.storage" in line]
    assert f"port {STORAGE} of {pod.address} is taken" in said


def test_who_takes_the_port_of_a_store_that_has_died_is_not_met(node: Node, squat: Squat) -> None:
    controller, agent = node(MEET, framework="pytorch", warm={"mode": "off"})
    store = controller.ready()
    _kill_store(agent, store)
    squat(store.host, store.port)
    fresh = controller.wait_for(NodeReady, count=2).store
    assert fresh.hosted and fresh.port != store.port
    controller.start(store=fresh)
    assert controller.exited().exit_code == 0, agent.log()


def test_ranks_do_not_wait_at_the_port_of_a_store_that_died_before_they_met(
    node: Node, squat: Squat
) -> None:
    controller, agent = node(LATER + MEET, framework="pytorch", warm={"mode": "off"})
    store = controller.ready()
    controller.start(store=store)
    until(lambda: agent.log() == "up\n", "the worker runs")
    _kill_store(agent, store)
    until(lambda: "store of the attempt has died" in agent.words(), "its death")
    squat(store.host, store.port)
    (agent.folder / "go").touch()
    exited = controller.exited()
    assert (exited.signal, exited.store) == (signal.SIGKILL, STORE_DIED_BEFORE)
    fresh = controller.stop().store
    assert fresh is not None and fresh.hosted and fresh.port != store.port
    controller.start(attempt=2, store=fresh)
    assert controller.exited(attempt=2).exit_code == 0, agent.log(attempt=2)


@pytest.mark.parametrize("below", [False, True])
def test_ranks_that_have_met_need_the_store_no_more(node: Node, below: bool) -> None:
    """They have made no step yet, and do not know each other by what holdfast.train offers; it may
    be a program that the worker has started (`below`) which has met them."""
    source = MEET + LATER + BARRIER
    if below:
        source = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {source!r}])"
    controller, agent = node(source, framework="pytorch", warm={"mode": "off"})
    store = controller.ready()
    controller.start(store=store)
    until(lambda: agent.log() == "met\nup\n", "the worker runs")
    _kill_store(agent, store)
    until(lambda: "store of the attempt has died" in agent.words(), "its death")
    (agent.folder / "go").touch()
    assert controller.exited().exit_code == 0, agent.log()
    assert agent.log() == "met\nup\non\n"


def _kill_store(agent: AgentProcess, store: Store) -> None:
    """The process that listens there."""
    below = map(psutil.Process, agent.family())
    [server] = [one.pid for one in below if _listens(one, store.port)]
    os.kill(server, signal.SIGKILL)


def _listens(process: psutil.Process, port: int) -> bool:
    found = process.net_connections("tcp")
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in found)
