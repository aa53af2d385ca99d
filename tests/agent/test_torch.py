"""The same with PyTorch: preloaded, rendezvous on the node's store, no GPU touched early."""

import contextlib
import json
import os
import signal
import socket
from functools import partial
from typing import TypeVar

import msgspec
import psutil
import pytest

from holdfast.collectives import RankTimes
from holdfast.events import STORE_DIED_BEFORE, NodeReady, Store
from holdfast.messages import (
    EntryTimes,
    EvidenceReply,
    GroupOpened,
    RepeatStep,
    StepRepeated,
    TakeEntryTimes,
    TakeEvidence,
)
from tests.agent.conftest import Node
from tests.agent.controller_stub import AgentProcess, StubController, parent_of, until
from tests.agent.parts import start

pytestmark = pytest.mark.slow

Answer = TypeVar("Answer", EvidenceReply, GroupOpened, StepRepeated)

DDP = """
import os, sys, time
loaded = set(sys.modules)
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    model(torch.full((1, 4), float(dist.get_rank()))).sum().backward()
    optimizer.step()
late = len(set(sys.modules) - loaded)
print("trained", os.environ["TORCHELASTIC_RESTART_COUNT"], dist.get_world_size(), late, flush=True)
time.sleep(600)
"""


def test_an_uninstrumented_ddp_script_trains_again_after_a_kill_on_a_fresh_store(
    node: Node,
) -> None:
    controller, agent = node(DDP, framework="pytorch", workers_per_node=2)
    ready = controller.wait_for(NodeReady)
    assert ready.store.hosted and not ready.instrumented
    store = ready.store
    for attempt in (1, 2, 3):
        controller.start(attempt=attempt, store=store)
        pids = controller.started(attempt=attempt)
        for rank in (0, 1):
            words = until(partial(_words_after_training, agent, rank, attempt), "a rank trains")
            assert words[1:3] == [str(attempt - 1), "2"]
            assert int(words[3]) < 20, "what DDP imports lazily is loaded ahead"
        controller.send(TakeEntryTimes(number=attempt, recent=8))
        told = until(partial(_times, controller, attempt), "the ranks tell of their steps")
        counted = [pace.points for times in told for pace in times.paces]
        assert len(counted) == 2 and counted[0] == counted[1], "collectives by the end of each step"
        assert [step for times in told for step, _ in times.steps] == [1, 2, 3] * 2
        if attempt == 2:
            below = psutil.Process(agent.forkserver()).children()
            [host] = [one for one in below if store.port in _listens(one)]
            host.kill()
            until(lambda: "store of the attempt has died" in agent.words(), "its death")
        os.kill(pids[1], signal.SIGKILL)
        exited = controller.exited(attempt=attempt, rank=1)
        assert (exited.signal, exited.store) == (9, "signal 9" if attempt == 2 else "")
        stopped = controller.stop(attempt=attempt, look=True)
        assert [one.kind for one in stopped.entered[0]] == ["all_reduce float[10]"]
        if attempt == 1:
            controller.send(TakeEvidence(number=1, attempt=1, since_s=1.0))
            [reply] = until(lambda: _answers(controller, EvidenceReply), "how they were")
            [page] = [one.page for one in reply.found.ranks if one.rank == 0]
            last = f"number {stopped.entered[0][0].number} all_reduce float[10]"
            assert page.endswith(f"last collective in group default_pg: {last}")
        fresh = stopped.store
        assert fresh is not None and fresh.hosted and fresh != store
        store = fresh


def test_an_attempt_on_a_store_that_died_before_it_began_ends_at_once_and_says_so(
    node: Node,
) -> None:
    """The order may be on its way when the controller is told."""
    controller, agent = node(DDP, framework="pytorch", workers_per_node=2)
    store = controller.wait_for(NodeReady).store
    os.kill(agent.forkserver(), signal.SIGKILL)
    until(lambda: "the forkserver has died" in agent.words(), "its death")
    controller.start(attempt=1, store=store)
    exited = controller.exited(attempt=1, rank=0)
    assert (exited.signal, exited.store) == (9, STORE_DIED_BEFORE)
    fresh = controller.stop(attempt=1).store
    assert fresh is not None and fresh.hosted and fresh != store
    controller.start(attempt=2, store=fresh)
    for rank in (0, 1):
        until(partial(_words_after_training, agent, rank, 2), "a rank trains")


