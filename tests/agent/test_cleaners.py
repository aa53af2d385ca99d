"""Whoever removes what a killed worker leaves in /dev/shm is not killed with it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.drivers import fencing
from tests.agent.conftest import Node
from tests.agent.controller_stub import AgentProcess, StubController, is_alive, until

SHM = Path("/dev/shm")
SEGMENT = """
import os, time
from multiprocessing.shared_memory import SharedMemory
segment = SharedMemory(create=True, size=1 << 16)
own = f"/dev/shm/made-by-hand-{os.getpid()}"
open(own, "w").close()
words = ("made", segment.name, own) if os.fork() else ("child", str(os.getpid()))
os.write(1, (" ".join(words) + "\\n").encode())  # at once: both write here
time.sleep(600)
"""
TENSOR = """
import os, time, torch, torch.multiprocessing
torch.multiprocessing.set_sharing_strategy("file_system")
tensor = torch.zeros(1 << 14).share_memory_()
[name] = [name for name in os.listdir("/dev/shm") if f"_{os.getpid()}_" in name]
print("made", name, flush=True)
time.sleep(600)
"""


def killed(controller: StubController, _agent: AgentProcess, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    controller.exited()
    controller.stop()


ENDS: dict[str, Callable[[StubController, AgentProcess, int], object]] = {
    "a killed worker": killed,
    "SIGKILL to the worker": lambda controller, _agent, _pid: controller.stop(grace_s=0.0),
    "SIGTERM to the worker": lambda controller, _agent, _pid: controller.stop(),
    "the end of the node": lambda _controller, agent, _pid: agent.process.terminate(),
    "a killed agent": lambda _controller, agent, _pid: agent.process.kill(),
    "all of the agent's group killed": lambda _controller, agent, _pid: os.killpg(
        agent.process.pid, signal.SIGKILL
    ),
    "a killed forkserver": lambda _controller, agent, _pid: os.kill(
        agent.forkserver(), signal.SIGKILL
    ),
}


def words_of(agent: AgentProcess, first: str) -> list[str]:
    found = until(
        lambda: [line.split()[1:] for line in agent.log().splitlines() if line.startswith(first)],
        "what the worker says",
    )
    return found[0]


@pytest.mark.parametrize("end", ENDS)
def test_what_a_worker_shares_by_name_goes_with_it_and_what_it_only_wrote_stays(
    node: Node, end: str
) -> None:
    controller, agent = node(SEGMENT)
    controller.ready()
    controller.start()
    [pid] = controller.started()
    name, own = words_of(agent, "made")
    [child] = words_of(agent, "child")
    try:
        assert (SHM / name).exists()
        ENDS[end](controller, agent, pid)
        until(lambda: not is_alive(pid) and not is_alive(int(child)), "the worker's group dies")
        until(lambda: not (SHM / name).exists(), "its segment goes")
        assert Path(own).exists(), "nobody has asked anybody to remove it"
    finally:
        Path(own).unlink()


def test_when_an_attempt_has_stopped_tensors_shared_by_name_are_gone(node: Node) -> None:
    controller, agent = node(TENSOR, framework="pytorch")
    controller.ready()
    controller.start()
    [pid] = controller.started()
    [name] = words_of(agent, "made")
    os.kill(pid, signal.SIGKILL)
    controller.exited()
    controller.stop()
    assert not (SHM / name).exists()


def test_who_only_looks_like_a_cleaner_is_spared_with_its_group_and_killed_after_a_while() -> None:
    body = """
import asyncio, os, signal, subprocess, sys
from holdfast.agent import cleaners, processes
from holdfast.agent.stray_processes import end_strays
from tests.agent.controller_stub import is_alive

cleaners.GRACE_S = 0.2
processes.adopt_orphans()
leader = '''
import subprocess, sys, time
stays = "from multiprocessing.resource_tracker import main; import time; time.sleep(600)"
started = [subprocess.Popen([sys.executable, "-c", words])
           for words in ("import time; time.sleep(600)", stays)]
print(*(one.pid for one in started), flush=True)
time.sleep(600)
'''
led = subprocess.Popen([sys.executable, "-c", leader], process_group=0, stdout=subprocess.PIPE)
other, cleaner = map(int, led.stdout.readline().split())
while not cleaners.among([cleaner]):  # until it is the program
    pass
processes.signal_group(led.pid, signal.SIGKILL)
assert led.wait() == -9
while is_alive(other):
    pass
assert is_alive(cleaner)
os.waitpid(other, 0)

async def end():
    reaper = asyncio.create_task(asyncio.to_thread(os.waitpid, cleaner, 0))
    await end_strays(frozenset)
    await reaper
asyncio.run(end())
print("well")
"""
    ran = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=False)
    assert ran.stdout == "well\n", ran.stderr


def test_who_forks_and_ends_before_it_is_found_is_killed_and_cleaners_are_spared() -> None:
    """Found by hand: whoever kills them one by one goes on for as long as they do."""
    body = """
import os, signal, subprocess, sys
from holdfast.agent import cleaners, processes

look = processes._group
processes._group = lambda leader: [look(leader) for _ in range(20)].pop(0)  # on a busy machine
processes.adopt_orphans()
leader = '''
import os, subprocess, sys, time
stays = "from multiprocessing.resource_tracker import main; import time; time.sleep(600)"
print(subprocess.Popen([sys.executable, "-c", stays]).pid, flush=True)
end = time.monotonic() + 120
for _ in range(3):
    if os.fork() == 0:
        while time.monotonic() < end:
            time.sleep(0.001)
            if os.fork():
                os._exit(0)
        os._exit(0)
time.sleep(600)
'''
led = subprocess.Popen([sys.executable, "-c", leader], process_group=0, stdout=subprocess.PIPE)
cleaner = int(led.stdout.readline())
while not cleaners.among([cleaner]):  # until it is the program
    pass
processes.signal_group(led.pid, signal.SIGKILL)
assert led.wait() == -9
while look(led.pid) - {cleaner}:  # until they are zombies
    pass
assert cleaners.among([cleaner]), "it goes on"
os.kill(cleaner, signal.SIGKILL)
print("well")
"""
    ran = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=False)
    assert ran.stdout == "well\n", ran.stderr


def test_who_kills_all_of_a_node_waits_for_its_cleaners(home: Path) -> None:
    folder = home / "jobs" / "job"
    (folder / "nodes").mkdir(parents=True)
    marks = {"HOLDFAST_NODE": "node-0-0000", "HOLDFAST_JOB": "job", "HOLDFAST_JOB_DIR": str(folder)}
    words = [sys.executable, "-c", SEGMENT]
    with subprocess.Popen(words, env={**os.environ, **marks}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = sorted(process.stdout.readline().decode().split() for _ in range(2))
        name, own = said[1][1:]
        try:
            assert (SHM / name).exists()
            fenced = fencing.fence_nodes(folder, ["node-0-0000"])
            assert (fenced.killed, fenced.stuck) == (3, ())
            assert not (SHM / name).exists() and Path(own).exists()
        finally:
            Path(own).unlink()
