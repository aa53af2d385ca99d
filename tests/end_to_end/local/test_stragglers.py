"""A rank that makes the other wait in each step is named, and its node replaced where asked for."""

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.local.jobs import program

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