def _listens(process: psutil.Process) -> set[int]:
    """Its ports; none if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return {one.laddr.port for one in process.net_connections() if one.status == "LISTEN"}
    return set()


def _times(controller: StubController, number: int) -> tuple[RankTimes, ...]:
    answers = [one for one in controller.answers if isinstance(one, EntryTimes)]
    return next((one.ranks for one in answers if one.number == number), ())


def test_a_killed_store_is_replaced_and_the_controller_told(node: Node) -> None:
    controller, agent = node("pass", framework="pytorch", warm={"mode": "off"})
    store = controller.ready()
    (server,) = (pid for pid in agent.family() if parent_of(pid) == agent.forkserver())
    os.kill(server, signal.SIGKILL)
    fresh = controller.wait_for(NodeReady, count=2).store
    assert fresh.hosted and fresh != store


MEET = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
"""


def test_ranks_that_repeat_a_step_meet_on_a_store_of_their_own_until_it_is_over(node: Node) -> None:
    """A port that was only reserved is somebody else's by the time rank 0 has loaded what it
    needs to serve there."""
    controller, agent = node(MEET, framework="pytorch", workers_per_node=2, warm={"mode": "off"})
    store = controller.ready()
    known = set(agent.family())
    alone = msgspec.structs.replace(start(), node_rank=0, node_count=1)
    controller.send(RepeatStep(number=1, step=1, start=alone, opens=True))
    [opened] = until(lambda: _answers(controller, GroupOpened), "the group is opened")
    assert opened.store.hosted and opened.store != store
    [said] = until(lambda: _answers(controller, StepRepeated), "its ranks have met")
    assert said.why == "the script ended before the end of the step (it has to call run.track())"
    until(lambda: set(agent.family()) <= known, "nothing of it is left, the store least of all")
    with socket.create_connection((store.host, store.port)):
        pass  # the job's own is untouched


def _answers(controller: StubController, kind: type[Answer]) -> list[Answer]:
    return [one for one in controller.answers if isinstance(one, kind)]


DRAW = """
import os
os.environ["OMP_NUM_THREADS"] = "3"
os.environ["PYTORCH_JIT_STATS"] = "1"
import random, ssl, tempfile, uuid
import numpy, torch
def draw():
    return {
        "torch": torch.rand(1).item(),
        "order": str(list(torch.utils.data.RandomSampler(range(64)))),
        "random": random.random(),
        "numpy": numpy.random.rand(),
    }
by_chance = draw() | {
    "default_rng": numpy.random.default_rng().random(),
    "ssl": ssl.RAND_bytes(8).hex(),
    "file": tempfile.mktemp(),
    "clock": uuid.uuid1().clock_seq,
    "uuid": str(uuid.uuid4()),
}
assert not torch.cuda.is_initialized()
random.seed(1); numpy.random.seed(1); torch.manual_seed(1)
import json
print(json.dumps([by_chance, draw(), torch.get_num_threads()]), flush=True)
"""


def test_what_is_drawn_by_chance_differs_and_what_is_seeded_does_not(node: Node) -> None:
    """Between ranks and between attempts; and what a script sets for torch takes effect. What they
    are forked from has one thread and has touched no GPU."""
    controller, agent = node(DRAW, fresh=True, framework="pytorch", workers_per_node=2)
    store: Store | None = controller.ready()
    assert len(os.listdir(f"/proc/{agent.forkserver()}/task")) == 1
    drawn, seeded = [], []
    for attempt in (1, 2):
        controller.start(attempt=attempt, store=store)
        for rank in (0, 1):
            assert controller.exited(attempt, rank).exit_code == 0, agent.log(rank, attempt)
            line = agent.log(rank, attempt).splitlines()[-1]
            by_chance, by_seed, threads = json.loads(line)
            assert threads == 3
            drawn.append(by_chance)
            seeded.append(by_seed)
        store = controller.stop(attempt=attempt).store
    for name in drawn[0]:
        assert len({one[name] for one in drawn}) == 4, name
    assert seeded == [seeded[0]] * 4
    warned = agent.log(0, 1)
    assert "PYTORCH_JIT_STATS: set by the script above `import torch`" in warned
    assert "OMP_NUM_THREADS" not in warned
    assert "PYTORCH_JIT_STATS" not in agent.log(1, 1) + agent.log(0, 2)


def _words_after_training(agent: AgentProcess, rank: int, attempt: int) -> list[str]:
    log = agent.log(rank, attempt)
    lines = [line for line in log.splitlines() if line.startswith("trained")]
    return lines[0].split() if lines and log.endswith("\n") else []
