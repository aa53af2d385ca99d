"""A rank that makes the other wait in each step is named, and its node replaced where asked for."""

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.local.jobs import program
from tests.more import long
from tests.warm import holdfast

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

# Its second rank is slow in the first attempt.
SLOW = """
import os, time, torch
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
slow = os.environ["RANK"] == "1"
again = os.environ["HOLDFAST_ATTEMPT"] != "1"
step = 0
while step < (20 if again else 20_000):
    step += 1
    time.sleep(0.12 if slow and not again else 0.04)
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_node_of_a_slow_rank_is_replaced_by_a_spare_if_the_job_says_so(home: Path) -> None:
    options: dict[str, Any] = {
        "framework": "pytorch",
        "nodes": {"count": 2, "spares": 1},
        "workers_per_node": 1,
        "recovery": {"stragglers": "replace"},
    }
    job = program(home, SLOW, **options).start()
    job.wait_end()
    (incident,) = job.incidents()
    assert (incident.cause, incident.rank) == ("straggler", 1)
    assert "all others wait for it" in incident.summary
    (node,) = [node for node in job.status().nodes if node.rank == 1]
    assert node.name != incident.node
    (note,) = job.status().notes
    assert note.rank == 1 and "neither its input nor its processor" in note.text


# The head, which the last stage has, takes longer than the blocks.
PIPELINE = """
import time, torch
from torch import nn
from holdfast.train import join

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
    def forward(self, x):
        time.sleep(0.002)
        return torch.tanh(self.linear(x))

class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 1)
    def forward(self, x):
        time.sleep(0.006)
        return self.linear(x)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(4)])
        self.head = Head()
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

run = join()
model = run.parallelize(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = run.track(model=model, optimizer=optimizer)
ones, mse = torch.ones(4, 16), nn.functional.mse_loss
for step in state.steps(total=100_000):
    run.train_step(optimizer, ones, targets=torch.ones(4, 1), loss=mse)
"""


@long
def test_a_stage_that_takes_longer_is_noted_and_nothing_is_done_about_it(home: Path) -> None:
    options: dict[str, Any] = {
        "framework": "pytorch",
        "nodes": {"count": 2, "spares": 1},
        "workers_per_node": 1,
        "parallel": {"pp": 2, "dp_shard": 1, "accumulate": 4},
        "recovery": {"stragglers": "replace"},
    }
    job = program(home, PIPELINE, **options).start()
    status = job.wait_until(lambda status: bool(status.notes), "a note")
    (note,) = status.notes
    assert note.text.startswith("stage 1 of the pipeline (rank 1) computes ")
    assert note.text in (status.why or "")
    assert status.attempt == 1 and job.incidents() == []
    holdfast("stop", job.name, "--now")
    job.wait_end(130)
